"""The text of agent.md -> AgentSpec, or all that is wrong with it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.catalog.document import read_fields, read_json, split_frontmatter
from orchestrator.catalog.problems import Problem, Problems, did_you_mean, found
from orchestrator.domain.agent import AgentSpec
from orchestrator.plain_yaml import Loc, shortened, written

CheckSchema = Callable[[dict[str, object]], str | None]
"""What is wrong with a JSON Schema, or None."""

ReadBeside = Callable[[str], tuple[Path, str]]
"""A file's name -> where it is and its text. FileRefused if it cannot be had."""

FRONTMATTER_LINE = 2
"""Where the fields begin, below the first ---."""

SIZE_FIELDS = ("memory", "scratch", "disk", "output")
"""Of resources: fields that may be written with a unit."""

TIME_FIELDS = ("idle_after", "stop_after", "expire_after")
"""Of session: the same, for times."""

SIZES_MB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024 * 1024}

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt])(?:i?b)?", re.IGNORECASE)
TIMES_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")

OTHER_FIELDS = frozenset(("color",))
"""Fields of Claude Code's own agents that change nothing here."""


class FileRefused(Exception):
    """A file beside agent.md that cannot be read; the message goes on after its name."""


def any_schema(schema: Mapping[str, object]) -> str | None:  # noqa: ARG001 the shape of a check
    """The check that finds nothing."""
    return None


def parse_agent(
    text: str,
    *,
    folder: str,
    path: Path,
    read_beside: ReadBeside,
    check_schema: CheckSchema = any_schema,
) -> AgentSpec | tuple[Problem, ...]:
    """What the text says, or everything that is wrong with it, by line. It raises nothing."""
    problems = Problems(path)
    if "\0" in text:
        problems.add(
            (), "holds a NUL character; remove it", 1 + text[: text.index("\0")].count("\n")
        )
        return problems.ordered()
    parts = split_frontmatter(text, problems)
    if parts is None:
        return problems.ordered()
    frontmatter, body = parts
    value = read_fields(frontmatter, problems, FRONTMATTER_LINE)
    if value is None and not problems.found:
        value = {}
    if isinstance(value, dict):
        fields = _spelled_out(value, problems)
        schema_problems = _read_schema(fields, problems, read_beside, check_schema)
        spec = _validated({**fields, "prompt": body.strip()}, folder, problems)
        if spec is not None and not problems.found and not schema_problems:
            return spec
        return (*problems.ordered(), *schema_problems)
    if not problems.found:
        problems.add((), f"must have fields such as `name: {folder}` here, found {found(value)}")
    return problems.ordered()


def _spelled_out(value: dict[str, object], problems: Problems) -> dict[str, object]:
    """The fields as AgentSpec knows them, of all the ways in which they may be written."""
    fields = {key: item for key, item in value.items() if key not in OTHER_FIELDS}
    if "prompt" in fields:
        problems.add(
            ("prompt",), "is not a field; the system prompt is the text below the last ---"
        )
        del fields["prompt"]
    if fields.get("model") == "inherit":
        del fields["model"]
    if "maxTurns" in fields and "max_turns" not in fields:
        fields["max_turns"] = _moved(fields, ("maxTurns",), ("max_turns",), problems)
    _spell_tools(fields, problems)
    _spell_network(fields, problems)
    _spell_session(fields, problems)
    for field, short in (("ask", "whom"), ("approval", "*")):
        if isinstance(fields.get(field), str):
            problems.lines[(field, short)] = problems.line_of((field,))
            fields[field] = {short: fields[field]}
    if isinstance(fields.get("workspace"), str):
        problems.lines[("workspace", "mode")] = problems.line_of(("workspace",))
        fields["workspace"] = {"mode": fields["workspace"]}
    _spell_sizes(fields, problems)
    return fields


def _moved(fields: dict[str, object], old: Loc, new: Loc, problems: Problems) -> object:
    problems.lines[new] = problems.line_of(old)
    return fields.pop(str(old[-1]))


