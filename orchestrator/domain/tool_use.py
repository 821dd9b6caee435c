"""ServerUse: which tools of a server outside its container an agent may use, and how."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, JsonValue

from orchestrator.domain import Frozen

RESOURCE, PROMPT = "resource:", "prompt:"
"""How a pattern begins that means resources by their URI, or prompts by their name, not tools."""

Verdict = Literal["auto", "ask", "deny"]


def _check_pattern(text: str) -> str:
    body = text.removeprefix(RESOURCE)
    if body == text:
        body = text.removeprefix(PROMPT)
        if not re.fullmatch(r"[A-Za-z0-9_.*?\[\]!-]{1,128}", body):
            raise ValueError(
                'must be the name of a tool, or a pattern such as "get_*"; "resource:" and '
                '"prompt:" before it mean those'
            )
    elif not body.isprintable() or not 0 < len(body) <= 1024:
        raise ValueError('must be a URI or a pattern of one, such as "resource:notes://*"')
    return text


def check_server_name(text: str) -> str:
    """The same text; ValueError, in words that go on after it, if no server can be called so."""
    if len(text) > 32 or not re.fullmatch(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*", text):
        raise ValueError(
            'must be letters and digits, with single "-" and "_" between them, 32 at most: its '
            "tools are called mcp__NAME__TOOL"
        )
    return text


ServerName = Annotated[str, AfterValidator(check_server_name)]
"""What a server of the operator's is called."""

ToolPattern = Annotated[str, AfterValidator(_check_pattern)]
"""A tool's name, in which * ? and [...] stand for others; or resources, or prompts."""


class ServerUse(Frozen):
    """What an agent may do with one server. Nothing that is not allowed here."""

    use: ServerName
    """The server, as its folder in agents/servers is called."""
    allow: Annotated[tuple[ToolPattern, ...], Field(min_length=1)]
    """Tools that it may call; `["*"]` has to be said."""
    deny: tuple[ToolPattern, ...] = ()
    """Tools that it may not, whatever is allowed."""
    approve: dict[ToolPattern, Verdict] = {}
    """Which calls wait for approval: auto, ask or deny; "*" is what no other pattern here names."""
    arguments: dict[ToolPattern, dict[str, JsonValue]] = {}
    """Values that are not the model's to choose; it does not see these arguments."""
    max_calls: Annotated[int, Field(ge=1, le=100_000)] = 1000
    """In one run."""
