"""AgentSpec -> the text of an agent.md that says the same. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from orchestrator.domain.agent import AgentSpec

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ,.()/_'-]*")
"""Texts that need no quotes where they have a line for themselves."""

_PLAIN_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
"""The same in a list."""

_NO_TEXT = frozenset(("true", "false", "null", "~"))
"""Words that would be read as something else."""

SHORT_FORMS = {"workspace": "mode", "ask": "whom", "approval": "*", "network": "mode"}
"""Mappings that can be written as the value of one field, if they hold no other."""


def agent_text(agent: AgentSpec, comments: Iterable[str] = ()) -> str:
    """An agent.md with what differs from the defaults; the comments stand above the fields."""
    lines = ["---", *(f"# {line}".rstrip() for line in comments)]
    for field, value in _differing(agent).items():
        lines += _field(field, value)
    return "\n".join((*lines, "---", "", agent.prompt.strip(), ""))


def _differing(agent: AgentSpec) -> dict[str, object]:
    """The fields without which it would be another agent."""
    fields = agent.model_dump(mode="json", exclude_defaults=True, exclude={"prompt"})
    fields = {"name": agent.name, "description": agent.description, **fields}
    for field in [field for field in fields if field not in ("name", "description")]:
        rest = {key: value for key, value in fields.items() if key != field}
        if AgentSpec.model_validate({**rest, "prompt": agent.prompt}) == agent:
            fields = rest
    return fields


def _field(field: str, value: object) -> list[str]:
    short = SHORT_FORMS.get(field)
    if isinstance(value, dict):
        if set(value) == {short}:
            return [f"{field}: {_flow(value[short])}"]
        if field == "network" and value.get("mode") == "allow":
            value = {key: item for key, item in value.items() if key != "mode"}
        return [f"{field}:", *(f"  {_flow(key)}: {_flow(item)}" for key, item in value.items())]
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT:
        return [f"{field}: {value.rstrip()}"]
    return [f"{field}: {_flow(value)}"]


def _flow(value: object) -> str:
    """A value on one line, as it can stand anywhere."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN_WORD.fullmatch(value) and value.lower() not in _NO_TEXT:
        return value
    return "".join(map(_escaped, json.dumps(value, ensure_ascii=False)))


def _escaped(char: str) -> str:
    """Characters that YAML does not allow, or takes for the end of a line."""
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
