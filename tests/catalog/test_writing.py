"""AgentSpec -> agent.md -> the same AgentSpec, whatever its texts hold."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import ParsedAgent, parse_agent
from orchestrator.catalog.writing import agent_text
from orchestrator.domain.agent import AgentSpec

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
        st.sampled_from(": #'\"\\\n\t\r\x85\u2028\u2029\ufeff\x7f\x1b-?*&!|>%@`{}[],~"),
    ),
    min_size=1,
).filter(str.strip)
WORDS = st.sampled_from(
    ("true", "null", "~", "no", "1", "1.5", "08:30", "- a", "a: b", "a #b", "x")
)


def read_again(agent: AgentSpec, *comments: str) -> AgentSpec:
    text = agent_text(agent, comments)
    path = Path("agents/a/agent.md")
    parsed = parse_agent(text, folder="a", path=path, read_beside=lambda name: (path, name))
    assert isinstance(parsed, ParsedAgent), (text, parsed)
    return parsed.agent


@given(st.one_of(TEXTS, WORDS), st.one_of(TEXTS, WORDS))
def test_whatever_the_texts_hold_the_file_says_the_same(description: str, prompt: str) -> None:
    agent = AgentSpec(name="a", description=description, prompt=prompt.strip(), model=prompt)
    assert read_again(agent) == agent


def test_fields_of_all_kinds_are_written_and_nothing_that_is_the_default() -> None:
    agent = AgentSpec.model_validate(
        {
            "name": "a",
            "description": "Does a.",
            "prompt": "Do a.",
            "permissions": {"allow": ["Read", "Bash(git log:*)"], "deny": ["Bash(git push:*)"]},
            "workspace": {"mode": "none"},
            "ask": {"whom": "user"},
            "approval": {"*": "ask", "Read": "auto"},
            "network": {"mode": "allow", "allow": ["*.a.org", "b.org:8443"]},
            "max_budget_usd": 0.5,
            "resources": {"memory_mb": 4096},
            "env": {"TZ": "Europe/Berlin", "A": "yes: it is"},
        }
    )
    assert read_again(agent, "A comment", "", "network: open") == agent
    assert agent_text(agent, ["Why."]) == (
        "---\n# Why.\nname: a\ndescription: Does a.\n"
        "permissions:\n"
        '  allow: [Read, "Bash(git log:*)"]\n'
        '  deny: ["Bash(git push:*)"]\n'
        "workspace: none\n"
        "ask: user\n"
        "approval:\n"
        '  "*": ask\n'
        "  Read: auto\n"
        "network:\n"
        '  allow: ["*.a.org", "b.org:8443"]\n'
        "resources:\n"
        "  memory_mb: 4096\n"
        "max_budget_usd: 0.5\n"
        "env:\n"
        "  TZ: Europe/Berlin\n"
        '  A: "yes: it is"\n'
        "---\n\nDo a.\n"
    )
