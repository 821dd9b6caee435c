"""An agent's rules -> the claude CLI's flags; and which of its questions the author wanted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.runners.contract import RuleDecision
from orchestrator.runners.rule_names import MCP, is_named, rule_tool, server_rules, whole_tools
from orchestrator.runners.signs import PermissionAsked

_EVERY_CALL = {"Bash": "Bash(**)", "WebFetch": "WebFetch(domain:*)"}
"""Rules that ask about every call of a tool, and still let one go first that denies some of them:
with "Bash" or "Bash(*)", 2.1.197 asks about what is denied, and runs it when told to."""


ONE_BY_ONE = (
    "this has several parts, and not all of them may run; make each a call of its own, to see which"
)


def permission_flags(
    permissions: Permissions,
    *,
    servers: Iterable[str],
    ask_rules: Sequence[str],
    more_tools: Sequence[str] = (),
) -> list[str]:
    """What may run, what is asked about, and whether the CLI can ask us at all.

    The MCP `servers` may be used unless a rule says otherwise. All of it is arguments and not a
    settings file, which the agent could rewrite.
    """
    flags = ["--permission-mode", "dontAsk"]
    if ask_rules:
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
    allow += [*server_rules(permissions, servers), *more_tools]
    if allow:
        flags.append(f"--allowedTools={','.join(allow)}")
    if permissions.deny:
        flags.append(f"--disallowedTools={','.join(permissions.deny)}")
    return flags


def decide(agent: AgentSpec, asked: PermissionAsked) -> RuleDecision:
    """The author said to ask about this call, or it may not run. The CLI also asks where no rule
    says so, and any process in the container can ask in its place: about tools that agent.md does
    not know.
    """
    asks = is_asked_about(asked, agent.permissions.allow, agent.ask_rules)
    why = "" if asks or asked.why != "parts" else ONE_BY_ONE
    return RuleDecision(verdict="ask" if asks else "deny", why=why)


def is_asked_about(
    asked: PermissionAsked, allow_rules: Sequence[str], ask_rules: Sequence[str]
) -> bool:
    """Whether the author said to ask about this call."""
    if not is_named(asked.tool, (*allow_rules, *ask_rules)):
        return False
    if asked.why == "rule" or asked.tool in whole_tools(ask_rules):
        return True
    # Of a tool that is allowed as a whole, no part waits for want of a rule.
    return asked.why == "parts" and asked.tool in whole_tools(allow_rules)


def _parted_tools(deny_rules: Sequence[str], ask_rules: Sequence[str]) -> list[str]:
    """Tools that are asked about as a whole, and denied in part."""
    denied = {rule_tool(rule) for rule in deny_rules}
    whole = whole_tools(ask_rules)
    return [tool for tool in _EVERY_CALL if tool in denied and tool in whole]
