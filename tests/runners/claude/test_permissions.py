"""Calls that the CLI asks about: as recorded, and which of them the author wanted."""

from __future__ import annotations

from typing import Literal

import pytest

from orchestrator.domain.agent import AgentSpec, Asking, McpServer, Permissions
from orchestrator.runners.claude.permissions import decide
from orchestrator.runners.rule_names import is_offered
from orchestrator.runners.signs import PermissionAsked, PermissionWithdrawn
from tests.runners.claude.recordings import BOTH, OLD, asking_agent, names, recorded, returned

ASKED = PermissionAsked(
    request_id="00000000-0000-4000-8000-000000000003",
    call_id="toolu_1",
    tool="Bash",
    input={"command": "touch a"},
    why="rule",
)


def asked(version: str, case: str) -> list[PermissionAsked]:
    return [sign for sign in recorded(version, case) if isinstance(sign, PermissionAsked)]


@pytest.mark.parametrize("version", BOTH)
def test_a_call_that_a_rule_asks_about_waits_though_another_rule_allows_it(version: str) -> None:
    assert asked(version, "approved") == [ASKED]
    assert returned(version, "approved") == [("(Bash completed with no output)", False)]


@pytest.mark.parametrize("version", BOTH)
def test_what_runs_is_the_input_that_was_allowed(version: str) -> None:
    assert asked(version, "approved_edited")[0].input == {"command": "echo original"}
    assert returned(version, "approved_edited") == [("edited", False)]


@pytest.mark.parametrize("version", BOTH)
def test_an_agent_whose_call_is_refused_reads_why(version: str) -> None:
    assert asked(version, "rejected") == [ASKED]
    assert returned(version, "rejected") == [("Not on a Sunday.", True)]


@pytest.mark.parametrize("version", BOTH)
def test_a_rule_that_denies_goes_before_one_that_asks(version: str) -> None:
    denied = "Permission to use Bash with command touch a has been denied."
    assert asked(version, "asked_and_denied_by_rule") == []
    assert returned(version, "asked_and_denied_by_rule") == [(denied, True)]


@pytest.mark.parametrize("version", BOTH)
def test_a_subshell_is_no_way_around_being_asked(version: str) -> None:
    # 2.1.197 does not see what is in it, and asks; 2.1.325 does, and denies it by the rule.
    text = "Permission to use Bash with command (mkdir b && touch a) has been denied."
    answer = "Not on a Sunday." if version == OLD else text
    assert returned(version, "asked_and_denied_in_a_subshell") == [(answer, True)]


@pytest.mark.parametrize("version", BOTH)
def test_it_is_told_whether_a_rule_made_the_cli_ask(version: str) -> None:
    why = {
        case: asked(version, case)[0].why
        for case in ("approved", "asked_of_mcp", "asked_of_parts", "asked_unmentioned")
    }
    assert why == {
        "approved": "rule",
        "asked_of_mcp": "rule",
        "asked_of_parts": "parts",
        "asked_unmentioned": "no_rule",
    }


@pytest.mark.parametrize("version", BOTH)
def test_two_calls_of_one_message_are_decided_each_by_itself(version: str) -> None:
    assert [one.call_id for one in asked(version, "asked_together")] == ["toolu_1", "toolu_1b"]
    assert returned(version, "asked_together") == [
        ("(Bash completed with no output)", False),
        ("Not on a Sunday.", True),
    ]


@pytest.mark.parametrize("version", BOTH)
def test_an_interrupt_withdraws_the_question_and_an_answer_that_comes_late_does_nothing(
    version: str,
) -> None:
    signs = recorded(version, "asked_interrupted")
    first = ["Ready", "ToolCalled", "PermissionAsked", "PermissionWithdrawn"]
    first += ["ControlAnswered", "ToolReturned", "TurnEnded"]
    assert names(signs) == [*first, "Ready", "Said", "TurnEnded"]
    assert PermissionWithdrawn(request_id=ASKED.request_id) in signs
    assert "The tool use was rejected" in returned(version, "asked_interrupted")[0][0]


@pytest.mark.parametrize(
    ("allow", "ask", "why", "is_it"),
    [
        ((), ("Bash(touch:*)",), "rule", True),
        ((), ("Bash(touch:*)",), "parts", False),
        (("Bash(ls:*)",), ("Bash(touch:*)",), "parts", False),
        (("Bash",), ("Bash(touch:*)",), "parts", True),
        (("Bash",), ("Bash(touch:*)",), "no_rule", False),
        ((), ("Bash",), "parts", True),
        ((), ("Bash(*)",), "no_rule", True),
        ((), ("Write",), "no_rule", False),
        ((), (), "no_rule", False),
    ],
)
def test_only_what_the_author_said_to_ask_about_may_be_asked(
    allow: tuple[str, ...],
    ask: tuple[str, ...],
    why: Literal["rule", "parts", "no_rule"],
    is_it: bool,
) -> None:
    call = ASKED.model_copy(update={"why": why})
    agent = asking_agent(allow, ask)
    assert decide(agent, call).verdict == ("ask" if is_it else "deny")


TOOLS = ("Read", "mcp__a_b__get", "mcp__a_b__get_all", "mcp__a_b__drop", "mcp__parent__ask_parent")


@pytest.mark.parametrize(
    ("allow", "ask", "hidden"),
    [
        ((), (), set()),
        (("mcp__a_b",), (), set()),
        (("mcp__a_b__get",), (), {"mcp__a_b__get_all", "mcp__a_b__drop"}),
        (("mcp__a_b__get*",), (), {"mcp__a_b__drop"}),
        (("mcp__a_b__get",), ("mcp__a_b__drop",), {"mcp__a_b__get_all"}),
    ],
)
def test_of_a_server_the_model_sees_what_may_be_called(
    allow: tuple[str, ...], ask: tuple[str, ...], hidden: set[str]
) -> None:
    agent = AgentSpec(
        name="a",
        description="d",
        permissions=Permissions(allow=allow),
        approval=dict.fromkeys(ask, "ask"),
        ask=Asking(whom="parent"),
        mcp_servers=(McpServer(name="a.b", command="x"),),
    )
    assert {tool for tool in TOOLS if not is_offered(agent, tool)} == hidden
    assert not is_offered(agent, "mcp__other__get")
