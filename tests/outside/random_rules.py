"""Random rules for agents outside, and what must be true of every decision about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import product

from hypothesis import strategies as st

from orchestrator.domain.outside import OutsideAgent, OutsideRules, RuleSide, Ruling, is_pattern
from orchestrator.outside_access import decide

AGENTS = ("a", "default")
SERVERS = ("db", "web")
TOOLS = ("get", "drop_1", "drop_12")

SERVER_PATTERNS = (*SERVERS, "*", "d*", "?b", "[dw]*", "db?", "DB", "other")
TOOL_PATTERNS = (*TOOLS, "*", "get*", "*_?", "drop_[0-9]", "drop_[!1]*", "?et", "GET", "d*1*")

_servers = st.lists(st.sampled_from(SERVER_PATTERNS), max_size=3).map(tuple)
_tools = st.dictionaries(
    st.sampled_from(SERVER_PATTERNS),
    st.lists(st.sampled_from(TOOL_PATTERNS), min_size=1, max_size=3).map(tuple),
    max_size=3,
)
_sides = st.builds(RuleSide, servers=_servers, tools=_tools)
_agents = st.builds(OutsideAgent, allow=_sides, deny=_sides)

RULES = st.builds(
    OutsideRules,
    agents=st.fixed_dictionaries({"a": _agents}, optional={"default": _agents}),
    deny_on_missing_agent=st.booleans(),
)


def check_all(rules: OutsideRules) -> None:
    """Every decision is the one that its own explanation gives, and the one that the lists say."""
    for agent, server, tool in product(AGENTS, SERVERS, (None, *TOOLS)):
        ruling = decide(rules, agent, server, tool)
        asked = f"{agent}, {server}, {tool}: {ruling} by {rules}"
        assert ruling.allowed == _by_the_lists(rules, agent, server, tool), asked
        assert ruling.allowed == _explained(rules, agent, server, tool, ruling), asked


def _by_the_lists(rules: OutsideRules, agent: str, server: str, tool: str | None) -> bool:
    """The specification, written again without any order: no denial, and an allowance."""
    found = rules.agents.get(agent)
    if found is None:
        return False
    if any(_denials(found.deny, server, tool)):
        return False
    if not any(fnmatchcase(server, pattern) for pattern in found.allow.servers):
        return False
    named = found.allow.tools.get(server)
    wild = [
        p
        for k, v in found.allow.tools.items()
        if is_pattern(k) and k != "*" and fnmatchcase(server, k)
        for p in v
    ]
    lists = named or wild or found.allow.tools.get("*")
    return tool is None or not lists or any(fnmatchcase(tool, pattern) for pattern in lists)


def _denials(deny: RuleSide, server: str, tool: str | None) -> Iterator[bool]:
    yield from (fnmatchcase(server, pattern) for pattern in deny.servers)
    for key, patterns in deny.tools.items():
        if tool is not None and fnmatchcase(server, key):
            yield from (fnmatchcase(tool, pattern) for pattern in patterns)


def _explained(
    rules: OutsideRules, agent: str, server: str, tool: str | None, ruling: Ruling
) -> bool:
    """The decision that follows from the rule that is named, which must be there and fit."""
    if not ruling.rule:
        assert ruling.why.startswith(("no rule allows", "nothing in", "the rules have no agent"))
        return False
    assert ruling.why.startswith(f"{ruling.rule} ("), ruling
    place = re.fullmatch(
        r"agents\.(\w+)\.(allow|deny)\.(?:servers|tools\.(.+))\[(\d+)\]", ruling.rule
    )
    assert place is not None
    assert place[1] == agent
    side = getattr(rules.agents[agent], place[2])
    if place[3] is None:
        assert fnmatchcase(server, side.servers[int(place[4])])
    else:
        assert tool is not None
        assert fnmatchcase(server, place[3])
        assert fnmatchcase(tool, side.tools[place[3]][int(place[4])])
    return place[2] == "allow"
