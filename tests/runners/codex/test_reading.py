"""Which commands of codex are reading, that other CLIs have tools for."""

from __future__ import annotations

import pytest

from orchestrator.runners.codex.reading import may_read
from orchestrator.runners.rules import AgentRules

READER = AgentRules(allow=("Read", "Grep", "Glob"))


@pytest.mark.parametrize(
    ("command", "reads"),
    [
        ("cat a.txt", True),
        ("ls -la src && head -n 5 src/a.py", True),
        ("rg -n 'def main' | head -20", True),
        ("find . -name '*.py'", True),
        ("cat $(rm a)", False),
        ("cat a > b", False),
        ("cat a; rm a", False),
        ("find . -exec rm {} +", False),
        ("find . -delete", False),
        ("find *", False),
        ("cat *", True),
        ("rg --pre=sh x", False),
        ("$PAGER a", False),
        ("sed -i s/a/b/ c", False),
        ("PAGER=x cat a", False),
        ("", False),
    ],
)
def test_only_commands_that_read_are_reading(command: str, reads: bool) -> None:
    assert may_read(command, READER) is reads


@pytest.mark.parametrize(
    "rules",
    [
        AgentRules(allow=("Grep",)),
        AgentRules(allow=("Read(src/**)",)),
        AgentRules(allow=("Read",), deny=("Read(secret/**)",)),
        AgentRules(allow=("Read",), ask=("Bash(cat:*)",)),
        AgentRules(allow=("Read",), deny=("Bash",)),
    ],
)
def test_an_agent_that_may_not_read_all_needs_a_rule_for_the_command(rules: AgentRules) -> None:
    assert not may_read("cat a.txt", rules)
