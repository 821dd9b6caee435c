"""Who calls, and may they? Also: may they have an agent of their own making? Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.domain.task import Wish
from orchestrator.domain.tool_lock import is_tool_name
from orchestrator.domain.tool_use import ServerUse, Verdict
from orchestrator.errors import CallerMissing, CallerRefused, RunRefused
from orchestrator.settings import Settings, check_declared

DEFAULT_CALLER = "default"
"""Who calls without a name: may run the agents that list this name, and no others."""

NEAR = 0.6
"""How alike two names must be for one to be taken for the other, misspelt; of 1."""

CHEAP_MODEL = "haiku"
"""For agents made at call time, unless their template says otherwise."""

READING_TOOLS = frozenset(("Read", "Grep", "Glob", "LS", "NotebookRead", "WebSearch", "TodoWrite"))
"""Tools that change nothing, but for the agent's own list of what to do."""


def check_caller(agent: AgentSpec, caller: str) -> None:
    """CallerRefused unless the agent's author lets this caller run it."""
    if caller not in agent.allowed_callers:
        allowed = ", ".join(agent.allowed_callers) or "nobody"
        raise CallerRefused(
            f"agent {agent.name!r} does not allow caller {caller!r}; it allows {allowed}"
            f"{did_you_mean(caller, agent.allowed_callers)}"
        )


def known_caller(named: str, otherwise: str, *, deny_missing: bool) -> str:
    """The caller by its name; without one, who that is, or CallerMissing if every caller must have
    a name.
    """
    if named:
        return named
    if deny_missing:
        raise CallerMissing(
            "this call names no caller, and the operator has set deny_on_missing_caller; set "
            "ORCHESTRATOR_CALLER for the process that calls, give --caller, or over HTTP a token "
            "of ORCHESTRATOR_HTTP_TOKENS"
        )
    return otherwise


def own_caller(settings: Settings, named: str | None = None) -> str:
    """Who calls through this process, by its user's own hand or by a client that he started; an
    empty name is none, and not who it would be without a word.
    """
    if named:
        check_declared(settings, named, "--caller")
    return known_caller(
        settings.named_caller if named is None else named,
        settings.caller if named is None else DEFAULT_CALLER,
        deny_missing=settings.deny_on_missing_caller,
    )


def misspelt(name: str, known: Iterable[str], *, declared: bool) -> str:
    """What to say of a caller's name that is probably wrong; "" if nothing is. If all callers are
    declared, another one is wrong; otherwise only one that looks like a known name is pointed out.
    """
    names = tuple(known)
    if name in names:
        return ""
    guess = did_you_mean(name, names)
    if not declared:
        return f"no caller is known as {name!r}{guess}" if guess else ""
    there = f"; there are {', '.join(names)}"
    return f"no caller is declared as {name!r}{guess or there}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest name, as the end of a sentence; "" if none is near."""
    close = difflib.get_close_matches(name, tuple(known), n=1, cutoff=NEAR)
    return f"; did you mean {close[0]!r}?" if close else ""


def narrowed(template: AgentSpec, wish: Wish) -> AgentSpec:
    """The template, made smaller: fewer tools, fewer steps, never more. RunRefused otherwise."""
    if not wish.tools:
        raise RunRefused("tools is empty: name the tools that the agent needs")
    allowed = tools_given(template)
    refused = [tool for tool in wish.tools if not any(_covers(rule, tool) for rule in allowed)]
    if refused:
        raise RunRefused(
            f"{', '.join(refused)}: not among the tools that may be given ({', '.join(allowed)}), "
            f"as the agent {template.name!r} has them"
        )
    models = models_given(template)
    if wish.model and wish.model not in models:
        raise RunRefused(
            f"{wish.model!r} is not among the models that may be given ({', '.join(models)}), as "
            f"the agent {template.name!r} has them"
        )
    # A server of which no tool is named would be allowed as a whole.
    servers = [s for s in template.mcp_servers if _names_server(wish.tools, _server_rule(s.name))]
    return template.model_copy(
        update={
            "description": wish.description or template.description,
            "permissions": Permissions(allow=wish.tools, deny=template.permissions.deny),
            "mcp_servers": tuple(servers),
            "server_uses": tuple(_narrowed_uses(template, wish.tools)),
            "max_turns": min(wish.max_steps, template.max_turns),
            "model": wish.model or models[0],
            "approval": _approval(template, wish),
            "memory": "none",
            "warm": 0,
            "output_schema": None,
            "output_format": "text",
        }
    )


