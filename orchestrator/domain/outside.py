"""OutsideRules: what agents that run elsewhere may call of our servers, and who may be which."""

from __future__ import annotations

import re

from orchestrator.domain import Frozen

RULES_NAME = ".mcp-gateway-rules.json"

DEFAULT_AGENT = "default"
"""The agent that a call without an agent_id is, and one that the rules do not know; the least."""

AGENT_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


PATTERN_SIGNS = "*?["


def is_pattern(text: str) -> bool:
    """Whether a text of the rules stands for several names."""
    return any(sign in text for sign in PATTERN_SIGNS)


class RuleSide(Frozen):
    """What is allowed, or what is denied. Every text is a pattern of fnmatchcase."""

    servers: tuple[str, ...] = ()
    tools: dict[str, tuple[str, ...]] = {}
    """By server: tools."""


class OutsideAgent(Frozen):
    """What one agent may call."""

    allow: RuleSide = RuleSide()
    deny: RuleSide = RuleSide()


class OutsideRules(Frozen):
    """What .mcp-gateway-rules.json says."""

    agents: dict[str, OutsideAgent] = {}
    deny_on_missing_agent: bool = True
    """Whether a call that names no agent, or an unknown one, is refused instead of being
    `default`'s."""
    callers: dict[str, tuple[str, ...]] = {}
    """Which agents a caller may be, as patterns; a caller is known by its token."""


class Ruling(Frozen):
    """What the rules say of a server or a tool, and where they say it."""

    allowed: bool
    rule: str = ""
    """Such as "agents.back-end.deny.tools.database[0]"; empty if no rule says anything."""
    why: str


class OutsideIdentity(Frozen):
    """Which agent a call is made as."""

    agent: str
    claimed: str = ""
    """The agent_id that came with the call."""
    by: str
    """What made it this agent: "agent_id", "token", "GATEWAY_DEFAULT_AGENT" or "default"."""


class OutsideCall(Frozen):
    """What an agent outside asked for, besides the decision about it."""

    number: int = 0
    """Of the decision in the audit."""
    agent_id: str = ""
    """The agent that the call was made as; empty if it could be none."""
    claimed: str = ""
    """The agent_id that came with it."""
    known_by: str = ""
    """What made it this agent."""
    operation: str
    """The tool of ours that was called, such as execute_tool."""
    server: str = ""
    tool: str = ""
    rule: str = ""
    """Which rule let or refused it."""
    code: str = ""
    """How it failed, or why it was refused; empty if neither."""
    latency_ms: float | None = None
    """How long it took; None as long as it is under way."""
