"""The text of .mcp-gateway-rules.json -> OutsideRules, or all that is wrong with it. Pure.

What cannot mean what it seems to is a mistake: an empty list that would allow all, a pattern that
no name fits, a key twice. In rules, what is overlooked is open.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from pathlib import Path

from orchestrator.catalog.document import read_json
from orchestrator.catalog.problems import Problem, Problems, did_you_mean, found
from orchestrator.domain.outside import (
    AGENT_ID,
    PATTERN_SIGNS,
    OutsideAgent,
    OutsideRules,
    RuleSide,
    is_pattern,
)
from orchestrator.plain_yaml import Loc, shortened, written

TOP_KEYS = ("agents", "defaults", "callers")
AGENT_KEYS = ("allow", "deny")
SIDE_KEYS = ("servers", "tools")
DEFAULT_KEYS = ("deny_on_missing_agent",)

PATTERN_CHARS = 200

_NEVER = "(?!)"
"""What fnmatch makes of a range that nothing is in, such as [z-a]."""

_INSTEAD = {
    ("allow", "servers"): "remove it (no server is allowed then), or name servers",
    ("allow", "tools"): (
        'write ["*"] for every tool of the server; for none of them, put ["*"] under deny.tools'
    ),
    ("deny", "servers"): 'remove it, or name servers; ["*"] is all of them',
    ("deny", "tools"): 'remove it, or name tools; ["*"] is all of them',
}
"""What to write instead of an empty list, which reads as none and counted as all elsewhere."""


def parse_rules(text: str, path: Path) -> OutsideRules | tuple[Problem, ...]:
    """What the text says, or everything that is wrong with it, by line. It raises nothing."""
    problems = Problems(path)
    value = read_json(text, problems)
    if problems.found:
        return problems.ordered()
    fields = _mapping(value, (), TOP_KEYS, problems)
    defaults = _mapping(fields.get("defaults", {}), ("defaults",), DEFAULT_KEYS, problems)
    deny_missing = defaults.get("deny_on_missing_agent", True)
    if not isinstance(deny_missing, bool):
        said = f"must be true or false, found {found(deny_missing)}"
        problems.add(("defaults", "deny_on_missing_agent"), said)
    agents = dict(_agents(fields.get("agents", {}), problems))
    callers = dict(_callers(fields.get("callers", {}), problems))
    if problems.found:
        return problems.ordered()
    return OutsideRules(agents=agents, callers=callers, deny_on_missing_agent=bool(deny_missing))


PinnedNames = Mapping[str, Sequence[str] | None]
"""Servers that there are -> what the tools of each are called; None if it was never pinned."""


def rule_warnings(rules: OutsideRules, servers: PinnedNames) -> tuple[str, ...]:
    """Rules that have no effect as things are: of servers and tools that are not there, or not
    allowed. A denial that names nothing denies nothing.
    """
    said = []
    for name, agent in rules.agents.items():
        for side_name, side in (("allow", agent.allow), ("deny", agent.deny)):
            here: Loc = ("agents", name, side_name)
            named = [((*here, "servers", at), text) for at, text in enumerate(side.servers)]
            for loc, text in (*named, *(((*here, "tools", key), key) for key in side.tools)):
                if text != "*" and not any(fnmatchcase(server, text) for server in servers):
                    said.append(f"{written(loc)}: there is no server {_nearest(text, servers)}")
            for key, texts in side.tools.items():
                said += _tool_warnings(key, texts, servers, (*here, "tools", key))
        for key in agent.allow.tools:
            if not _overlaps(key, agent.allow.servers):
                loc = ("agents", name, "allow", "tools", key)
                said.append(f"{written(loc)}: has no effect, since allow.servers does not name it")
        if agent == OutsideAgent():
            said.append(f"{written(('agents', name))}: allows nothing")
    return tuple(said)


def _tool_warnings(
    key: str, texts: Sequence[str], servers: PinnedNames, here: Loc
) -> Iterator[str]:
    """Texts that fit no tool of the servers that a key means; nothing if the tools of one of them
    are not known.
    """
    meant = [tools for server, tools in servers.items() if fnmatchcase(server, key)]
    if not meant or None in meant:
        return
    known = [tool for tools in meant for tool in tools or ()]
    for at, text in enumerate(texts):
        if text != "*" and not any(fnmatchcase(tool, text) for tool in known):
            yield f"{written((*here, at))}: there is no tool {_nearest(text, known)}"


def _nearest(text: str, known: Iterable[str]) -> str:
    guess = did_you_mean("".join(char for char in text if char not in PATTERN_SIGNS), known)
    return f"'{shortened(text)}'" + (f"; did you mean '{shortened(guess)}'?" if guess else "")


def _overlaps(key: str, servers: Iterable[str]) -> bool:
    """Whether a server that fits the key may be allowed; where both are patterns, it may."""
    return any(
        fnmatchcase(key, text) or fnmatchcase(text, key) or (is_pattern(key) and is_pattern(text))
        for text in servers
    )


def _mapping(
    value: object, loc: Loc, known: tuple[str, ...], problems: Problems
) -> Mapping[str, object]:
    """The fields of a mapping, without those that it cannot have."""
    if not isinstance(value, dict):
        must = f"must be a mapping with {' and '.join(known)}" if known else "must be a mapping"
        problems.add(loc, f"{must}, found {found(value)}")
        return {}
    for key in value:
        if known and key not in known:
            guess = did_you_mean(key, known)
            said = f"did you mean {guess!r}?" if guess else f"there are {', '.join(known)}"
            problems.add((*loc, key), f"is not known here; {said}")
    return {key: item for key, item in value.items() if not known or key in known}


def _agents(value: object, problems: Problems) -> Iterator[tuple[str, OutsideAgent]]:
    for name, fields in _mapping(value, ("agents",), (), problems).items():
        loc: Loc = ("agents", name)
        if not AGENT_ID.fullmatch(name):
            problems.add(loc, "is no agent id: letters, digits, - _ and ., 128 at most")
        sides = _mapping(fields, loc, AGENT_KEYS, problems)
        allow, deny = (_side(sides.get(key, {}), (*loc, key), key, problems) for key in AGENT_KEYS)
        yield name, OutsideAgent(allow=allow, deny=deny)


def _side(value: object, loc: Loc, side: str, problems: Problems) -> RuleSide:
    fields = _mapping(value, loc, SIDE_KEYS, problems)
    servers: tuple[str, ...] = ()
    tools: dict[str, tuple[str, ...]] = {}
    if "servers" in fields:
        empty = _INSTEAD[side, "servers"]
        servers = _patterns(fields["servers"], (*loc, "servers"), "servers", empty, problems)
    if "tools" in fields:
        here, empty = (*loc, "tools"), _INSTEAD[side, "tools"]
        lists = _mapping(fields["tools"], here, (), problems)
        if fields["tools"] == {}:
            problems.add(here, "is empty; remove it, or name a server and tools of it")
        for key, listed in lists.items():
            _check_pattern(key, (*here, key), problems)
            tools[key] = _patterns(listed, (*here, key), "tools", empty, problems)
    return RuleSide(servers=servers, tools=tools)


def _callers(value: object, problems: Problems) -> Iterator[tuple[str, tuple[str, ...]]]:
    empty = "remove it, or name agents that the caller may be"
    for name, listed in _mapping(value, ("callers",), (), problems).items():
        if not AGENT_ID.fullmatch(name):
            problems.add(("callers", name), "is no caller's name: letters, digits, - _ and .")
        yield name, _patterns(listed, ("callers", name), "agents", empty, problems)


def _patterns(
    value: object, loc: Loc, what: str, empty: str, problems: Problems
) -> tuple[str, ...]:
    if not isinstance(value, list):
        example = json.dumps([value if isinstance(value, str) else "*"])
        problems.add(loc, f"must be a list of {what}, such as {example}, found {found(value)}")
        return ()
    if not value:
        problems.add(loc, f"is an empty list; {empty}")
    for at, item in enumerate(value):
        _check_pattern(item, (*loc, at), problems)
    return tuple(item for item in value if isinstance(item, str))


def _check_pattern(text: object, loc: Loc, problems: Problems) -> None:
    if not isinstance(text, str):
        problems.add(loc, f"must be a name or a pattern such as 'get_*', found {found(text)}")
    elif not 0 < len(text) <= PATTERN_CHARS:
        problems.add(loc, f"must have 1 to {PATTERN_CHARS} characters")
    elif "," in text:
        problems.add(loc, "has a comma in it, and no name has; write one text for each pattern")
    elif not text.isprintable() or any(char.isspace() for char in text):
        problems.add(loc, "has a blank in it, and no name has; remove it")
    elif _unclosed(text):
        problems.add(loc, "has a [ that no ] closes; close it, or remove it")
    elif _NEVER in translate(text):
        problems.add(loc, "has a range that no character is in; turn it round")


def _unclosed(pattern: str) -> bool:
    """Whether a [ begins no set: fnmatch takes it for itself then, and no name has one."""
    at = pattern.find("[")
    while at >= 0:
        begins = at + 1 + pattern.startswith("!", at + 1)
        closes = pattern.find("]", begins + 1)
        if closes < 0:
            return True
        at = pattern.find("[", closes + 1)
    return False
