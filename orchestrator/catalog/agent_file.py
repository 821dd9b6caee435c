"""The text of agent.md -> AgentSpec, or all that is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.catalog.document import (
    FileRefused,
    ReadBeside,
    read_fields,
    read_json,
    split_frontmatter,
)
from orchestrator.catalog.problems import Problem, Problems, found
from orchestrator.catalog.spelling import moved, spell_network, spell_sizes, spell_time
from orchestrator.catalog.validation import Spellings, validated
from orchestrator.domain.agent import AgentSpec
from orchestrator.plain_yaml import Loc, shortened

CheckSchema = Callable[[dict[str, object]], tuple[Loc, str] | None]
"""Where in a JSON Schema something is wrong, and what; None if nothing is."""

FRONTMATTER_LINE = 2
"""Where the fields begin, below the first ---."""

NO_DESCRIPTION = (
    "is missing; write `description: …`, a sentence or two for the caller that chooses an agent"
)

PROMPT_PLACE: Loc = ("prompt",)
"""The text below the fields, as a place: the line --- above it."""

SIZE_FIELDS = ("memory", "scratch", "disk", "output")
"""Of resources: fields that may be written with a unit."""

TIME_FIELDS = ("idle_after", "stop_after", "expire_after")
"""Of session: the same, for times."""

ONE_WORD_FORMS = {"ask": "whom", "approval": "*", "workspace": "mode"}
"""Fields that may be written as one word -> what that word says of them."""

AGENT_SPELLINGS = Spellings(
    also={"": ("tools",), "resources": SIZE_FIELDS, "session": TIME_FIELDS},
    hidden=("prompt", "server_uses"),
)

OTHER_FIELDS = frozenset(("color", "$schema"))
"""Fields that change nothing: one of Claude Code's own agents, and one for editors."""


@dataclass(frozen=True)
class ParsedAgent:
    """An agent, and where its file says what."""

    agent: AgentSpec
    places: Problems
    """Nothing is wrong so far; it knows the lines."""


def any_schema(schema: Mapping[str, object]) -> None:  # noqa: ARG001 the shape of a check
    """The check that finds nothing."""
    return


def parse_agent(
    text: str,
    *,
    folder: str,
    path: Path,
    read_beside: ReadBeside,
    check_schema: CheckSchema = any_schema,
) -> ParsedAgent | tuple[Problem, ...]:
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
            problems.lines[PROMPT_PLACE] = FRONTMATTER_LINE + frontmatter.count("\n") + 1
            return ParsedAgent(spec, problems)
        return (*problems.ordered(), *schema_problems)
    if not problems.found:
        message = f"must have fields such as `name: {folder}` here, found {found(value)}"
        problems.add((), message, FRONTMATTER_LINE)
    return problems.ordered()


def _spelled_out(value: dict[str, object], problems: Problems) -> dict[str, object]:
    """The fields as AgentSpec knows them, of all the ways in which they may be written."""
    fields = {key: item for key, item in value.items() if key not in OTHER_FIELDS}
    if "prompt" in fields:
        problems.add(
            ("prompt",), "is not a field; the system prompt is the text below the last ---"
        )
        del fields["prompt"]
    if "server_uses" in fields:
        problems.add(("server_uses",), "is not a field; write `- use: NAME` under mcp_servers")
        del fields["server_uses"]
    if fields.get("model") == "inherit":
        del fields["model"]
    if "maxTurns" in fields and "max_turns" not in fields:
        fields["max_turns"] = moved(fields, ("maxTurns",), ("max_turns",), problems)
    if isinstance(fields.get("runner"), str):
        problems.lines[("runner", 0)] = problems.line_of(("runner",))
        fields["runner"] = [fields["runner"]]
    _spell_tools(fields, problems)
    _part_servers(fields, problems)
    spell_network(fields, problems)
    _spell_session(fields, problems)
    for field, short in ONE_WORD_FORMS.items():
        if field in fields and not isinstance(fields[field], dict):
            problems.aliases[(field, short)] = (field,)
            fields[field] = {short: fields[field]}
    spell_sizes(fields, problems, SIZE_FIELDS)
    return fields


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
        given = moved(fields, (field,), ("permissions", meant), problems)
        if isinstance(given, str):
            given = [rule for part in split_rules(given) if (rule := part.strip())]
        rules[meant] = given
    if rules:
        fields["permissions"] = rules


def _part_servers(fields: dict[str, object], problems: Problems) -> None:
    """Entries of mcp_servers that name a server outside are another field."""
    given = fields.get("mcp_servers")
    if isinstance(given, dict):  # as Claude Code has them
        problems.add(("mcp_servers",), "must be a list, found a mapping; write each as `- name: …`")
        del fields["mcp_servers"]
    if not isinstance(given, list):
        return
    parted: dict[str, list[object]] = {"mcp_servers": [], "server_uses": []}
    for at, entry in enumerate(given):
        field = "server_uses" if isinstance(entry, dict) and "use" in entry else "mcp_servers"
        problems.aliases[(field, len(parted[field]))] = ("mcp_servers", at)
        parted[field].append(entry)
    fields |= parted


def split_rules(text: str) -> Iterator[str]:
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


def _spell_session(fields: dict[str, object], problems: Problems) -> None:
    """`session: true`, or a mapping that says for how long; `expire_after: 7d` in it."""
    given = fields.get("session")
    if isinstance(given, bool):
        problems.lines[("session", "keep")] = problems.line_of(("session",))
        fields["session"] = {"keep": given}
        return
    if not isinstance(given, dict):
        if "session" in fields:
            allowed = "true, false, {expire_after: 7d}"
            problems.add(("session",), f"found {found(given)}; allowed: {allowed}")
            del fields["session"]
        return
    session: dict[str, object] = {"keep": True, **given}
    for field, meant in (
        ("idle_after", "idle_seconds"),
        ("stop_after", "stop_seconds"),
        ("expire_after", "expire_seconds"),
    ):
        spell_time(session, ("session", field), meant, problems)
    fields["session"] = session


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
    elif schema is not None and not isinstance(schema, dict):
        said = "must be a JSON Schema, or a file beside agent.md with one"
        problems.add(("output_schema",), f"{said}, found {found(schema)}")
        del fields["output_schema"]
    if isinstance(schema, dict) and (place is problems or not place.found):
        if wrong := check_schema(schema):
            loc, message = wrong
            place.add(loc if place is not problems else ("output_schema", *loc), message)
        fields["output_schema"] = schema
    return () if place is problems else place.ordered()


def _validated(fields: dict[str, object], folder: str, problems: Problems) -> AgentSpec | None:
    name = fields.get("name")
    if isinstance(name, str) and name != folder:
        problems.add(
            ("name",), f"found '{shortened(name)}' in the folder '{folder}'; make them the same"
        )
    if "name" not in fields:
        problems.add(("name",), f"is missing; write `name: {folder}`, as the folder is called")
    if "description" not in fields:
        problems.add(("description",), NO_DESCRIPTION)
    return validated(AgentSpec, fields, problems, AGENT_SPELLINGS)