def _spell_tools(fields: dict[str, object], problems: Problems) -> None:
    """`tools: Read, Bash` -> `permissions: {allow: [Read, Bash]}`, as Claude Code writes it."""
    rules: dict[str, object] = {}
    for field, meant in (("tools", "allow"), ("disallowedTools", "deny")):
        if field not in fields:
            continue
        if "permissions" in fields:
            problems.add(
                (field,), f"stands beside permissions; say it in permissions.{meant} alone"
            )
            del fields[field]
            continue
        given = _moved(fields, (field,), ("permissions", meant), problems)
        if isinstance(given, str):
            given = [rule for part in _split_rules(given) if (rule := part.strip())]
        rules[meant] = given
    if rules:
        fields["permissions"] = rules


def _split_rules(text: str) -> Iterator[str]:
    """At commas, but not inside of "Bash(a, b)". By hand: a regular expression that looks ahead
    took 20 s for 60 KB of commas.
    """
    start = depth = 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth = max(0, depth - 1)
        elif char == "," and not depth:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _spell_network(fields: dict[str, object], problems: Problems) -> None:
    """`none`, `open`, or a mapping whose mode follows from what it holds."""
    given = fields.get("network")
    if isinstance(given, dict):
        if "mode" not in given:
            fields["network"] = {"mode": "allow", **given}
    elif given in ("none", "open"):
        fields["network"] = {"mode": given}
    elif "network" in fields:
        guess = did_you_mean(given, ("none", "open")) if isinstance(given, str) else None
        problems.add(
            ("network",),
            f"found {found(given)}; allowed: none, open, or hosts as in `allow: [api.github.com]`"
            + (f"; did you mean '{guess}'?" if guess else ""),
        )
        del fields["network"]


def _spell_session(fields: dict[str, object], problems: Problems) -> None:
    """`session: true`, or a mapping that says for how long; `expire_after: 7d` in it."""
    given = fields.get("session")
    if isinstance(given, bool):
        problems.lines[("session", "keep")] = problems.line_of(("session",))
        fields["session"] = {"keep": given}
        return
    if not isinstance(given, dict):
        if "session" in fields:
            problems.add(("session",), f"must be true or false, found {found(given)}")
            del fields["session"]
        return
    session: dict[str, object] = {"keep": True, **given}
    for field, meant in (
        ("idle_after", "idle_seconds"),
        ("stop_after", "stop_seconds"),
        ("expire_after", "expire_seconds"),
    ):
        if field not in session:
            continue
        loc: Loc = ("session", field)
        time = _moved(session, loc, ("session", meant), problems)
        match = _TIME.fullmatch(time.strip()) if isinstance(time, str) else None
        if meant in session:
            problems.add(loc, f"is given as {meant} as well; remove one of them")
        elif match is None:
            problems.add(loc, f'found {found(time)}; allowed: a time, such as "90s", "30m" or "7d"')
        else:
            session[meant] = float(match[1]) * TIMES_SECONDS[match[2]]
    fields["session"] = session


def _spell_sizes(fields: dict[str, object], problems: Problems) -> None:
    """`memory: 2g` -> `memory_mb: 2048`, and the same for the other sizes."""
    given = fields.get("resources")
    if not isinstance(given, dict):
        return
    resources = dict(given)
    for field in SIZE_FIELDS:
        if field not in resources:
            continue
        loc: Loc = ("resources", field)
        size = _moved(resources, loc, ("resources", f"{field}_mb"), problems)
        match = _SIZE.fullmatch(size.strip()) if isinstance(size, str) else None
        megabytes = float(match[1]) * SIZES_MB[match[2].lower()] if match else 0.5
        if f"{field}_mb" in resources:
            problems.add(loc, f"is given as {field}_mb as well; remove one of them")
        elif not megabytes.is_integer():
            problems.add(loc, f'found {found(size)}; allowed: whole MiB, such as "512m" or "2g"')
        else:
            resources[f"{field}_mb"] = int(megabytes)
    fields["resources"] = resources


