"""What others' agent files say about tools -> permissions, and on which workspace. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from orchestrator.catalog.foreign.draft import Draft, listed
from orchestrator.catalog.foreign.front_matter import plain_key
from orchestrator.catalog.foreign.names import agent_name
from orchestrator.catalog.foreign.tools import (
    CLI_TOOLS,
    LOCAL_TOOLS,
    WEB_FETCH,
    split_names,
    tool_meaning,
)
from orchestrator.catalog.problems import NEAR_ENOUGH, did_you_mean, found
from orchestrator.domain.agent import EDITING_TOOLS
from orchestrator.plain_yaml import shortened


def read_tools(draft: Draft, field: str, value: object) -> None:
    """Which tools are named; what they are here is said when all fields are read."""
    draft.tools_field = field
    if plain_key(field) == "allowedtools":
        draft.changed(field, "is read as `tools`, which agents have in its place")
    if isinstance(value, dict):
        on = [name for name, allowed in value.items() if allowed is True]
        off = [name for name, allowed in value.items() if allowed is False and name != "*"]
        if odd := [name for name, allowed in value.items() if not isinstance(allowed, bool)]:
            draft.left_out(field, f"left out: {listed(odd)} (neither true nor false)")
        draft.denied += [(field, name) for name in off]
        draft.tools = None if off and not on and "*" not in value else on
        return
    draft.tools = _tool_names(draft, field, value)


def read_disallowed(draft: Draft, field: str, value: object) -> None:
    """Which tools it may not use."""
    draft.denied += [(field, name) for name in _tool_names(draft, field, value)]


def _tool_names(draft: Draft, field: str, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return list(split_names(value))
    if isinstance(value, list):
        if odd := [item for item in value if not isinstance(item, str)]:
            draft.left_out(field, f"must hold names of tools; left out: {found(odd[0])}")
        return [name for item in value if isinstance(item, str) for name in split_names(item)]
    draft.left_out(field, f"must be names of tools, found {found(value)}; it allows nothing")
    return []


def read_permissions(draft: Draft) -> None:
    """Put together what the file says about tools: which it may use, and on what."""
    dialect = draft.dialect
    named = draft.tools
    allow = list(dialect.without_tools) if named is None else _allowed(draft, named)
    deny = _deny_rules(draft)
    whole = {rule for rule in deny if "(" not in rule}
    if draft.read_only:
        whole |= EDITING_TOOLS
        draft.fields["workspace"] = {"mode": "ro"}
    allow = [rule for rule in dict.fromkeys(allow) if _tool(rule) not in whole]
    if WEB_FETCH in map(_tool, allow):
        allow = [rule for rule in allow if _tool(rule) != WEB_FETCH]
        draft.left_out(
            draft.tools_field,
            "left out: WebFetch (for fetching from hosts, and this file cannot open a network)",
            f"network: {{allow: [docs.example.org]}}  # and {WEB_FETCH} under permissions.allow",
        )
    deny = [rule for rule in deny if "(" in rule and _tool(rule) in map(_tool, allow)]
    draft.fields["permissions"] = {"allow": allow, "deny": deny}
    edits = not EDITING_TOOLS.isdisjoint(map(_tool, allow))
    if named is None and dialect.without_tools:
        where = "a copy of the workspace" if edits or _copies(draft) else "a read-only workspace"
        draft.changed(
            "",
            f"names no tools, which is {dialect.unsaid}; here it may use {listed(allow)}, on "
            f"{where} and without network",
            "permissions: {allow: [Glob, Grep, Read]}  # to let it read only",
        )
    if draft.asks:
        draft.fields["ask"] = {"whom": "user"}


def _allowed(draft: Draft, names: Iterable[str]) -> list[str]:
    """The rules that names stand for; a note for those that stand for something else or nothing."""
    rules: list[str] = []
    by_kind: dict[str, list[str]] = {}
    renamed: list[str] = []
    agents: list[str] = []
    for name in names:
        meaning = tool_meaning(name)
        if meaning.kind == "tool":
            rules += meaning.rules
            if meaning.rules != (name,):
                renamed.append(f"{shortened(name)} is {listed(meaning.rules)}")
        elif meaning.kind == "every":
            rules += LOCAL_TOOLS
            renamed.append(f"{name} is {listed(LOCAL_TOOLS)}")
        else:
            by_kind.setdefault(meaning.kind, []).append(name)
            agents += meaning.rules
    field = draft.tools_field
    if renamed:
        draft.changed(field, f"has other names here: {'; '.join(renamed)}")
    if asking := by_kind.get("asks"):
        draft.asks = True
        draft.changed(field, f"has other names here: {listed(asking)} is ask_parent, `ask: user`")
    if running := by_kind.get("agent"):
        wanted = ", ".join(agent_name(name, "agent") for name in agents) or "NAME"
        draft.left_out(
            field,
            f"left out: {listed(running)} (for running other agents, which this file cannot allow)",
            f"subagents: [{wanted}]  # which list this agent in their allowed_callers",
        )
    if tools := by_kind.get("server"):
        uses = ", ".join(
            f"{{use: {name}, allow: [{', '.join(map(json.dumps, allow))}]}}"
            for name, allow in _servers(tools).items()
        )
        draft.left_out(
            field,
            f"left out: {listed(tools)} (of MCP servers, which this file cannot start)",
            f"mcp_servers: [{uses}]  # servers in the folder servers/ beside the agents",
        )
    if tools := by_kind.get("not needed"):
        draft.left_out(field, f"left out: {listed(tools)} (not for an agent in a container)")
    if tools := by_kind.get("odd pattern"):
        draft.left_out(field, f"left out: {listed(tools)} (a pattern cannot have parentheses)")
    if tools := by_kind.get("unknown"):
        draft.left_out(field, f"left out: {_guessed(tools)} (no tool is known by that name)")
    return rules


def _guessed(names: Iterable[str]) -> str:
    """Names that are none, each with what was probably meant."""
    guesses = {name: did_you_mean(_tool(name), CLI_TOOLS, NEAR_ENOUGH) for name in names}
    return listed(
        f"{shortened(name)} - did you mean {guess}?" if guess else name
        for name, guess in guesses.items()
    )


def _servers(tools: Iterable[str]) -> dict[str, list[str]]:
    """Whose tools these are, and which, of names such as mcp__github__get_issue and
    github/get_issue; all of a server's, where it is named alone.
    """
    found: dict[str, list[str]] = {}
    for tool in tools:
        name = re.sub(r"^mcp__?", "", tool, flags=re.IGNORECASE)
        server, *rest = re.split(r"__|/", name, maxsplit=1)
        named = re.sub(r"[^A-Za-z0-9_.*-]", "?", rest[0])[:128] if rest and rest[0] else "*"
        found.setdefault(agent_name(server, "server"), []).append(named)
    return {
        server: ["*"] if "*" in names else list(dict.fromkeys(names))
        for server, names in found.items()
    }


def _deny_rules(draft: Draft) -> list[str]:
    rules: list[str] = []
    for field, name in draft.denied:
        meaning = tool_meaning(name)
        rules += meaning.rules if meaning.kind == "tool" else []
        rules += LOCAL_TOOLS if meaning.kind == "every" else ()
        if meaning.kind == "odd pattern":
            rules.append(_tool(name))
            draft.changed(field, f"denies all of {_tool(name)}: a pattern cannot have parentheses")
        if meaning.kind == "unknown":
            draft.left_out(field, f"denies nothing: {_guessed([name])} (no tool is known so)")
    return rules


def _copies(draft: Draft) -> bool:
    return draft.fields.get("workspace") == {"mode": "copy"}


def _tool(rule: str) -> str:
    return rule.partition("(")[0]
