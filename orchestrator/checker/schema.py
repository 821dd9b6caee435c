"""The fields of agent.md as a JSON Schema, for editors: made from the nouns, with all the ways in
which a field may be written. What it accepts the checker may still refuse; never the reverse.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from orchestrator.catalog.agent_file import SIZE_FIELDS, TIME_FIELDS
from orchestrator.domain.agent import (
    RULE,
    AgentSpec,
    Asking,
    McpServer,
    Network,
    Permissions,
    Resources,
    RunnerName,
    Secret,
    Session,
    Workspace,
)
from orchestrator.domain.tool_use import ServerUse, Verdict
from orchestrator.runners.known import RUNNERS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

NOUNS = (
    *(AgentSpec, Asking, McpServer, Network, Permissions, Resources, Secret, ServerUse, Session),
    Workspace,
)
"""All that is written in agent.md; their fields have a line of text each."""

UNWRITTEN = ("prompt", "server_uses")
"""Fields of an agent that are written elsewhere: below the fields, and under mcp_servers."""

SIZE = r"^[0-9]+(\.[0-9]+)?\s*[kmgtKMGT]([iI]?[bB])?$"
TIME = r"^[0-9]+(\.[0-9]+)?\s*[smhd]$"

Schema = dict[str, Any]


def agent_schema() -> Schema:
    """Of the part of agent.md between its two lines ---."""
    made = AgentSpec.model_json_schema()
    nouns: dict[str, Schema] = {noun.__name__: made["$defs"][noun.__name__] for noun in NOUNS[1:]}
    fields: dict[str, Schema] = made["properties"]
    for noun in NOUNS:
        _describe(noun, fields if noun is AgentSpec else nouns[noun.__name__]["properties"])
    for name in UNWRITTEN:
        del fields[name]
    _add_spellings(fields, nouns)
    return {
        "$schema": DIALECT,
        "title": "agent.md",
        "description": "The fields of an agent, between the two lines --- of its agent.md.",
        "type": "object",
        "required": made["required"],
        "additionalProperties": False,
        "properties": {**_plain(fields), **_fields_of_others()},
        "$defs": {name: _plain(noun) for name, noun in made["$defs"].items()},
    }


def _add_spellings(fields: dict[str, Schema], nouns: dict[str, Schema]) -> None:
    """What may be written in more than one way."""
    for noun, names, pattern in (("Resources", SIZE_FIELDS, SIZE), ("Session", TIME_FIELDS, TIME)):
        nouns[noun]["properties"] |= {
            name: {"type": "string", "pattern": pattern} for name in names
        }
    nouns["Network"]["properties"]["mode"]["default"] = "allow"
    nouns["Session"]["properties"]["keep"]["default"] = True
    for name, short in (
        ("network", {"enum": ["none", "open"]}),
        ("session", {"type": "boolean"}),
        ("workspace", {"enum": nouns["Workspace"]["properties"]["mode"]["enum"]}),
        ("ask", {"enum": nouns["Asking"]["properties"]["whom"]["enum"]}),
        ("approval", {"enum": list(get_args(Verdict))}),
        ("runner", {"enum": list(get_args(RunnerName))}),
    ):
        described = fields[name].pop("description", "")
        fields[name].pop("default", None)
        fields[name] = {"description": described, "anyOf": [short, fields[name]]}
    fields["mcp_servers"]["items"] = {"anyOf": [_ref(McpServer), _ref(ServerUse)]}
    fields["output_schema"]["anyOf"].append({"type": "string", "minLength": 1})
    tools = {tool for runner in RUNNERS.values() for tool in runner.tools.built_in}
    for field in ("allow", "deny"):
        rules = nouns["Permissions"]["properties"][field]
        rules["items"] = {"anyOf": [{"enum": sorted(tools)}, rules["items"]]}


def _fields_of_others() -> dict[str, Schema]:
    """Names that Claude Code's own agents have, and one for editors."""
    rules = {"type": "array", "items": {"type": "string", "pattern": f"^({RULE})$"}}
    either = {"anyOf": [{"type": "string"}, rules]}
    return {
        "tools": {"description": "permissions.allow, as Claude Code writes it", **either},
        "disallowedTools": {"description": "permissions.deny, as Claude Code writes it", **either},
        "maxTurns": {
            "description": "max_turns, as Claude Code writes it",
            "type": "integer",
            "minimum": 1,
            "maximum": 1000,
        },
        "color": {"description": "Changes nothing here"},
        "$schema": {"description": "Where this schema is, for editors", "type": "string"},
    }


def _ref(noun: type[BaseModel]) -> Schema:
    return {"$ref": f"#/$defs/{noun.__name__}"}


def _describe(noun: type[BaseModel], properties: dict[str, Schema]) -> None:
    for name, line in _lines_of(noun).items():
        if name in properties:
            properties[name]["description"] = line


@cache
def _lines_of(noun: type[BaseModel]) -> dict[str, str]:
    """The line of text under each field of a noun, in its source."""
    tree = ast.parse(Path(inspect.getfile(noun)).read_text())
    (found,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == noun.__name__
    ]
    return dict(_texts(found.body))


def _texts(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, " ".join(text.value.value.split())


def _plain(schema: Any) -> Any:
    """Without the titles that are made of names, which an editor shows anyway; and where keys have
    a pattern, no others.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "patternProperties" in schema else {}
    kept = {
        key: _plain(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }
    return kept | closed
