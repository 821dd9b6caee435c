"""What an agent may call of a server: one function decides, and says why."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from orchestrator.access import narrowed
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Wish
from orchestrator.domain.tool_lock import TOOL_FIELDS, Pinned, ToolLock, definition_digest
from orchestrator.domain.tool_use import ServerUse
from orchestrator.tool_rules import decide, held_to, offered, offered_others, use_problems


def pinned(name: str, **schema: JsonValue) -> Pinned:
    given: dict[str, JsonValue] = {"name": name, "inputSchema": {"type": "object", **schema}}
    return Pinned.of(given, TOOL_FIELDS)


def lock_of(*names: str, **schema: JsonValue) -> ToolLock:
    tools = tuple(pinned(name, **schema) for name in names)
    return ToolLock(server="s 1", protocol="2025-11-25", tools=tools)


def use_of(allow: list[str], **fields: Any) -> ServerUse:
    return ServerUse.model_validate({"use": "s", "allow": tuple(allow), **fields})


LOCK = lock_of(
    *("get_issue", "get_secret_key", "create_issue", "list"),
    properties={"owner": {"type": "string"}, "number": {"type": "integer"}},
    required=["owner"],
)

ALLOWED: list[tuple[dict[str, Any], str, str, bool]] = [
    ({"allow": ["get_*"]}, "get_issue", "allow: get_*", False),
    ({"allow": ["list", "*"]}, "list", "allow: list", False),
    ({"allow": ["get_?ssue"]}, "get_issue", "allow: get_?ssue", False),
    ({"allow": ["[gl]*"]}, "list", "allow: [gl]*", False),
    ({"allow": ["*"], "approve": {"c*": "ask"}}, "create_issue", "approve: c* ask", True),
    ({"allow": ["*"], "approve": {"create_*": "ask"}}, "get_issue", "allow: *", False),
    ({"allow": ["*"], "approve": {"*": "ask", "get_*": "auto"}}, "get_issue", "allow: *", False),
    ({"allow": ["*"], "approve": {"*": "ask", "get_*": "auto"}}, "list", "approve: * ask", True),
    ({"allow": ["*"], "approve": {"get_*": "auto", "*_issue": "ask"}}, "get_issue",
     "approve: *_issue ask", True),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "tool", "rule", "asks"), ALLOWED)
def test_what_is_allowed_says_by_which_line(
    rules: dict[str, Any], tool: str, rule: str, asks: bool
) -> None:
    verdict = decide(use_of(**rules), LOCK, tool, {"owner": "me"})
    assert (verdict.allowed, verdict.rule, verdict.asks) == (True, rule, asks)
    assert verdict.arguments == {"owner": "me"}


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"allow": ["get_*"]}, "create_issue", "nothing allows it", "DENIED_BY_POLICY"),
    ({"allow": ["*"], "deny": ["*_secret_*"]}, "get_secret_key", "deny: *_secret_*",
     "DENIED_BY_POLICY"),
    ({"allow": ["get_secret_key"], "deny": ["*"]}, "get_secret_key", "deny: *", "DENIED_BY_POLICY"),
    ({"allow": ["*"], "deny": ["lis?"]}, "list", "deny: lis?", "DENIED_BY_POLICY"),
    ({"allow": ["*"], "approve": {"create_*": "deny", "*_issue": "auto"}}, "create_issue",
     "approve: create_* deny", "DENIED_BY_POLICY"),
    ({"allow": ["*"], "approve": {"*": "deny", "get_*": "auto"}}, "list", "approve: * deny",
     "DENIED_BY_POLICY"),
    ({"allow": ["*"]}, "delete_issue", "lock", "TOOL_NOT_FOUND"),
    ({"allow": ["*"]}, "GET_ISSUE", "lock", "TOOL_NOT_FOUND"),
    ({"allow": ["get_*"]}, "GET_ISSUE", "nothing allows it", "DENIED_BY_POLICY"),
    ({"allow": ["*"]}, "get issue\n", "name", "NAME_INVALID"),
    ({"allow": ["*"]}, "resource:x", "name", "NAME_INVALID"),
    ({"allow": ["*"]}, "", "name", "NAME_INVALID"),
    ({"allow": ["resource:*", "prompt:*"]}, "list", "nothing allows it", "DENIED_BY_POLICY"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "tool", "rule", "code"), REFUSED)
def test_what_is_refused_says_by_which_line(
    rules: dict[str, Any], tool: str, rule: str, code: str
) -> None:
    verdict = decide(use_of(**rules), LOCK, tool, {"owner": "me"})
    assert (verdict.allowed, verdict.rule, verdict.code) == (False, rule, code)
    assert verdict.why
    assert verdict.why.isprintable()


def test_a_tool_that_changed_and_a_budget_that_is_spent_refuse_what_the_rules_allow() -> None:
    use = use_of(["*"], deny=["list"], max_calls=2)
    assert decide(use, LOCK, "get_issue", {"owner": "a"}, calls=1).allowed
    assert decide(use, LOCK, "get_issue", {"owner": "a"}, calls=2).code == "TOO_MANY_CALLS"
    assert decide(use, LOCK, "get_issue", changed={"get_issue"}).code == "TOOL_CHANGED"
    assert decide(use, LOCK, "list", changed={"list"}, calls=9).code == "DENIED_BY_POLICY"


FIXED = {"*": {"owner": "acme", "org": "acme"}, "create_*": {"number": 7}, "list": {"owner": "us"}}


@pytest.mark.parametrize(
    ("tool", "given_arguments", "sent"),
    [
        ("get_issue", {}, {"owner": "acme"}),  # org is no argument of it
        ("get_issue", {"owner": "acme", "number": 1}, {"owner": "acme", "number": 1}),
        ("create_issue", {}, {"owner": "acme", "number": 7}),
        ("list", {}, {"owner": "us"}),  # its own name counts more than a pattern
    ],
)
def test_fixed_arguments_are_put_in(
    tool: str, given_arguments: dict[str, JsonValue], sent: dict[str, JsonValue]
) -> None:
    verdict = decide(use_of(["*"], arguments=FIXED), LOCK, tool, given_arguments)
    assert (verdict.allowed, verdict.arguments) == (True, sent)


@pytest.mark.parametrize(
    ("given_arguments", "code"),
    [
        ({"owner": "evil"}, "ARGUMENT_FIXED"),
        ({"org": "acme"}, "ARGUMENT_FIXED"),  # the tool does not know it, the server may
        ({"number": True}, "ARGUMENTS_INVALID"),
        ({"number": "1"}, "ARGUMENTS_INVALID"),
    ],
)
def test_a_call_with_another_value_is_refused_and_not_corrected(
    given_arguments: dict[str, JsonValue], code: str
) -> None:
    verdict = decide(use_of(["*"], arguments=FIXED), LOCK, "get_issue", given_arguments)
    assert (verdict.allowed, verdict.code, verdict.arguments) == (False, code, {})
    true = use_of(["*"], arguments={"*": {"number": 1}})
    assert decide(true, LOCK, "get_issue", {"owner": "a", "number": True}).code == "ARGUMENT_FIXED"


def test_a_model_sees_what_it_may_call_and_no_argument_that_is_fixed() -> None:
    use = use_of(["*"], deny=["*_secret_*"], arguments=FIXED)
    tools = offered(use, LOCK, changed={"list"})
    assert [tool["name"] for tool in tools] == ["get_issue", "create_issue"]
    assert tools[0]["inputSchema"] == {
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": [],
    }
    assert tools[1]["inputSchema"] == {"type": "object", "properties": {}, "required": []}


def test_resources_and_prompts_are_there_only_if_they_are_named() -> None:
    resource = Pinned.of({"uri": "notes://a", "name": "a"}, ("uri", "name"))
    prompt = Pinned.of({"name": "greet"}, ("name",))
    lock = LOCK.model_copy(update={"resources": (resource,), "prompts": (prompt,)})
    every = use_of(["*"])
    assert (offered_others(every, lock, "resources"), offered_others(every, lock, "prompts")) == (
        (),
        (),
    )
    named = use_of(["resource:notes://*", "prompt:gre?t"], deny=["resource:*secret*"])
    assert offered_others(named, lock, "resources") == ({"uri": "notes://a", "name": "a"},)
    assert offered_others(named, lock, "prompts") == ({"name": "greet"},)
    assert decide(named, lock, "notes://new", what="resource").allowed  # they come and go
    assert not decide(named, lock, "notes://secrets", what="resource").allowed
    assert not decide(named, lock, "file:///etc/passwd", what="resource").allowed
    assert offered(named, lock) == ()


# Whatever the rules

NAMES = st.sampled_from(["a", "ab", "b", "a_b", "b.c", "c"])
PATTERNS = st.sampled_from(["*", "a", "a*", "*b", "?", "[ab]", "b.c", "[!a]*", "prompt:*"])
RULES = st.fixed_dictionaries(
    {
        "use": st.just("s"),
        "allow": st.lists(PATTERNS, min_size=1, max_size=3).map(tuple),
        "deny": st.lists(PATTERNS, max_size=2).map(tuple),
        "approve": st.dictionaries(PATTERNS, st.sampled_from(["auto", "ask", "deny"]), max_size=3),
        "arguments": st.dictionaries(PATTERNS, st.just({"x": 1}), max_size=1),
        "max_calls": st.integers(1, 3),
    }
)
SMALL = lock_of("a", "ab", "b", "a_b", properties={"x": {"type": "integer"}})


def check_any(
    fields: dict[str, Any], name: str, arguments: dict[str, JsonValue], changed: bool, calls: int
) -> None:
    """What has to hold for all rules; a test and a soak try as many as they have time for."""
    use = ServerUse.model_validate(fields)
    names = {name} if changed else set()
    verdict = decide(use, SMALL, name, arguments, changed=names, calls=calls)
    if any(fnmatchcase(name, pattern) for pattern in use.deny):
        assert not verdict.allowed
        assert verdict.rule.startswith("deny: ")
    if not any(fnmatchcase(name, pattern) for pattern in use.allow):
        assert not verdict.allowed
    # The line that it names is there, and says what was decided: the explanation is the decision.
    if verdict.rule.startswith(("deny: ", "allow: ")):
        field, _, pattern = verdict.rule.partition(": ")
        assert pattern in getattr(use, field)
        assert fnmatchcase(name, pattern)
        assert verdict.allowed == (field == "allow")
    if verdict.rule.startswith("approve: "):
        pattern, _, said = verdict.rule.removeprefix("approve: ").rpartition(" ")
        assert use.approve[pattern] == said
        assert verdict.allowed == verdict.asks == (said == "ask")
    assert verdict.allowed == (verdict.code == "") == (verdict.why == "")
    # What is listed is what may be called, and the other way round.
    listed = {tool["name"] for tool in offered(use, SMALL, changed=names)}
    assert decide(use, SMALL, name, changed=names).allowed == (name in listed)
    assert not verdict.allowed or name in listed


@settings(max_examples=300, deadline=None)
@given(RULES, NAMES, st.dictionaries(st.sampled_from("xy"), st.integers(0, 1)),
       st.booleans(), st.integers(0, 3))  # fmt: skip
def test_deny_wins_and_the_explanation_is_the_decision_whatever_the_rules(
    fields: dict[str, Any], name: str, arguments: dict[str, JsonValue], changed: bool, calls: int
) -> None:
    check_any(fields, name, arguments, changed, calls)


# What nobody could have meant, and what nobody can see


def test_a_pattern_that_fits_nothing_and_a_value_that_does_not_fit_are_told() -> None:
    use = use_of(
        ["get_*", "prompt:x"],
        deny=["nothing"],
        arguments={"list": {"nope": 1, "number": "x"}, "*": {"nope": 1}},
    )
    assert list(use_problems(use, LOCK)) == [
        ("allow", "prompt:x fits none of the prompts that s was pinned with"),
        ("deny", "nothing fits none of the tools that s was pinned with"),
        ("arguments", "list has no argument nope"),
        ("arguments", "list does not take this number: /: 'x' is not of type 'integer'"),
        ("arguments", "no tool that * fits has an argument nope"),
    ]


HIDDEN = ["\u200b", "\u202e", "\U000e0041", "\u00ad", "\x1b", "\ufe0f", "\u2062", "\u3164", "\r"]


@pytest.mark.parametrize("char", HIDDEN)
def test_a_definition_with_what_nobody_can_see_is_no_definition(char: str) -> None:
    given: dict[str, JsonValue] = {"name": "t", "description": f"a{char}b", "inputSchema": {}}
    others: list[dict[str, JsonValue]] = [
        given,
        {"name": "t", "inputSchema": {"properties": {f"a{char}b": {}}}},
        {"name": "t", "inputSchema": {"enum": [["x", {"y": f"{char}!"}]]}},
    ]
    for hidden in others:
        with pytest.raises(ValueError, match=rf"character U\+{ord(char):04X}, which no reader can"):
            ToolLock(server="s", protocol="p", tools=(Pinned.of(hidden, TOOL_FIELDS),))


def test_words_and_pictures_of_all_languages_are_seen() -> None:
    text = "Grüße, 漢字\tעברית\r\n👩‍💻 ⚠️ 1️⃣ ½"
    tool = Pinned.of({"name": "t", "description": text, "inputSchema": {}}, TOOL_FIELDS)
    assert ToolLock(server="s", protocol="p", tools=(tool,)).tool("t") is tool


def test_names_that_a_model_could_not_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.b and a_b"):
        lock_of("a.b", "a_b")
    with pytest.raises(ValueError, match="which no model can call"):
        lock_of("a b")


def test_a_digest_is_of_the_words_and_not_of_their_order() -> None:
    assert definition_digest({"a": 1, "b": 2}) == definition_digest({"b": 2, "a": 1})
    with pytest.raises(ValueError, match="changed after it was read"):
        Pinned(definition={"name": "x"}, digest=definition_digest({"name": "y"}))


def test_an_agent_made_at_call_time_has_of_a_server_what_its_template_allows() -> None:
    template = AgentSpec.model_validate(
        {
            "name": "t",
            "description": "d",
            "server_uses": ({"use": "s", "allow": ("get_*",), "deny": ("get_x",)},),
        }
    )
    wish = Wish(tools=("mcp__s__get_a", "mcp__s__create_a"), description="d")
    (use,) = narrowed(template, wish).server_uses
    assert (use.allow, use.deny) == (("get_a",), ("get_x",))
    whole = Wish(tools=("mcp__s",), description="d")
    assert narrowed(template, whole).server_uses == template.server_uses


@pytest.mark.parametrize(
    ("allow", "tool", "kept"),
    [
        (("get_*",), "get_*", ("get_*",)),
        (("get_?",), "get_*", None),  # a * is no single character of a name
        (("[gl]*",), "g*", None),
        (("get_*",), "get_a*", None),
        (("*",), "get_*", None),
        (("*",), "*", ("*",)),
        (("get_?",), "get_a", ("get_a",)),
    ],
)
def test_a_pattern_that_is_wished_for_is_one_of_the_templates(
    allow: tuple[str, ...], tool: str, kept: tuple[str, ...] | None
) -> None:
    told = {"name": "t", "description": "d", "server_uses": ({"use": "s", "allow": allow},)}
    made = narrowed(
        AgentSpec.model_validate(told), Wish(tools=(f"mcp__s__{tool}",), description="d")
    )
    assert [use.allow for use in made.server_uses] == ([kept] if kept else [])


@pytest.mark.parametrize(
    ("approval", "tool", "kept"),
    [
        ({"get_a": "ask", "drop": "ask"}, "get_*", {"get_a": "ask"}),
        ({"get_*": "ask", "drop_*": "ask"}, "get_a", {"get_a": "ask"}),
        ({"*_a": "ask"}, "get_*", {"get_*": "ask"}),
        ({"get_a": "ask", "get_*": "auto"}, "get_a", {"get_a": "ask"}),
    ],
)
def test_an_approval_of_the_templates_holds_for_what_is_wished_for(
    approval: dict[str, str], tool: str, kept: dict[str, str]
) -> None:
    told = {
        "name": "t",
        "description": "d",
        "server_uses": ({"use": "s", "allow": ("get_*",)},),
        "approval": {f"mcp__s__{rule}": said for rule, said in approval.items()},
    }
    wish = Wish(tools=(f"mcp__s__{tool}",), description="d")
    made = narrowed(AgentSpec.model_validate(told), wish)
    assert made.approval == {f"mcp__s__{rule}": said for rule, said in kept.items()}


HELD: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], dict[str, str]]] = [
    ({}, ("mcp__s__list",), (), {"list": "no", "get_issue": "yes", "notes://a": "yes"}),
    ({}, ("mcp__s__get_*", "mcp__s__list(x)"), (),
     {"list": "no", "get_issue": "no", "create_issue": "yes"}),
    ({}, ("mcp__s",), (), {"list": "no", "notes://a": "no"}),
    ({}, ("mcp__s__*",), ("mcp__s",), {"list": "no", "notes://a": "no"}),
    ({}, ("Bash", "mcp__other", "mcp__s_x", "mcp__other__list"), ("Bash", "mcp__other__list"),
     {"list": "yes", "notes://a": "yes"}),
    ({}, (), ("mcp__s__list",), {"list": "ask", "get_issue": "yes"}),
    ({}, (), ("mcp__s",), {"list": "ask", "notes://a": "ask"}),
    ({"approve": {"list": "auto"}}, (), ("mcp__s",), {"list": "ask", "get_issue": "ask"}),
    ({"approve": {"l*": "auto"}}, (), ("mcp__s__list",), {"list": "ask", "get_issue": "yes"}),
    ({"approve": {"*": "deny", "list": "auto"}}, (), ("mcp__s",),
     {"list": "ask", "get_issue": "no"}),
    ({"approve": {"*": "deny"}}, (), ("mcp__s__list", "mcp__s__get_*"), {"list": "no"}),
    ({"approve": {"list": "deny"}}, (), ("mcp__s__list",), {"list": "no"}),
    ({"deny": ("list",)}, (), ("mcp__s__list",), {"list": "no", "get_issue": "yes"}),
    ({}, ("mcp__s__list",), ("mcp__s__list",), {"list": "no"}),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "deny", "ask", "said"), HELD)
def test_rules_of_the_agent_that_name_a_server_are_rules_of_its_use(
    rules: dict[str, Any], deny: tuple[str, ...], ask: tuple[str, ...], said: dict[str, str]
) -> None:
    use = held_to(use_of(["*", "resource:*"], **rules), LOCK, deny, ask)
    found = {}
    for name in said:
        verdict = decide(use, LOCK, name, what="resource" if ":" in name else "tool")
        found[name] = "ask" if verdict.asks else "yes" if verdict.allowed else "no"
    assert found == said
    assert ServerUse.model_validate(use.model_dump()) == use


def test_a_rule_names_a_tool_as_the_model_is_told_it() -> None:
    lock = lock_of("issue.drop", "issue.get")
    use = held_to(use_of(["*"]), lock, ("mcp__s__issue_drop",), ("mcp__s__issue_g*",))
    assert not decide(use, lock, "issue.drop").allowed
    assert decide(use, lock, "issue.get").asks


SECRET_URIS = [
    *("NOTES://secret/1", "notes://SECRET/1", "notes://%73ecret/1", "notes://s%65cret/1"),
    *("notes://open/../secret/1", "notes://open/..%2Fsecret/1", "notes://open/%2e%2e/secret/1"),
    *("notes://secret//1", "notes:///secret/1", "notes://./secret/1", "notes://secret%2F1"),
    *("notes://secret/1#", "notes://secret/1?", "notes://secret/1?x=1", "notes://secret/1/"),
    *("notes://me@secret/1", "notes://secret:80/1", "notes://secret:/1", "notes:\\\\secret\\1"),
    *("notes://secret/%31", "notes://%2573ecret/1", "notes://ſecret/1", "notes://secret/1\u200b"),
    *("notes://ｓecret/1", "Notes:secret/1", "notes://secret/./1", " notes://secret/1"),
]


@pytest.mark.parametrize("uri", SECRET_URIS)
@pytest.mark.parametrize("rules", [{"deny": ["resource:notes://secret/1"]},
                                   {"approve": {"resource:notes://secret/1": "deny"}}])  # fmt: skip
def test_what_is_denied_is_denied_in_every_spelling(uri: str, rules: dict[str, Any]) -> None:
    use = use_of(["resource:*"], **rules)
    assert decide(use, LOCK, "notes://open/1", what="resource").allowed
    assert not decide(use, LOCK, uri, what="resource").allowed, uri


def test_who_is_asked_about_a_resource_is_asked_in_every_spelling() -> None:
    use = use_of(["resource:*"], approve={"resource:Notes://Secret/*": "ask", "resource:*": "auto"})
    for uri in ("notes://secret/1", "notes://secret:80/1", "notes://secret?x"):
        assert decide(use, LOCK, uri, what="resource").asks == (uri != "notes://secret?x"), uri
    assert not decide(use, LOCK, "notes://open/1", what="resource").asks


def test_plain_uris_are_read_and_so_is_whatever_a_person_has_pinned() -> None:
    use = use_of(["resource:*"])
    plain = ["file:///home/a/My%20Notes.md", "memo://insights", "https://a.org:8443/x/?a=b&c=%2B"]
    for uri in [*plain, "demo://resource/static/document/x.md", "file:///C:/x", "a+b.c:d"]:
        assert decide(use, LOCK, uri, what="resource").allowed, uri
    odd = "Git://Repo//x#main"
    refused = decide(use, LOCK, odd, what="resource")
    assert (refused.code, "its list does" in refused.why) == ("NAME_INVALID", True)
    resource = Pinned.of({"uri": odd, "name": "a"}, ("uri", "name"))
    lock = LOCK.model_copy(update={"resources": (resource,)})
    assert decide(use, lock, odd, what="resource").allowed
    assert not decide(
        use_of(["resource:*"], deny=["resource:git://repo*"]), lock, odd, what="resource"
    ).allowed
