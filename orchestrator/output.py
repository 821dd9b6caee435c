"""Final text -> JSON -> schema -> the sentence that a retry needs; or a fence around it. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from orchestrator.domain import Frozen

if TYPE_CHECKING:
    from jsonschema import ValidationError
    from jsonschema.protocols import Validator

MAX_ERRORS = 8
"""How many problems one feedback names; a model mends the first few and then asks again."""

MAX_FOUND = 1000
"""How many are looked for."""

SHOWN_VALUE_CHARS = 120
"""How much of an offending value is repeated."""

ANSWER_CHARS = 1024 * 1024
"""Of an answer that is looked at: several times what a model can say at once."""

ANSWER_DEPTH = 100
"""Lists in lists, and objects in objects. What stores and sends the answer has a limit too."""

MAX_PLACES = 1000
"""Where JSON may begin in an answer that is not JSON as a whole, and how many fences there are."""

MAX_READ = 4 * ANSWER_CHARS
"""What is read of it in all, since each place may have us read to the end."""

FENCE = "```"
FENCE_LINE = 40
"""How long the line may be that opens one."""

SLOW = frozenset(
    (
        *("pattern", "patternProperties", "uniqueItems"),
        # A schema that leads to itself in two ways takes twice as long for each level of an answer.
        *("$ref", "$dynamicRef", "$recursiveRef"),
    )
)
"""Keywords that can take for ever to check, by accident or because the answer was made for it."""

QUICK_CHARS = 16 * 1024
"""An answer of no more than this is compared soon, with a schema that has nothing slow in it."""

NO_SCHEMA = frozenset(("const", "default", "enum", "examples"))
"""Keywords whose values are values, whatever they look like."""

_BRACKET = re.compile(r"[{\[]")

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029]|\r(?!\n)")
"""What a terminal would obey, and what ends a line without looking like it."""


def fenced(answer: object, agent: str, run_id: str) -> str:
    """An answer of an agent's for another model to read."""
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return fence(text, "answer", key=run_id, agent=agent, run_id=run_id)


def fence(text: str, what: str, *, key: str = "", **whose: str) -> str:
    """A stranger's words for a model to read. The stranger cannot end the fence, and so not speak
    as another or as us: its name is a digest of the words, which no words can hold. The same words
    have the same text, however often a client asks for them.
    """
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
    digest = hashlib.sha256(f"{key} {text}".encode("utf-8", "replace")).hexdigest()
    name = f"{what}-{digest[:24]}"
    told = "".join(f" {field}={json.dumps(value)}" for field, value in whose.items())
    return f"<{name}{told}>\n{text}\n</{name}>"


class Answer(Frozen):
    """What came of a final text."""

    value: object = None
    errors: tuple[str, ...] = ()
    """Empty when the value is as it should be."""


