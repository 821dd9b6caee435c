"""Which agent is it that calls from outside, and what may it call? Pure.

One function decides and explains. Lists, refusals and the audit show what it returned: an
explanation that walks the rules by itself will one day say "allowed" of what was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from orchestrator.domain import Frozen
from orchestrator.domain.outside import (
    AGENT_ID,
    DEFAULT_AGENT,
    OutsideIdentity,
    OutsideRules,
    RuleSide,
    Ruling,
    is_pattern,
)
from orchestrator.errors import AgentIdInvalid, FallbackNotInRules, NoFallback
from orchestrator.plain_yaml import Loc, shortened, written


class OutsideCaller(Frozen):
    """Who is at the other end of the connection, as far as that is known."""

    name: str = DEFAULT_AGENT
    """Of its token, or of its process; `default` if neither says."""
    by: str = "process"
    """How it is known: "token"; "process", which its user started; or "nothing"."""


# What may it call?


def decide(rules: OutsideRules, agent: str, server: str, tool: str | None = None) -> Ruling:
    """Whether an agent may use a server, or one tool of it, and by which rule.

    A denial wins over everything. A server that is allowed has all its tools allowed, unless
    `allow.tools` names some of them.
    """
    found = rules.agents.get(agent)
    if found is None:
        return Ruling(allowed=False, why=f"the rules have no agent {_said(agent)}")
    here: Loc = ("agents", agent)
    if denied := _first(_servers(found.deny, (*here, "deny")), server):
        return denied.ruling(False, f"denies the server {_said(server)}")
    allowed = _first(_servers(found.allow, (*here, "allow")), server)
    if allowed is None:
        why = f"no rule allows {_said(agent)} the server {_said(server)}"
        return Ruling(allowed=False, why=why)
    if tool is None:
        return allowed.ruling(True, f"allows the server {_said(server)}")
    keys = [key for key in found.deny.tools if fnmatchcase(server, key)]
    if denied := _first(_tools(found.deny, keys, (*here, "deny")), tool):
        return denied.ruling(False, f"denies the tool {_said(tool)}")
    keys = _most_explicit(found.allow.tools, server)
    if not keys:
        return allowed.ruling(True, f"allows the server {_said(server)}, and so all its tools")
    if named := _first(_tools(found.allow, keys, (*here, "allow")), tool):
        return named.ruling(True, f"allows the tool {_said(tool)}")
    lists = " and ".join(written((*here, "allow", "tools", key)) for key in keys)
    return Ruling(allowed=False, why=f"nothing in {lists} allows the tool {_said(tool)}")


def tool_patterns(
    rules: OutsideRules, agent: str, server: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Which tools of a server an agent may call, and which of these it may not; None if it may not
    use the server at all.
    """
    if not decide(rules, agent, server).allowed:
        return None
    allow, deny = rules.agents[agent].allow.tools, rules.agents[agent].deny.tools
    allowed = [text for key in _most_explicit(allow, server) for text in allow[key]]
    denied = [text for key in deny if fnmatchcase(server, key) for text in deny[key]]
    return tuple(allowed) or ("*",), tuple(denied)


class _Rule(NamedTuple):
    """One text of the rules, and where it stands."""

    pattern: str
    loc: Loc

    def ruling(self, allowed: bool, why: str) -> Ruling:
        rule = written(self.loc)
        return Ruling(allowed=allowed, rule=rule, why=f"{rule} ({_said(self.pattern)}) {why}")


def _servers(side: RuleSide, here: Loc) -> Iterator[_Rule]:
    for at, pattern in enumerate(side.servers):
        yield _Rule(pattern, (*here, "servers", at))


def _tools(side: RuleSide, keys: Iterable[str], here: Loc) -> Iterator[_Rule]:
    for key in keys:
        for at, pattern in enumerate(side.tools[key]):
            yield _Rule(pattern, (*here, "tools", key, at))


def _first(rules: Iterable[_Rule], name: str) -> _Rule | None:
    """The rule that fits a name: one that is this name before patterns, else in their order."""
    fits = [rule for rule in rules if fnmatchcase(name, rule.pattern)]
    return min(fits, key=lambda rule: is_pattern(rule.pattern), default=None)


