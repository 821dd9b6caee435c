"""What is wrong with .mcp-gateway-rules.json is told with its line, and with what to write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.catalog.rules_text import parse_rules, rule_warnings
from orchestrator.domain.outside import OutsideAgent, OutsideRules, RuleSide

PATH = Path("rules.json")


def wrong(text: str) -> list[str]:
    parsed = parse_rules(text, PATH)
    assert isinstance(parsed, tuple), parsed
    return [str(problem) for problem in parsed]


def rules_of(document: object) -> OutsideRules:
    parsed = parse_rules(json.dumps(document, indent=1), PATH)
    assert isinstance(parsed, OutsideRules), parsed
    return parsed


def test_all_forms_are_read() -> None:
    assert rules_of(
        {
            "agents": {
                "team.role": {
                    "allow": {"servers": ["db", "browser_*"], "tools": {"*": ["get_*", "[ab]?"]}},
                    "deny": {"servers": ["x"], "tools": {"d?": ["*_a_*"]}},
                },
                "nothing": {"allow": {}, "deny": {}},
            },
            "defaults": {"deny_on_missing_agent": False},
            "callers": {"ci": ["team.*"]},
        }
    ) == OutsideRules(
        agents={
            "team.role": OutsideAgent(
                allow=RuleSide(servers=("db", "browser_*"), tools={"*": ("get_*", "[ab]?")}),
                deny=RuleSide(servers=("x",), tools={"d?": ("*_a_*",)}),
            ),
            "nothing": OutsideAgent(),
        },
        deny_on_missing_agent=False,
        callers={"ci": ("team.*",)},
    )
    assert rules_of({}) == OutsideRules(deny_on_missing_agent=True)


def test_every_mistake_is_told_with_its_line() -> None:
    text = """{
\t"agents": {
\t\t"a": {"alow": {}, "deny": {"server": ["x"]}},
\t\t"b": {
\t\t\t"allow": {"servers": [], "tools": {"db": [], "x": "get_*"}},
\t\t\t"deny": {"servers": [], "tools": {"db": []}}
\t\t},
\t\t"c d": {"allow": {"tools": {}}},
\t\t"e": {"deny": {"tools": {
\t\t\t"db": ["drop_* ", "a,b", "x[1", "", 5, "[z-a]", "ok[!a]", "[]]"]
\t\t}}}
\t},
\t"default": {},
\t"defaults": {"deny_on_missing_agent": "no"},
\t"callers": {"ci": []}
}"""
    expected = """
3: agents.a.alow: is not known here; did you mean 'allow'?
3: agents.a.deny.server: is not known here; did you mean 'servers'?
5: agents.b.allow.servers: is an empty list; remove it (no server is allowed then)
5: agents.b.allow.tools.db: is an empty list; write ["*"] for every tool of the server; for none
5: agents.b.allow.tools.x: must be a list of tools, such as ["get_*"], found 'get_*'
6: agents.b.deny.servers: is an empty list; remove it, or name servers; ["*"] is all of them
6: agents.b.deny.tools.db: is an empty list; remove it, or name tools; ["*"] is all of them
8: agents.c d: is no agent id: letters, digits, - _ and ., 128 at most
8: agents.c d.allow.tools: is empty; remove it, or name a server and tools of it
10: agents.e.deny.tools.db[0]: has a blank in it, and no name has; remove it
10: agents.e.deny.tools.db[1]: has a comma in it, and no name has; write one text for each
10: agents.e.deny.tools.db[2]: has a [ that no ] closes; close it, or remove it
10: agents.e.deny.tools.db[3]: must have 1 to 200 characters
10: agents.e.deny.tools.db[4]: must be a name or a pattern such as 'get_*', found the number 5
10: agents.e.deny.tools.db[5]: has a range that no character is in; turn it round
13: default: is not known here; did you mean 'defaults'?
14: defaults.deny_on_missing_agent: must be true or false, found 'no'
15: callers.ci: is an empty list; remove it, or name agents that the caller may be
""".strip().splitlines()
    for said, begins in zip(wrong(text), expected, strict=True):
        assert said.startswith(f"rules.json:{begins}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rules.json:1: is not JSON: Expecting value"),
        ('{\n "agents": {,}}', "rules.json:2: is not JSON: "),
        ("null", "rules.json:1: must be a mapping with agents and defaults and callers"),
        ("[1]", "rules.json:1: must be a mapping with agents and defaults and callers, found a l"),
        ('{"agents": ["a"]}', "rules.json:1: agents: must be a mapping, found a list"),
        (
            '{"agents": {"a": {\n"deny": {"servers": ["x"]},\n"deny": {}}}}',
            "rules.json:3: agents.a.deny: is given twice, first on line 2; remove one of them",
        ),
        ("[" * 5000, "rules.json:1: is not JSON"),
    ],
)
def test_what_is_no_set_of_rules_is_told(text: str, said: str) -> None:
    assert wrong(text)[0].startswith(said)


def test_lines_are_those_of_any_layout() -> None:
    text = '{"agents"\n:\n{"a\\"b, {": 1,\n"x": {"allow":\n{"servers":\n["y",\n7]}}}}'
    assert [line.split(": ", 1)[0] for line in wrong(text)] == [
        "rules.json:3",
        "rules.json:3",
        "rules.json:7",
    ]


def test_rules_without_effect_are_pointed_out() -> None:
    rules = rules_of(
        {
            "agents": {
                "a": {
                    "allow": {"servers": ["db", "web_*"], "tools": {"db": ["*"], "api": ["*"]}},
                    "deny": {"servers": ["*", "old"], "tools": {"we*": ["*"]}},
                },
                "b": {},
                "c": {"allow": {"servers": ["*"], "tools": {"db": ["x"]}}},
            }
        }
    )
    assert rule_warnings(rules, {"db": None, "web": None}) == (
        "agents.a.allow.servers[1]: there is no server 'web_*'; did you mean 'web'?",
        "agents.a.allow.tools.api: there is no server 'api'",
        "agents.a.deny.servers[1]: there is no server 'old'",
        "agents.a.allow.tools.api: has no effect, since allow.servers does not name it",
        "agents.b: allows nothing",
    )


def test_a_denial_of_what_is_not_there_is_pointed_out_with_the_nearest_name() -> None:
    denies = {
        "servers": ["databse", "*"],
        "tools": {
            "database": ["drop_tabel", "truncat*", "drop_*", "query", "*"],
            "d*": ["query", "nothing_like_it"],
            "web": ["anything"],
            "*": ["qeury"],
        },
    }
    rules = rules_of({"agents": {"a": {"allow": {"servers": ["*"]}, "deny": denies}}})
    known = {"database": ("query", "drop_table"), "docs": ("search",)}
    guessed = "there is no tool 'drop_tabel'; did you mean 'drop_table'?"
    assert rule_warnings(rules, known) == (
        "agents.a.deny.servers[0]: there is no server 'databse'; did you mean 'database'?",
        "agents.a.deny.tools.web: there is no server 'web'",
        f"agents.a.deny.tools.database[0]: {guessed}",
        "agents.a.deny.tools.database[1]: there is no tool 'truncat*'",
        "agents.a.deny.tools.d*[1]: there is no tool 'nothing_like_it'",
        "agents.a.deny.tools.*[0]: there is no tool 'qeury'; did you mean 'query'?",
    )
    unpinned = rule_warnings(rules, {**known, "web": None})  # what tools it has is not known
    assert unpinned == tuple(
        each for each in rule_warnings(rules, known) if "web" not in each and "tools.*" not in each
    )
