"""Agent files of other programs, as they are: what each comes to, and what is told of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.catalog import foreign
from orchestrator.catalog.foreign.fields import READERS
from orchestrator.catalog.foreign.front_matter import plain_key
from orchestrator.catalog.foreign.reading import (
    ForeignAgent,
    ForeignMistake,
    NoAgent,
    read_foreign,
)
from orchestrator.catalog.foreign.tools import CLI_TOOLS, SAME_TOOL
from orchestrator.catalog.problems import Problem
from orchestrator.domain.agent import AgentSpec
from orchestrator.runners.claude.tools import BUILT_IN_TOOLS
from orchestrator.trust import extent_of
from tests.catalog.foreign_files import FILES, ForeignFile


def told(problem: Problem) -> str:
    return f"{problem.line} {problem.field}: {problem.message}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.about)
def test_each_field_is_honoured_or_told(file: ForeignFile) -> None:
    agent: AgentSpec | None = None
    said: tuple[Problem, ...] = ()
    match read_foreign(file.text, Path(file.path)):
        case ForeignAgent(agent=agent, notes=said):
            pass
        case ForeignMistake(problems=said):
            pass
        case NoAgent(note=note):
            said = (note,) if note else ()
    assert agent == file.agent
    lines = [told(each) for each in said]
    assert len(lines) == len(file.notes), lines
    assert [line[: len(start)] for line, start in zip(lines, file.notes, strict=True)] == [
        *file.notes
    ]


def test_there_are_enough_of_them_each_another() -> None:
    assert len(FILES) >= 60
    assert len({file.about for file in FILES}) == len(FILES)
    assert len({(file.path, file.text) for file in FILES}) == len(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.about)
def test_a_file_of_others_opens_nothing(file: ForeignFile) -> None:
    read = read_foreign(file.text, Path(file.path))
    if isinstance(read, ForeignAgent):
        check_closed(read.agent)
        assert "hunter2" not in repr(read.notes)


def check_closed(agent: AgentSpec) -> None:
    """It reaches nothing, but for searches where those are named: trust is asked for them."""
    searches = "WebSearch" in {rule.partition("(")[0] for rule in agent.permissions.allow}
    kinds = {grant.kind for grant in extent_of(agent, {}).grants}
    assert kinds == ({"web search"} if searches else set())
    assert agent.workspace.mode in ("ro", "copy")
    assert agent.allowed_callers == ("main",)
    assert (agent.subagents, agent.mcp_servers, agent.session.keep) == ((), (), False)


WORDS = st.sampled_from(
    (
        *("name: ", "description: ", "tools: ", "model: ", "persona: ", "network: ", "hooks:\n"),
        *("workspace: rw", "mcpServers: ", "maxTurns: ", "permissionMode: plan", "memory: user"),
        *("---\n", "---", "\n", "\t", "  ", "- ", ": ", "{", "}", "[", "]", "*", "&x", "!t", "|"),
        *(">", "'", '"', "#", "\\", "\0", "a", "Read", "Bash(", ")", "WebSearch", ", ", "1e999"),
        *("open", "${HOME}", "true", "🦊", "\x85", "\u2028", "\ufeff", "%", "@", "`", "9" * 50),
    )
)
"""What such files are made of."""


@given(
    st.lists(WORDS, max_size=40).map("".join),
    st.sampled_from((".claude/agents/a.md", "a.agent.md", "x/.agents/agents/a.md", "a.yaml")),
    st.booleans(),
)
def test_whatever_stands_in_a_file_nothing_is_raised_or_opened(
    text: str, path: str, begins: bool
) -> None:
    read = read_foreign("---\nname: a\ndescription: b\n" * begins + text, Path(path))
    if isinstance(read, ForeignAgent):
        check_closed(read.agent)
    elif isinstance(read, ForeignMistake):
        assert read.problems


PAGE = Path(foreign.__file__).with_name("README.md").read_text()


def test_the_page_names_every_field_that_takes_a_sentence() -> None:
    named = {plain_key(word) for word in re.findall(r"`([A-Za-z_-]+)(?:: \w+)?`", PAGE)}
    unsaid = {"autocompactwindow", "condenser", "temperature", "topp", "variant", "permission"}
    unsaid |= {"observer", "observermessage", "observesubagents", "profilestoredir", "agents"}
    unsaid |= {"handoffs", "isbackground", "omitclaudemd", "maxsteps", "mcpconfig", "allowedtools"}
    assert set(READERS) - named == unsaid  # "other fields"


def test_the_tools_that_names_are_translated_to_are_the_clis() -> None:
    named = {tool for tools in SAME_TOOL.values() for tool in tools}
    assert named <= set(CLI_TOOLS) <= BUILT_IN_TOOLS


def test_of_a_server_no_more_is_proposed_than_what_was_named() -> None:
    names = "mcp__docs__search, mcp__docs__get, mcp__context7__*, github/get_issue, mcp__all"
    text = f"---\nname: x\ndescription: d\ntools: {names}\n---\nGo.\n"
    found = read_foreign(text, Path("x.md"))
    assert isinstance(found, ForeignAgent)
    (note,) = (note for note in found.notes if "of MCP servers" in note.message)
    uses = (
        '{use: docs, allow: ["search", "get"]}, {use: context7, allow: ["*"]}, '
        '{use: github, allow: ["get_issue"]}, {use: all, allow: ["*"]}'
    )
    assert note.instead.startswith(f"mcp_servers: [{uses}]  # ")