def _most_explicit(tools: Mapping[str, tuple[str, ...]], server: str) -> list[str]:
    """Of the keys that fit a server: its name, else patterns, else `*`. A list that somebody wrote
    for one server is not to be widened by another for all of them.
    """
    fits = [key for key in tools if fnmatchcase(server, key)]
    ranks = {key: (is_pattern(key), key == "*") for key in fits}
    return [key for key in fits if ranks[key] == min(ranks.values())]


# Who is it?


def identify(
    rules: OutsideRules, claimed: str, caller: OutsideCaller, default_agent: str = ""
) -> OutsideIdentity:
    """Which agent a call is made as: the one that it names, else the operator's default, else the
    agent `default`; AgentIdInvalid, FallbackNotInRules or NoFallback if it can be none.
    """
    if claimed:
        return _claimed(rules, claimed, caller)
    own = _own_agent(rules, caller)
    if own:
        return OutsideIdentity(agent=own, by="token")
    listed = caller.by == "token" or caller.name in rules.callers
    if default_agent and (not listed or may_be(rules, caller, default_agent)):
        if default_agent not in rules.agents:
            raise FallbackNotInRules(
                f"the call has no agent_id, and GATEWAY_DEFAULT_AGENT is {_said(default_agent)}, "
                "which is no agent of the rules; name your agent_id, or have the operator add it "
                "to the rules or correct the variable"
            )
        return OutsideIdentity(agent=default_agent, by="GATEWAY_DEFAULT_AGENT")
    if rules.deny_on_missing_agent:
        raise AgentIdInvalid(
            "the call has no agent_id, and the rules want one (deny_on_missing_agent); name your "
            "agent_id"
        )
    if DEFAULT_AGENT not in rules.agents:
        raise NoFallback(
            "the call has no agent_id, and nothing says which agent that is; name your agent_id, "
            "or have the operator set GATEWAY_DEFAULT_AGENT or add an agent `default` to the rules"
        )
    return OutsideIdentity(agent=DEFAULT_AGENT, by=DEFAULT_AGENT)


def may_be(rules: OutsideRules, caller: OutsideCaller, agent: str) -> bool:
    """Whether a caller may call as this agent: as `callers` says; else who has started the process
    as any, and who comes over HTTP as the agent of its own name.
    """
    listed = rules.callers.get(caller.name)
    if listed is not None:
        return any(fnmatchcase(agent, pattern) for pattern in listed)
    return caller.by == "process" or agent == caller.name


def _claimed(rules: OutsideRules, claimed: str, caller: OutsideCaller) -> OutsideIdentity:
    least = claimed == DEFAULT_AGENT and not rules.deny_on_missing_agent
    if not (AGENT_ID.fullmatch(claimed) and (least or may_be(rules, caller, claimed))):
        # The same of ids that the rules know and of others: a caller learns no names by trying.
        raise AgentIdInvalid(
            f"agent_id is {_said(claimed)}, which caller {_said(caller.name)} may not be; use the "
            "agent_id that you were given, or leave it out" + _how_to_be(caller)
        )
    if claimed in rules.agents:
        return OutsideIdentity(agent=claimed, claimed=claimed, by="agent_id")
    if rules.deny_on_missing_agent or DEFAULT_AGENT not in rules.agents:
        raise AgentIdInvalid(
            f"agent_id is {_said(claimed)}, which is no agent of the rules; use the agent_id that "
            "you were given"
        )
    return OutsideIdentity(agent=DEFAULT_AGENT, claimed=claimed, by=DEFAULT_AGENT)


def _how_to_be(caller: OutsideCaller) -> str:
    if caller.by != "nothing":
        return ""
    return (
        "; a caller over HTTP without a token is `default` (the operator can set "
        'ORCHESTRATOR_HTTP_TOKENS, or list agents under "callers": {"default": [...]} in the rules)'
    )


def _own_agent(rules: OutsideRules, caller: OutsideCaller) -> str:
    """The agent that a token stands for by itself: the one of its name, or the only one that it may
    be.
    """
    if caller.by != "token":
        return ""
    if caller.name in rules.agents and may_be(rules, caller, caller.name):
        return caller.name
    listed = rules.callers.get(caller.name, ())
    only = len(listed) == 1 and not is_pattern(listed[0]) and listed[0] in rules.agents
    return listed[0] if only else ""


def _said(name: str) -> str:
    return f"'{shortened(name)}'"
