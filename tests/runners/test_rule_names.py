"""What an agent's CLI is told of rules that are kept elsewhere: by value."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.agent import AgentSpec
from orchestrator.runners.rule_names import without_brokered_asks

OUTSIDE = {"use": "out", "allow": ("*",)}
INSIDE = {"name": "in", "command": "x"}

CASES: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = [
    # approval, allow -> what the CLI asks about, what it allows
    ({"mcp__out__put": "ask", "Bash": "ask"}, (), ("Bash",), ()),
    ({"mcp__out": "ask"}, ("mcp__out__get",), (), ("mcp__out__get", "mcp__out")),
    ({"mcp__out__put": "ask"}, ("mcp__out__get",), (), ("mcp__out__get", "mcp__out__put")),
    ({"mcp__out__put": "deny"}, (), (), ()),
    ({"mcp__in__put": "ask", "mcp__out__put": "ask"}, (), ("mcp__in__put",), ()),
    ({"mcp__outer__put": "ask"}, (), ("mcp__outer__put",), ()),
    ({"*": "ask"}, ("Bash", "mcp__out__get"), ("Bash",), ("Bash", "mcp__out__get")),
]


@pytest.mark.parametrize(("approval", "allow", "asks", "allows"), CASES)
def test_a_cli_does_not_ask_about_what_the_broker_asks_about(
    approval: dict[str, Any],
    allow: tuple[str, ...],
    asks: tuple[str, ...],
    allows: tuple[str, ...],
) -> None:
    agent = AgentSpec.model_validate(
        {
            "name": "a",
            "description": "d",
            "permissions": {"allow": allow, "deny": ("mcp__out__drop",)},
            "approval": approval,
            "mcp_servers": (INSIDE,),
            "server_uses": (OUTSIDE,),
        }
    )
    told = without_brokered_asks(agent)
    assert (told.ask_rules, told.permissions.allow) == (asks, allows)
    assert told.deny_rules == agent.deny_rules
    assert without_brokered_asks(told) == told