def models_given(template: AgentSpec) -> tuple[str, ...]:
    """Models that an agent made of a template can have; the first is the usual one."""
    usual = template.model if "model" in template.model_fields_set else CHEAP_MODEL
    return tuple(dict.fromkeys((usual, *template.models.values())))


def tools_given(template: AgentSpec) -> tuple[str, ...]:
    """Rules for all the tools that an agent made of a template can have."""
    return tuple(dict.fromkeys((*template.permissions.allow, *_whole_servers(template))))


def _approval(template: AgentSpec, wish: Wish) -> dict[str, Verdict]:
    """What the template says of the tools that are left. Without the sandbox, what changes
    something has to be asked about too, unless the template says that it has not.
    """
    said = template.approval
    tools = {_tool(rule) for rule in wish.tools}
    kept: dict[str, Verdict] = {}
    for rule, verdict in said.items():
        tool = _tool(rule)
        of_wish = _is_of(tool, tools) or any(fnmatchcase(tool, wished) for wished in tools)
        if verdict == "deny" or rule == "*" or of_wish:
            kept[rule] = verdict
        else:  # a rule for all of an MCP server is one for each tool of it that is left
            kept = {**{left: verdict for left in tools if _is_of(left, (rule,))}, **kept}
            if verdict == "ask":  # and so is a pattern, for what it may fit
                kept |= {left: verdict for left in tools if _may_meet(left, tool)}
    if wish.sandboxed:
        return kept
    asked = [
        rule
        for rule in wish.tools
        if _tool(rule) not in READING_TOOLS
        and _tool(rule) not in wish.unasked
        and "auto" not in (said.get(rule), said.get(_tool(rule)))
    ]
    return {**dict.fromkeys(asked, "ask"), **kept}


def _may_meet(wished: str, pattern: str) -> bool:
    """Whether there may be a tool that both hold; a pattern is not compared beyond its first *."""
    if "*" not in wished:
        return fnmatchcase(wished, pattern)
    one, other = wished.partition("*")[0], pattern.partition("*")[0]
    return "*" in pattern and (one.startswith(other) or other.startswith(one))


def _whole_servers(template: AgentSpec) -> list[str]:
    """Rules for the MCP servers of which the template names no tool: all of theirs are allowed."""
    rules = [_server_rule(server.name) for server in template.mcp_servers]
    rules += [_server_rule(use.use) for use in template.server_uses]
    denied = template.permissions.deny
    named = template.permissions.allow
    return [rule for rule in rules if rule not in denied and not _names_server(named, rule)]


def _narrowed_uses(template: AgentSpec, tools: Sequence[str]) -> Iterator[ServerUse]:
    """The servers outside of which tools are named, with those alone that the template allows."""
    for use in template.server_uses:
        rule = _server_rule(use.use)
        if rule in tools:
            yield use
            continue
        named = [_tool(tool).removeprefix(f"{rule}__") for tool in tools if _is_of(tool, (rule,))]
        kept = [name for name in named if _is_within(name, use.allow)]
        if kept:
            yield use.model_copy(update={"allow": tuple(kept)})


def _is_within(name: str, patterns: Sequence[str]) -> bool:
    """Whether patterns hold a tool; a pattern is held by itself alone, since as a name it may fit
    one that allows less.
    """
    if name in patterns:
        return True
    return is_tool_name(name) and any(fnmatchcase(name, pattern) for pattern in patterns)


def _names_server(rules: Sequence[str], server: str) -> bool:
    return any(rule == server or _tool(rule).startswith(f"{server}__") for rule in rules)


def _server_rule(name: str) -> str:
    return "mcp__" + re.sub(r"[^A-Za-z0-9_-]", "_", name)


def _is_of(tool: str, servers: Iterable[str]) -> bool:
    """Whether a tool is one of these MCP servers'."""
    return any(tool.startswith(f"{server}__") for server in servers)


def _covers(rule: str, tool: str) -> bool:
    """Whether a rule of the template's holds all that another one would."""
    if rule == tool:
        return True
    of_server = rule.startswith("mcp__") and tool.startswith(f"{rule}__")
    return "(" not in rule and (of_server or rule == _tool(tool))


def _tool(rule: str) -> str:
    return rule.partition("(")[0]
