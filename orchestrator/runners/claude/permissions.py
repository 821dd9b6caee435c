"""An agent's rules -> the claude CLI's flags; and which of its questions the author wanted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from orchestrator.domain.agent import Permissions
from orchestrator.runners.signs import PermissionAsked

_EVERY_CALL = {"Bash": "Bash(**)", "WebFetch": "WebFetch(domain:*)"}
"""Rules that ask about every call of a tool, and still let one go first that denies some of them:
with "Bash" or "Bash(*)", 2.1.197 asks about what is denied, and runs it when told to."""


def permission_flags(
    permissions: Permissions,
    *,
    servers: Iterable[str],
    ask_rules: Sequence[str],
    approvals: bool,
) -> list[str]:
    """What may run, what is asked about, and whether the CLI can ask us at all.

    The MCP `servers` may be used unless a rule says otherwise. All of it is arguments and not a
    settings file, which the agent could rewrite.
    """
    flags = ["--permission-mode", "dontAsk"]
    if approvals:
        flags = ["--permission-mode", "default", "--permission-prompt-tool", "stdio"]
    parted = _parted_tools(permissions.deny, ask_rules)
    if ask_rules:
        ask = [_EVERY_CALL[tool] for tool in parted]
        ask += [rule for rule in ask_rules if _tool(rule) not in parted]
        flags.append("--settings=" + json.dumps({"permissions": {"ask": ask}}))
    tools = dict.fromkeys(_tool(rule) for rule in (*permissions.allow, *ask_rules))
    flags.append(f"--tools={','.join(tool for tool in tools if not tool.startswith('mcp__'))}")
    # Else 2.1.197 takes "(touch x)" for something else than every call, and runs it.
    allow = [rule for rule in permissions.allow if _tool(rule) not in parted]
    allow += _server_rules(permissions, servers)
    if allow:
        flags.append(f"--allowedTools={','.join(allow)}")
    if permissions.deny:
        flags.append(f"--disallowedTools={','.join(permissions.deny)}")
    return flags


def is_asked_about(
    asked: PermissionAsked, allow_rules: Sequence[str], ask_rules: Sequence[str]
) -> bool:
    """Whether the author said to ask about this call. The CLI also asks where no rule says so, and
    any process in the container can ask in its place: about tools that agent.md does not know.
    """
    if not _is_named(asked.tool, (*allow_rules, *ask_rules)):
        return False
    if asked.why == "rule" or asked.tool in _whole_tools(ask_rules):
        return True
    # Of a tool that is allowed as a whole, no part waits for want of a rule.
    return asked.why == "parts" and asked.tool in _whole_tools(allow_rules)


def _server_rules(permissions: Permissions, servers: Iterable[str]) -> list[str]:
    """Rules that allow servers of which the author names no tool."""
    named = [_tool(rule) for rule in permissions.allow]
    rules = ["mcp__" + re.sub(r"[^A-Za-z0-9_-]", "_", name) for name in servers]  # the CLI's way
    return [
        rule
        for rule in rules
        if rule not in permissions.deny
        and not any(tool == rule or tool.startswith(rule + "__") for tool in named)
    ]


def _parted_tools(deny_rules: Sequence[str], ask_rules: Sequence[str]) -> list[str]:
    """Tools that are asked about as a whole, and denied in part."""
    denied = {_tool(rule) for rule in deny_rules}
    whole = _whole_tools(ask_rules)
    return [tool for tool in _EVERY_CALL if tool in denied and tool in whole]


def _whole_tools(rules: Sequence[str]) -> frozenset[str]:
    return frozenset(_tool(rule) for rule in rules if "(" not in rule or rule.endswith("(*)"))


def _is_named(tool: str, rules: Sequence[str]) -> bool:
    """Whether a rule names the tool, or the MCP server that has it."""
    names = {_tool(rule) for rule in rules}
    servers = (name for name in names if name.startswith("mcp__"))
    parts = tuple(name[:-1] if name.endswith("*") else f"{name}__" for name in servers)
    return tool in names or tool.startswith(parts)


def _tool(rule: str) -> str:
    return rule.partition("(")[0]