def check_schema(schema: Mapping[str, object]) -> tuple[tuple[str | int, ...], str] | None:
    """Where in a JSON Schema something is wrong, and what; None if nothing is."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(dict(schema), default=_latest()).check_schema(dict(schema))
    except SchemaError as exc:
        return tuple(exc.absolute_path), exc.message
    dangling = _dangling(dict(schema))
    return None if dangling is None else ((), dangling)


def may_be_slow(text: str, schema: Mapping[str, object] | None) -> bool:
    """Whether reading an answer can take so long that it needs a process that can be killed."""
    return schema is not None and (len(text) > QUICK_CHARS or _has_slow(schema))


def read_answer(text: str, schema: Mapping[str, object] | None) -> Answer:
    """The JSON value in a final text, and how it breaks the schema, if it does."""
    if len(text) > ANSWER_CHARS:
        return Answer(errors=(f"the answer is longer than {ANSWER_CHARS} characters; say less",))
    first: Answer | None = None
    for value in _json_values(text):
        problem = _unfit(value)
        errors = (problem,) if problem else () if schema is None else violations(value, schema)
        if not errors:
            return Answer(value=value)
        # An unfit value is not handed on: the store or the client's JSON reader would fail on it.
        first = first or Answer(value=None if problem else value, errors=errors)
    return first or Answer(errors=("the answer is not JSON",))


def violations(value: Any, schema: Mapping[str, object]) -> tuple[str, ...]:
    """How a value breaks a schema, in sentences; none if it does not."""
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    registry: Registry[Any] = Registry()  # empty: a $ref is never fetched from anywhere
    kind = validator_for(dict(schema), default=_latest())
    validator = kind(dict(schema), registry=registry)
    try:
        found = sorted(islice(validator.iter_errors(value), MAX_FOUND), key=_place)
    except Unresolvable as exc:
        return (f"the schema refers to something that is not in it: {exc}",)
    except RecursionError:
        return ("the answer is nested too deep to be compared with its schema; make it flatter",)
    errors = []
    for error in found[:MAX_ERRORS]:
        where = "/" + "/".join(str(part) for part in error.absolute_path)
        errors.append(f"{where}: {_short(error.message)}")
    if len(found) > MAX_ERRORS:
        many = len(found) == MAX_FOUND
        errors.append("and many more" if many else f"and {len(found) - MAX_ERRORS} more")
    return tuple(errors)


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
    for candidate in (text, *_fenced(text)):
        try:
            yield json.loads(candidate, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            continue
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    at = read = 0
    for _ in range(MAX_PLACES):
        found = _BRACKET.search(text, at)
        if found is None or read > MAX_READ:
            return
        start = found.start()
        try:
            value, at = decoder.raw_decode(text, start)
        except json.JSONDecodeError as exc:
            at = start + 1
            read += exc.pos - start
        except (ValueError, RecursionError):  # who knows how far it came
            at = start + 1
            read += len(text) - start
        else:
            yield value


def _fenced(text: str) -> Iterator[str]:
    """What stands between fences, of JSON or of nothing in particular."""
    at = 0
    for _ in range(MAX_PLACES):
        opened = text.find(FENCE, at)
        if opened < 0:
            return
        begin = opened + len(FENCE)
        line = text.find("\n", begin, begin + FENCE_LINE)
        if line < 0 or text[begin:line].strip() not in ("", "json"):
            at = opened + 1
            continue
        end = text.find(FENCE, line)
        if end < 0:
            return
        yield text[line:end]
        at = end + len(FENCE)


def _unfit(value: object) -> str:
    """Why a value cannot be kept or sent on, though it is JSON as far as Python goes; or ""."""
    waiting = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, str) and not _is_whole(part):
            return "the answer holds half a character (a lone surrogate); write whole ones"
        if isinstance(part, float) and not math.isfinite(part):
            return "the answer holds a number that is too large"
        if not isinstance(part, dict | list):
            continue
        if depth > ANSWER_DEPTH:
            return f"the answer is nested more than {ANSWER_DEPTH} deep; make it flatter"
        if isinstance(part, dict):
            waiting += [(key, depth) for key in part]
        items = part.values() if isinstance(part, dict) else part
        waiting += [(item, depth + 1) for item in items]
    return ""


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _has_slow(schema: object) -> bool:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if not SLOW.isdisjoint(part):
                return True
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False


def _dangling(schema: dict[str, object]) -> str | None:
    """What a $ref leads to that is not in the schema; nothing is fetched from anywhere."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped] # has no types
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    draft = specification_with(str(schema.get("$schema", "")), default=DRAFT202012)
    resolver = REGISTRY.resolver_with_root(draft.create_resource(schema))
    for ref in _references(schema):
        try:
            resolver.lookup(ref)
        except (Unresolvable, ValueError, TypeError):  # the last two: into a list, or a number
            return f"$ref leads to {_short(ref)!r}, which is not in the schema; add it there"
    return None


def _references(value: object) -> Iterator[str]:
    """Every $ref of a schema; of one with parts that have an $id of their own, none."""
    waiting, found = [value], []
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            if part is not value and isinstance(part.get("$id"), str):
                return
            if isinstance(part.get("$ref"), str):
                found.append(part["$ref"])
            waiting += [item for key, item in part.items() if key not in NO_SCHEMA]
    yield from found


def _place(error: ValidationError) -> list[str]:
    return [str(part) for part in error.absolute_path]


def _latest() -> type[Validator]:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


def _short(message: str) -> str:
    if len(message) <= 2 * SHOWN_VALUE_CHARS:
        return message
    return f"{message[:SHOWN_VALUE_CHARS]} … {message[-SHOWN_VALUE_CHARS:]}"
