"""Which agent calls from outside, and what it may call: the rules of agent-mcp-gateway, closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from orchestrator.catalog.rules_text import parse_rules
from orchestrator.domain.outside import OutsideIdentity, OutsideRules
from orchestrator.errors import AgentIdInvalid, FallbackNotInRules, GatewayRefused, NoFallback
from orchestrator.outside_access import OutsideCaller, decide, identify
from tests.outside.outside_stage import LENIENT, SEED_RULES
from tests.outside.random_rules import RULES, check_all

LOCAL = OutsideCaller(name="main")
"""On stdin and stdout of a process that its user has started."""

UNKNOWN = OutsideCaller(by="nothing")
"""Over HTTP, without a token."""


def rules_of(agents: dict[str, Any], **more: Any) -> OutsideRules:
    parsed = parse_rules(json.dumps({"agents": agents, **more}), Path("rules.json"))
    assert isinstance(parsed, OutsideRules), parsed
    return parsed


def token(name: str) -> OutsideCaller:
    return OutsideCaller(name=name, by="token")


def allowed(rules: OutsideRules, agent: str, server: str, *tools: str) -> list[str]:
    """Which of these tools an agent may call."""
    return [tool for tool in tools if decide(rules, agent, server, tool).allowed]


# The five ways in which these rules fail open elsewhere


def test_a_star_as_server_key_means_every_server() -> None:
    rules = rules_of(
        {
            "a": {
                "allow": {"servers": ["*"], "tools": {"*": ["read_*"]}},
                "deny": {"tools": {"*": ["read_secret"]}},
            },
            "b": {"allow": {"servers": ["db"]}, "deny": {"tools": {"*": ["drop_*"], "d?": ["x"]}}},
        }
    )
    tools = ("write_x", "drop_table", "read_x", "read_secret", "x")
    assert allowed(rules, "a", "db", *tools) == ["read_x"]
    assert allowed(rules, "b", "db", *tools) == ["write_x", "read_x", "read_secret"]


def test_an_empty_list_is_a_mistake_and_no_grant() -> None:
    text = '{"agents": {"a": {"allow": {"servers": ["db"], "tools": {"db": []}}}}}'
    parsed = parse_rules(text, Path("rules.json"))
    assert isinstance(parsed, tuple)
    assert 'write ["*"] for every tool' in str(parsed[0])


def test_every_sign_of_a_pattern_is_one() -> None:
    rules = rules_of(
        {
            "a": {
                "allow": {"servers": ["d?", "[wx]eb"]},
                "deny": {"tools": {"db": ["drop_?", "rm_[a-c]", "*_a_*", "no_[!x]"]}},
            }
        }
    )
    assert [s for s in ("db", "d", "web", "yeb") if decide(rules, "a", s).allowed] == ["db", "web"]
    tools = ("drop_1", "drop_12", "rm_b", "rm_d", "x_a_y", "no_y", "no_x", "DROP_1")
    assert allowed(rules, "a", "db", *tools) == ["drop_12", "rm_d", "no_x", "DROP_1"]


def test_an_unknown_agent_gets_no_more_than_the_agent_default() -> None:
    agents = {"admin": {"allow": {"servers": ["*"]}}, "default": {"allow": {"servers": ["docs"]}}}
    lenient = rules_of(agents, defaults={"deny_on_missing_agent": False})
    who = identify(lenient, "admni", LOCAL)
    assert who == OutsideIdentity(agent="default", claimed="admni", by="default")
    assert not decide(lenient, who.agent, "db", "query").allowed
    assert decide(lenient, who.agent, "docs", "read").allowed
    assert not decide(lenient, "admni", "docs", "read").allowed
    for rules in (rules_of(agents), rules_of({"admin": agents["admin"]}, defaults=LENIENT)):
        with pytest.raises(AgentIdInvalid, match="'admni', which is no agent of the rules"):
            identify(rules, "admni", LOCAL)


def test_the_explanation_is_that_of_the_decision() -> None:
    rules = rules_of(
        {
            "a": {
                "allow": {"servers": ["db"], "tools": {"db": ["delete_user"]}},
                "deny": {"tools": {"db": ["x", "delete_*"]}},
            }
        }
    )
    ruling = decide(rules, "a", "db", "delete_user")
    assert not ruling.allowed
    assert ruling.rule == "agents.a.deny.tools.db[1]"
    assert ruling.why == "agents.a.deny.tools.db[1] ('delete_*') denies the tool 'delete_user'"


def test_a_name_explains_before_a_pattern_that_comes_first() -> None:
    both = ["get_*", "get_user"]
    rules = rules_of(
        {
            "a": {"allow": {"servers": ["*", "db"], "tools": {"db": both}}},
            "b": {"allow": {"servers": ["db"]}, "deny": {"tools": {"db": both}}},
        }
    )
    assert decide(rules, "a", "db").rule == "agents.a.allow.servers[1]"
    assert decide(rules, "a", "db", "get_user").rule == "agents.a.allow.tools.db[1]"
    assert decide(rules, "a", "db", "get_all").rule == "agents.a.allow.tools.db[0]"
    assert decide(rules, "b", "db", "get_user").rule == "agents.b.deny.tools.db[1]"


@settings(max_examples=300)  # `make soak` has a hundred thousand
@given(rules=RULES)
def test_a_decision_is_what_its_explanation_says_and_a_denial_wins(rules: OutsideRules) -> None:
    check_all(rules)


# The documents of agent-mcp-gateway

SEED = SEED_RULES["agents"]

SPEC = {
    "everything": {"allow": {"servers": ["*"]}},
    "restricted": {
        "allow": {"servers": ["*"], "tools": {"brave-search": ["brave_web_search"]}},
        "deny": {"servers": ["notion"], "tools": {"playwright": ["browser_type"]}},
    },
    "dangerous": {
        "allow": {"servers": ["*"]},
        "deny": {"tools": {"playwright": ["browser_type"], "postgres": ["drop_*", "delete_*"]}},
    },
    "limited": {"allow": {"servers": ["context7"]}},
    "narrow": {
        "allow": {
            "servers": ["postgres", "filesystem"],
            "tools": {"postgres": ["query", "list_*"], "filesystem": ["read_*", "list_*"]},
        },
        "deny": {
            "tools": {
                "postgres": ["drop_*", "delete_*"],
                "filesystem": ["write_*", "delete_*"],
            }
        },
    },
    "precedence": {
        "allow": {
            "servers": ["db"],
            "tools": {"db": ["delete_user", "delete_data", "get_user"]},
        },
        "deny": {"tools": {"db": ["delete_*"]}},
    },
    "laravel": {
        "allow": {"servers": ["boost"], "tools": {"boost": ["get_*", "database_*"]}},
        "deny": {"tools": {"boost": ["database_query", "tinker"]}},
    },
    "desktop": {
        "allow": {"servers": ["context7", "playwright"]},
        "deny": {"tools": {"playwright": ["browser_type", "launch_*"]}},
    },
    "only-deny": {"deny": {"servers": ["production"]}},
    "empty": {"allow": {}, "deny": {}},
    "case": {"allow": {"servers": ["API"], "tools": {"API": ["GetData"]}}},
    "both": {"allow": {"servers": ["db"]}, "deny": {"servers": ["db"]}},
    "no-server": {"allow": {"tools": {"db": ["query"]}}},
    "narrowed": {"allow": {"servers": ["*"], "tools": {"*": ["*"], "db": ["get"], "d*": ["x"]}}},
}

Row = tuple[str, str, str, bool]

ROWS: list[Row] = [
    # The seed's own rules.
    ("front-end", "browser", "anything", True),
    ("front-end", "ui-components", "search_buttons", True),
    ("front-end", "ui-components", "delete_button", False),
    ("front-end", "database", "query", False),
    ("front-end", "api-server", "get", False),
    ("back-end", "database", "query", True),
    ("back-end", "database", "list_tables", True),
    ("back-end", "database", "drop_table", False),
    ("back-end", "database", "truncate_table", False),
    ("back-end", "database", "insert", False),
    ("back-end", "api-server", "post", True),
    ("back-end", "browser", "open", False),
    ("security-reviewer", "database", "drop_table", True),
    ("default", "browser", "open", False),
    # Its specification's examples, and the classes of its tests.
    ("everything", "any", "tool", True),
    ("restricted", "notion", "read", False),
    ("restricted", "playwright", "browser_type", False),
    ("restricted", "playwright", "browser_navigate", True),
    ("restricted", "brave-search", "brave_web_search", True),
    ("restricted", "brave-search", "brave_local_search", False),
    ("restricted", "github", "create", True),
    ("dangerous", "postgres", "drop_x", False),
    ("dangerous", "postgres", "query", True),
    ("dangerous", "playwright", "browser_type", False),
    ("limited", "context7", "any", True),
    ("limited", "other", "any", False),
    ("narrow", "postgres", "query", True),
    ("narrow", "postgres", "insert", False),
    ("narrow", "filesystem", "read_file", True),
    ("narrow", "filesystem", "write_file", False),
    ("precedence", "db", "delete_user", False),
    ("precedence", "db", "delete_other", False),
    ("precedence", "db", "get_user", True),
    ("precedence", "db", "insert_user", False),
    ("laravel", "boost", "database_schema", True),
    ("laravel", "boost", "database_query", False),
    ("laravel", "boost", "tinker", False),
    ("desktop", "playwright", "launch_x", False),
    ("desktop", "playwright", "open", True),
    ("desktop", "context7", "any", True),
    ("only-deny", "dev", "any", False),
    ("only-deny", "production", "any", False),
    ("empty", "any", "tool", False),
    ("case", "API", "GetData", True),
    ("case", "API", "getdata", False),
    ("case", "api", "GetData", False),
    ("both", "db", "query", False),
    ("no-server", "db", "query", False),
    # A list for one server is not widened by the list for all.
    ("narrowed", "db", "get", True),
    ("narrowed", "db", "other", False),
    ("narrowed", "dx", "x", True),
    ("narrowed", "dx", "other", False),
    ("narrowed", "web", "other", True),
]


@pytest.mark.parametrize(("agent", "server", "tool", "may"), ROWS)
def test_what_the_documents_say(agent: str, server: str, tool: str, may: bool) -> None:
    ruling = decide(rules_of({**SEED, **SPEC}), agent, server, tool)
    assert (ruling.allowed, bool(ruling.why)) == (may, True)


# Who is it?


def test_a_caller_without_a_token_is_the_default_agent_only_if_callers_lets_it() -> None:
    stranger = OutsideCaller(by="nothing")
    lenient = {"deny_on_missing_agent": False}
    rules = rules_of({"ops": {}, "default": {}}, defaults=lenient, callers={"default": ["default"]})
    assert identify(rules, "", stranger, "ops").agent == "default"
    rules = rules_of({"ops": {}, "default": {}}, defaults=lenient, callers={"default": ["ops"]})
    assert identify(rules, "", stranger, "ops").agent == "ops"


@pytest.mark.parametrize(
    ("claimed", "default_agent", "deny_missing", "there", "is_then"),
    [
        ("dev", "ops", True, ("dev", "ops"), "dev by agent_id"),
        ("", "ops", True, ("dev", "ops"), "ops by GATEWAY_DEFAULT_AGENT"),
        ("", "ops", False, ("ops", "default"), "ops by GATEWAY_DEFAULT_AGENT"),
        ("", "", False, ("dev", "default"), "default by default"),
        ("default", "ops", False, ("ops", "default"), "default by agent_id"),
        ("", "gone", False, ("dev", "default"), FallbackNotInRules),
        ("", "", False, ("dev",), NoFallback),
        ("", "", True, ("dev", "default"), AgentIdInvalid),
        ("gone", "ops", True, ("ops", "default"), AgentIdInvalid),
        ("gone", "ops", False, ("ops", "default"), "default by default"),
        ("gone", "ops", False, ("ops",), AgentIdInvalid),
        ("no id", "", False, ("default",), AgentIdInvalid),
    ],
)
def test_the_chain_of_who_it_is(
    claimed: str,
    default_agent: str,
    deny_missing: bool,
    there: tuple[str, ...],
    is_then: str | type[GatewayRefused],
) -> None:
    rules = rules_of({name: {} for name in there}, defaults={"deny_on_missing_agent": deny_missing})
    if isinstance(is_then, str):
        who = identify(rules, claimed, LOCAL, default_agent)
        assert f"{who.agent} by {who.by}" == is_then
        assert who.claimed == claimed
    else:
        with pytest.raises(is_then):
            identify(rules, claimed, LOCAL, default_agent)


def test_over_http_an_agent_must_be_one_that_the_caller_may_be() -> None:
    rules = rules_of(
        {name: {} for name in ("ci", "admin", "back.db", "back.api", "default", "lone")},
        defaults=LENIENT,
        callers={"team": ["back.*"], "one": ["lone"], "ci": ["ci", "lone"]},
    )
    expected = {
        ("ci", ""): "ci",
        ("ci", "lone"): "lone",
        ("ci", "admin"): "refused",
        ("ci", "gone"): "refused",
        ("ci", "default"): "default",
        ("admin", ""): "admin",
        ("team", "back.db"): "back.db",
        ("team", "back.gone"): "default",
        ("team", "ci"): "refused",
        ("team", ""): "default",
        ("one", ""): "lone",
        ("stranger", ""): "default",
        ("stranger", "admin"): "refused",
    }
    for (name, claimed), agent in expected.items():
        if agent == "refused":
            with pytest.raises(AgentIdInvalid, match="may not be"):
                identify(rules, claimed, token(name), "admin")
        else:
            assert identify(rules, claimed, token(name), "admin").agent == agent, (name, claimed)


def test_without_a_token_a_caller_over_http_is_default_unless_the_operator_says_otherwise() -> None:
    agents: dict[str, Any] = {"admin": {}, "dev": {}, "default": {}}
    rules = rules_of(agents, defaults=LENIENT)
    assert identify(rules, "", UNKNOWN).agent == "default"
    assert identify(rules, "", UNKNOWN, "dev").agent == "dev"
    with pytest.raises(AgentIdInvalid, match="ORCHESTRATOR_HTTP_TOKENS"):
        identify(rules, "admin", UNKNOWN)
    opened = rules_of(agents, defaults=LENIENT, callers={"default": ["*"]})
    assert identify(opened, "admin", UNKNOWN).agent == "admin"


def test_callers_narrows_what_a_process_may_be() -> None:
    rules = rules_of({"admin": {}, "dev": {}}, callers={"main": ["dev"]})
    assert identify(rules, "dev", LOCAL).agent == "dev"
    with pytest.raises(AgentIdInvalid, match="caller 'main' may not be"):
        identify(rules, "admin", LOCAL)
