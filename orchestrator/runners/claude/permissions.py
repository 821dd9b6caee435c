"""An agent's rules -> the claude CLI's flags; and which of its questions the author wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.runners.claude.tools import (
    MCP,
    names_server,
    rule_tool,
    server_names,
    server_prefix,
)
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
    more_tools: Sequence[str] = (),
) -> list[str]:
    """What may run, what is asked about, and whether the CLI can ask us at all.

    The MCP `servers` may be used unless a rule says otherwise. All of it is arguments and not a
    settings file, which the agent could rewrite.
    """
    flags = ["--permission-mode", "dontAsk"]
    if approvals:
        flags = ["--permission-mode", "default", "--permission-prompt-tool", "stdio"]
    parted = _parted_tools(permissions.deny, ask_rules)
    named = (*permissions.allow, *ask_rules, *more_tools)
    tools = dict.fromkeys(map(rule_tool, named))
    settings: dict[str, object] = {}
    if ask_rules:
        ask = [_EVERY_CALL[tool] for tool in parted]
        ask += [rule for rule in ask_rules if rule_tool(rule) not in parted]
        settings["permissions"] = {"ask": ask}
    if "WebFetch" in tools:
        # Else it asks a host of its maker's whether the domain is safe. The gateway decides that.
        settings["skipWebFetchPreflight"] = True
    if settings:
        flags.append(f"--settings={json.dumps(settings)}")
    flags.append(f"--tools={','.join(tool for tool in tools if not tool.startswith(MCP))}")
    # Else 2.1.197 takes "(touch x)" for something else than every call, and runs it.
    allow = [rule for rule in permissions.allow if rule_tool(rule) not in parted]
    allow += [*_server_rules(permissions, servers), *more_tools]
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


def is_offered(agent: AgentSpec, tool: str) -> bool:
    """Whether the model is to know of a tool: not of one of an MCP server that no rule lets it
    call. The CLI would show it, and refuse the call.
    """
    if not tool.startswith(MCP):
        return True
    whole = _server_rules(agent.permissions, server_names(agent))
    return _is_named(tool, (*agent.permissions.allow, *agent.ask_rules, *whole))


def _server_rules(permissions: Permissions, servers: Iterable[str]) -> list[str]:
    """Rules that allow servers of which the author names no tool."""
    named = [rule_tool(rule) for rule in permissions.allow]
    return [
        server_prefix(server)
        for server in servers
        if server_prefix(server) not in permissions.deny
        and not any(names_server(tool, server) for tool in named)
    ]


def _parted_tools(deny_rules: Sequence[str], ask_rules: Sequence[str]) -> list[str]:
    """Tools that are asked about as a whole, and denied in part."""
    denied = {rule_tool(rule) for rule in deny_rules}
    whole = _whole_tools(ask_rules)
    return [tool for tool in _EVERY_CALL if tool in denied and tool in whole]


def _whole_tools(rules: Sequence[str]) -> frozenset[str]:
    return frozenset(rule_tool(rule) for rule in rules if "(" not in rule or rule.endswith("(*)"))


def _is_named(tool: str, rules: Sequence[str]) -> bool:
    """Whether a rule names the tool, or the MCP server that has it."""
    names = {rule_tool(rule) for rule in rules}
    servers = (name for name in names if name.startswith(MCP))
    parts = tuple(name[:-1] if name.endswith("*") else f"{name}__" for name in servers)
    return tool in names or tool.startswith(parts)
