"""What an agent's rules mean together."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.agent import AgentSpec


def agent(**fields: Any) -> AgentSpec:
    return AgentSpec.model_validate({"name": "a", "description": "b", **fields})


def test_a_star_in_approval_means_what_is_allowed_and_not_named_there() -> None:
    spec = agent(
        permissions={"allow": ["Bash", "Read", "Edit"], "deny": ["Write"]},
        approval={"*": "ask", "Read": "auto", "Edit": "deny"},
    )
    assert spec.ask_rules == ("Bash",)
    assert spec.deny_rules == ("Write", "Edit")


def test_a_rule_named_in_approval_is_asked_for_without_a_star() -> None:
    spec = agent(permissions={"allow": ["Bash", "Read"]}, approval={"Bash": "ask"})
    assert (spec.ask_rules, spec.deny_rules) == (("Bash",), ())


@pytest.mark.parametrize(
    ("fields", "tools", "may_wait"),
    [
        ({}, (), False),
        ({"ask": {"whom": "parent"}}, ("ask_parent", "update_status"), True),
        ({"subagents": ["b"]}, ("run_subagent",), True),
        ({"permissions": {"allow": ["Bash"]}, "approval": {"Bash": "ask"}}, (), True),
    ],
)
def test_an_agent_finds_the_tools_it_may_use_and_may_wait_for_what_they_bring(
    fields: dict[str, object], tools: tuple[str, ...], may_wait: bool
) -> None:
    spec = agent(**fields)
    assert (spec.parent_tools, spec.may_wait) == (tools, may_wait)


def test_another_agent_has_another_digest() -> None:
    assert agent().digest == agent().digest
    assert len(agent().digest) == 12
    assert agent().digest != agent(prompt="c").digest
