"""Fields as an author wrote them -> a noun, or what is wrong with each of them, by line. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.catalog.problems import Problems, did_you_mean, found
from orchestrator.plain_yaml import Loc, shortened

Noun = TypeVar("Noun", bound=BaseModel)


FIELD_UNITS = {"_ms": "ms", "_seconds": "seconds", "_mb": "MiB", "_usd": "dollars"}
"""How the name of a field ends -> what its number counts."""


class Spellings(NamedTuple):
    """How what an author writes differs from the fields of a noun."""

    also: Mapping[str, tuple[str, ...]] = {}
    """Below a field (or "", the noun itself): other ways to write some of its fields."""
    hidden: tuple[str, ...] = ()
    """Fields of the noun that are written elsewhere."""
    unions: tuple[str, ...] = ()
    """Fields of several kinds, which the author does not name."""


def validated(
    noun: type[Noun], fields: Mapping[str, object], problems: Problems, spellings: Spellings
) -> Noun | None:
    """The noun that the fields describe; None, and what is wrong goes to `problems`."""
    try:
        # Strict, and by way of JSON: "30000" is not a number, but a list will do for a tuple.
        return noun.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as exc:
        known = {(problem.line, problem.field) for problem in problems.found}
        report = _Report(noun, problems, spellings)
        for error in exc.errors(include_url=False):
            if error["type"] == "default_factory_not_called":  # because of another one
                continue
            loc = tuple(part for part in error["loc"] if part != "[key]")
            place = report.place(loc)
            if (problems.line_of(place), problems.written(place)) not in known:
                report.add(loc, error)
        return None


class _Report:
    def __init__(self, noun: type[BaseModel], problems: Problems, spellings: Spellings) -> None:
        self._noun = noun
        self._problems = problems
        self._spellings = spellings

    def place(self, loc: Loc) -> Loc:
        """Where that is for the author, who does not name the kind of a union."""
        if len(loc) > 1 and loc[0] in self._spellings.unions:
            return (loc[0], *loc[2:])
        return loc

    def add(self, loc: Loc, error: ErrorDetails) -> None:
        if error["type"] == "extra_forbidden":
            self._problems.add(self.place(loc), self._unknown_field(loc))
            return
        fields = self._fields_at(loc)
        said = sentence(error, fields, secret="env" in loc[:-1] or "args" in loc[:-1])
        name = str(loc[-1]) if loc else ""
        if unit := next((unit for end, unit in FIELD_UNITS.items() if name.endswith(end)), ""):
            said = re.sub(r"\b(number|least \S+|most \S+),", _counting(unit), said, count=1)
        field, _, rest = said.partition(" ")
        if error["type"] == "value_error" and field in fields:
            loc, said = (*loc, field), rest  # several fields do not fit: it begins with one of them
        self._problems.add(self.place(loc), said)

    def _unknown_field(self, loc: Loc) -> str:
        known = self._fields_at(loc[:-1])
        guess = did_you_mean(str(loc[-1]), known)
        return (
            f"unknown field; did you mean '{guess}'?"
            if guess
            else f"unknown field; allowed: {', '.join(known)}"
        )

    def _fields_at(self, loc: Loc) -> tuple[str, ...]:
        models: list[type[BaseModel]] = [self._noun]
        for part in loc:
            if not isinstance(part, str) or not models:
                continue
            if len(models) > 1:  # a union, and its kind
                models = [model for model in models if model.model_fields["kind"].default == part]
                continue
            field = models[0].model_fields.get(part)
            models = list(_models_in(field.annotation)) if field else []
        if not models:
            return ()
        below = next((str(part) for part in reversed(loc) if isinstance(part, str)), "")
        names = [
            name
            for name in models[0].model_fields
            if name != "kind" and (loc or name not in self._spellings.hidden)
        ]
        return (*names, *self._spellings.also.get(below, ()))


def _counting(unit: str) -> Callable[[re.Match[str]], str]:
    """`a number` -> `a number of seconds`, `at least 5` -> `at least 5 seconds`."""
    return lambda said: f"{said[1]}{' of' * (said[1] == 'number')} {unit},"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def sentence(error: ErrorDetails, fields: tuple[str, ...] = (), *, secret: bool = False) -> str:
    """What was found, and what is allowed."""
    given = error["input"]
    what = found(given, secret=secret)
    limits = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is missing"
        case "value_error":
            said = str(limits["error"])
            return said if isinstance(given, dict) or secret else f"{what} {said}"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'", str(limits["expected"]))
            guess = did_you_mean(given, allowed) if isinstance(given, str) else None
            hint = f"; did you mean '{guess}'?" if guess else ""
            return f"found {what}; allowed: {', '.join(allowed)}{hint}"
        case "string_type":
            hint = "; put it in quotes" if isinstance(given, bool | int | float) else ""
            return f"must be text, found {what}{hint}"
        case "string_too_short" | "too_short":
            return "must not be empty"
        case "bool_type":
            return f"must be true or false, found {what}"
        case "int_type" | "int_from_float" | "int_parsing_size":
            return f"must be a whole number, found {what}{_unquoted(given)}"
        case "float_type":
            return f"must be a number, found {what}{_unquoted(given)}"
        case "greater_than":
            return f"must be more than {limits['gt']:g}, found {what}"
        case "greater_than_equal":
            return f"must be at least {limits['ge']}, found {what}"
        case "less_than_equal":
            return f"must be at most {limits['le']}, found {what}"
        case "tuple_type":
            plain = isinstance(given, str) and not (fields or secret)
            hint = f"; write [{shortened(given)}]" if plain else ""
            return f"must be a list, found {what}{hint}"
        case "dict_type":
            return f"must be a mapping, found {what}"
        case "model_type" | "model_attributes_type":
            return f"must be a mapping with {', '.join(fields)}, found {what}"
        case _:
            return error["msg"][:1].lower() + error["msg"][1:]


def _unquoted(given: object) -> str:
    looks_right = isinstance(given, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", given)
    return "; remove the quotes" if looks_right else ""
