"""Final text -> JSON -> schema -> the sentence that a retry needs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.domain import Frozen

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

MAX_ERRORS = 8
"""How many problems one feedback names; a model mends the first few and then asks again."""

MAX_SHOWN = 120
"""How much of an offending value is repeated."""


class Answer(Frozen):
    """What came of a final text."""

    value: object = None
    errors: tuple[str, ...] = ()
    """Empty when the value is as it should be."""


def check_schema(schema: Mapping[str, object]) -> str | None:
    """What is wrong with a JSON Schema itself, or None."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(dict(schema), default=_latest()).check_schema(dict(schema))
    except SchemaError as exc:
        where = "/".join(str(part) for part in exc.absolute_path)
        return f"{where}: {exc.message}" if where else exc.message
    return None


def read_answer(text: str, schema: Mapping[str, object] | None) -> Answer:
    """The JSON value in a final text, and how it breaks the schema, if it does."""
    candidates = list(_json_values(text))
    if not candidates:
        return Answer(errors=("the answer is not JSON",))
    if schema is None:
        return Answer(value=candidates[0])
    first: Answer | None = None
    for value in candidates:
        errors = _violations(value, schema)
        if not errors:
            return Answer(value=value)
        first = first or Answer(value=value, errors=errors)
    assert first is not None  # noqa: S101 there was a candidate
    return first


def feedback(errors: tuple[str, ...], schema: Mapping[str, object] | None) -> str:
    """What to tell an agent whose answer was not as it should be."""
    lines = ["Your last answer cannot be used:"]
    lines += [f"- {error}" for error in errors]
    lines.append("Answer again with the corrected JSON value only: no prose, no code fence.")
    if schema is not None:
        lines.append(f"It must satisfy this JSON Schema: {json.dumps(schema)}")
    return "\n".join(lines)


def instruction(schema: Mapping[str, object] | None) -> str:
    """What to tell an agent beforehand whose answer is to be JSON."""
    text = "Your final answer must be one JSON value and nothing else: no prose, no code fence."
    if schema is not None:
        text += f"\nIt must satisfy this JSON Schema:\n{json.dumps(schema)}"
    return text


def _json_values(text: str) -> Iterator[object]:
    """Whatever in the text can be read as JSON, the likeliest first."""
    for candidate in (text, *re.findall(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL)):
        try:
            yield json.loads(candidate, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            continue
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    at = 0
    while (start := _next_bracket(text, at)) is not None:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            at = start + 1
            continue
        yield value
        at = end


def _next_bracket(text: str, at: int) -> int | None:
    found = re.compile(r"[{\[]").search(text, at)
    return found.start() if found else None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _violations(value: Any, schema: Mapping[str, object]) -> tuple[str, ...]:
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    registry: Registry[Any] = Registry()  # empty: a $ref is never fetched from anywhere
    kind = validator_for(dict(schema), default=_latest())
    validator = kind(dict(schema), registry=registry)
    try:
        found = sorted(validator.iter_errors(value), key=_place)
    except Unresolvable as exc:
        return (f"the schema refers to something that is not in it: {exc}",)
    errors = []
    for error in found[:MAX_ERRORS]:
        where = "/" + "/".join(str(part) for part in error.absolute_path)
        errors.append(f"{where}: {_short(error.message)}")
    if len(found) > MAX_ERRORS:
        errors.append(f"and {len(found) - MAX_ERRORS} more")
    return tuple(errors)


def _place(error: ValidationError) -> list[str]:
    return [str(part) for part in error.absolute_path]


def _latest() -> type[Validator]:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def _short(message: str) -> str:
    if len(message) <= 2 * MAX_SHOWN:
        return message
    return f"{message[:MAX_SHOWN]} … {message[-MAX_SHOWN:]}"