def _read_schema(
    fields: dict[str, object],
    problems: Problems,
    read_beside: ReadBeside,
    check_schema: CheckSchema,
) -> tuple[Problem, ...]:
    """Put what a schema file holds in the place of its name; return what is wrong in that file."""
    schema = fields.get("output_schema")
    place = problems
    if isinstance(schema, str):
        name = schema
        fields["output_schema"] = None
        try:
            path, text = read_beside(name)
        except FileRefused as exc:
            problems.add(("output_schema",), f"'{shortened(name)}' {exc}")
            return ()
        place = Problems(path)
        schema = read_json(text, place) if name.endswith(".json") else read_fields(text, place)
        if not isinstance(schema, dict) and not place.found:
            place.add((), f"must be a JSON Schema, which is a mapping, found {found(schema)}")
    if isinstance(schema, dict) and (place is problems or not place.found):
        wrong = check_schema(schema)
        if wrong:
            place.add(() if place is not problems else ("output_schema",), wrong)
        fields["output_schema"] = schema
    return () if place is problems else place.ordered()


def _validated(fields: dict[str, object], folder: str, problems: Problems) -> AgentSpec | None:
    name = fields.get("name")
    if isinstance(name, str) and name != folder:
        problems.add(
            ("name",), f"found '{shortened(name)}' in the folder '{folder}'; make them the same"
        )
    try:
        # Strict, and by way of JSON: "30000" is not a number, but a list will do for a tuple.
        return AgentSpec.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as exc:
        known = {(problem.line, problem.field) for problem in problems.found}
        for error in exc.errors(include_url=False):
            if error["type"] == "default_factory_not_called":  # because of another one
                continue
            loc = tuple(part for part in error["loc"] if part != "[key]")
            if (problems.line_of(loc), written(loc)) not in known:
                _report(loc, error, folder, problems)
        return None


def _report(loc: Loc, error: ErrorDetails, folder: str, problems: Problems) -> None:
    if loc == ("name",) and error["type"] == "missing":
        problems.add(loc, f"is missing; write `name: {folder}`, as the folder is called")
    elif error["type"] == "extra_forbidden":
        problems.add(loc, _unknown_field(loc))
    else:
        said = _sentence(error, secret="env" in loc[:-1] or "args" in loc[:-1])
        field, _, rest = said.partition(" ")
        if error["type"] == "value_error" and field in _fields_at(loc):
            loc, said = (*loc, field), rest  # several fields do not fit: it begins with one of them
        problems.add(loc, said)


def _unknown_field(loc: Loc) -> str:
    known = _fields_at(loc[:-1])
    guess = did_you_mean(str(loc[-1]), known)
    return (
        f"unknown field; did you mean '{guess}'?"
        if guess
        else f"unknown field; allowed: {', '.join(known)}"
    )


def _fields_at(loc: Loc) -> tuple[str, ...]:
    model: type[BaseModel] | None = AgentSpec
    for part in loc:
        if isinstance(part, str) and model is not None:
            field = model.model_fields.get(part)
            model = next(_models_in(field.annotation), None) if field else None
    if model is None:
        return ()
    extra = {"resources": SIZE_FIELDS, "session": TIME_FIELDS}.get(str(loc[-1]) if loc else "", ())
    return (*(name for name in model.model_fields if loc or name != "prompt"), *extra)


def _models_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _sentence(error: ErrorDetails, *, secret: bool) -> str:
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
        case "string_too_short":
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
            return f"must be a list, found {what}"
        case "dict_type":
            return f"must be a mapping, found {what}"
        case "model_type" | "model_attributes_type":
            loc = tuple(error["loc"])
            return f"must be a mapping with {', '.join(_fields_at(loc))}, found {what}"
        case _:
            return error["msg"][:1].lower() + error["msg"][1:]


def _unquoted(given: object) -> str:
    looks_right = isinstance(given, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", given)
    return "; remove the quotes" if looks_right else ""
