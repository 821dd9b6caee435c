"""Files of other programs in a directory of agents: which are read, which win, what is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.catalog import AgentsDir, Catalog, agents_of_others, listing, load_catalog
from orchestrator.catalog.foreign.dialects import PLACES
from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import AgentInvalid
from orchestrator.settings import FOLDERS_OF_OTHERS, read_settings


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def reviewer(name: str = "reviewer", fields: str = "tools: Read") -> str:
    return f"---\nname: {name}\ndescription: Reviews.\n{fields}\n---\nReview.\n"


def told(catalog: Catalog, root: Path) -> list[str]:
    return [
        f"{note.path.relative_to(root)}: {note.message.replace(str(root), 'ROOT')}"
        for note in catalog.notes
    ]


def test_files_in_folders_are_agents_beside_our_own(tmp_path: Path) -> None:
    write(tmp_path / "own" / "agent.md", reviewer("own", "timeout_ms: 5000"))
    write(tmp_path / "own" / "memory.md", "---\nname: no\ndescription: no\n---\n")
    flat = write(tmp_path / "flat.md", reviewer("flat"))
    deep = write(tmp_path / "team" / "deep" / "deep.md", reviewer("deep"))
    persona = write(tmp_path / "tester.yaml", "persona: Test.\ndescription: Tests.\n")
    write(tmp_path / "team" / "other.yaml", "persona: Not here.\ndescription: No.\n")
    write(tmp_path / ".hidden" / "x.md", reviewer("x"))
    write(tmp_path / "main" / "x.md", reviewer("x"))
    write(tmp_path / "README.md", "# Agents\n")
    catalog = load_catalog(tmp_path)
    assert catalog.files == {
        "deep": deep,
        "flat": flat,
        "own": tmp_path / "own" / "agent.md",
        "tester": persona,
    }
    assert list(catalog.agents) == list(catalog.files)
    assert catalog.broken == ()


def test_a_script_of_a_file_has_a_folder_and_a_yml_is_told(tmp_path: Path) -> None:
    write(tmp_path / "tester.yaml", "persona: Test.\ndescription: Tests.\ntools: Read\n")
    write(tmp_path / "tester" / "script.yaml", "steps: [{text: hi}]\n")
    write(tmp_path / "empty" / "notes", "-\n")
    write(tmp_path / "other.yml", "persona: Test.\ndescription: Tests.\n")
    assert [line for line in told(load_catalog(tmp_path), tmp_path) if "tester" not in line] == [
        "other.yml: is not read, as its name does not end in .yaml; rename it",
        "empty: holds no agent.md; write one, or move the folder elsewhere",
    ]
    assert not any("tester:" in line for line in told(load_catalog(tmp_path), tmp_path))


def test_our_own_stays_strict_and_no_file_takes_its_place(tmp_path: Path) -> None:
    write(tmp_path / "reviewer" / "agent.md", reviewer(fields="color: red\neffort: high"))
    write(tmp_path / "reviewer.md", reviewer())
    catalog = load_catalog(tmp_path)
    with pytest.raises(AgentInvalid, match="effort: unknown field"):
        catalog.agent("reviewer")
    assert told(catalog, tmp_path) == [
        "reviewer.md: is not read: ROOT/reviewer/agent.md is called reviewer too"
    ]


def test_of_two_files_of_one_name_the_first_is_used(tmp_path: Path) -> None:
    first = write(tmp_path / "a" / "x.md", reviewer("Code Reviewer", "tools: Read"))
    write(tmp_path / "b.md", reviewer("code-reviewer", "tools: Bash"))
    write(tmp_path / "c.md", reviewer("main"))
    catalog = load_catalog(tmp_path)
    assert catalog.files == {"code-reviewer": first}
    assert catalog.agents["code-reviewer"].permissions.allow == ("Read",)
    assert told(catalog, tmp_path)[1:] == [
        "b.md: is not read: ROOT/a/x.md is called code-reviewer too",
        "c.md: is called main, as no agent can be; rename it",
    ]


def test_no_link_leads_out_of_the_directory(tmp_path: Path) -> None:
    secret = write(tmp_path / "outside" / "x.md", reviewer("x"))
    agents = tmp_path / "agents"
    inside = write(agents / "y.md", reviewer("y"))
    (agents / "x.md").symlink_to(secret)
    (agents / "more").symlink_to(secret.parent)
    (agents / "gone.md").symlink_to("nowhere/at-all.md")
    (agents / "loop.md").symlink_to("loop.md")
    (agents / "z.md").symlink_to(inside)
    catalog = load_catalog(agents)
    assert catalog.files == {"y": inside}
    assert told(catalog, agents) == [
        "more: is a link to a folder without an agent.md, and is not followed",
        "x.md: is a link out of the agents directory, and is not followed",
        "z.md: is not read: ROOT/y.md is called y too",
    ]
    assert [broken.name for broken in catalog.broken] == ["gone", "loop"]


def test_bytes_are_read_as_other_programs_read_them(tmp_path: Path) -> None:
    dos = reviewer("a").replace("\n", "\r\n").encode()
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbf" + dos)
    (tmp_path / "b.md").write_bytes(reviewer("b").encode().replace(b"Reviews", b"Pr\xfcft"))
    os.mkfifo(tmp_path / "c.md")
    catalog = load_catalog(tmp_path)
    assert catalog.agents["a"].prompt == "Review."
    messages = {broken.name: broken.problems[0].message for broken in catalog.broken}
    assert messages == {
        "b": "is not UTF-8 text (line 3); save it as UTF-8",
        "c": "is not a regular file",
    }


def test_a_directory_that_is_too_large_is_not_walked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcdef":
        write(tmp_path / f"{name}.md", reviewer(name))
    with monkeypatch.context() as small:
        small.setattr(listing, "MOST_ENTRIES", 4)
        catalog = load_catalog(tmp_path)
    assert list(catalog.agents) == ["a", "b", "c", "d"]
    assert told(catalog, tmp_path) == ["d.md: is the last of 4 names; no more are looked at"]
    write(tmp_path / "0" / "1" / "2" / "3" / "4" / "x.md", reviewer("x"))
    write(tmp_path / "0" / "y" / "agent.md", reviewer("y"))
    write(tmp_path / "agent.md", reviewer("z"))
    catalog = load_catalog(tmp_path)
    assert list(catalog.agents) == [*"abcdef"]
    assert told(catalog, tmp_path) == [
        "0/1/2/3/4: is more than 4 folders deep; not looked into",
        "0/y: holds an agent.md, but not directly in the agents directory",
        "agent.md: is read only in a folder of its own; move it into one",
    ]


def test_a_change_of_a_file_is_seen(tmp_path: Path) -> None:
    agents = AgentsDir(tmp_path)
    path = write(tmp_path / "a.md", reviewer("a"))
    assert list(agents.current().agents) == ["a"]
    path.write_text(reviewer("b"))
    assert list(agents.current().agents) == ["b"]
    path.unlink()
    assert (agents.current(), agents.version) == (Catalog(), 3)


def test_places_of_other_programs_are_told_and_belong_to_their_project(tmp_path: Path) -> None:
    assert agents_of_others(tmp_path) == ""
    write(tmp_path / ".claude" / "agents" / "a.md", reviewer())
    write(tmp_path / ".github" / "agents" / "b.agent.md", reviewer())
    write(tmp_path / ".github" / "agents" / "x" / "c.md", "no matter what")
    assert agents_of_others(tmp_path) == (
        ".claude/agents holds 1 file for Claude Code: use them as they are with --agents-dir "
        ".claude/agents, or make agents of ours of them with `orchestrator import .claude/agents`; "
        ".github/agents holds 2 files for Copilot: use them as they are with --agents-dir "
        ".github/agents, or make agents of ours of them with `orchestrator import .github/agents`"
    )
    assert {f"{folder}/agents" for folder in FOLDERS_OF_OTHERS} == set(PLACES)
    flags = {"agents_dir": tmp_path / ".claude" / "agents"}
    assert read_settings({"HOME": "/"}, tmp_path, flags).project == str(tmp_path.resolve())


def test_a_file_without_tools_edits_a_copy(tmp_path: Path) -> None:
    file = write(tmp_path / ".claude" / "agents" / "a.md", reviewer("a", ""))
    (agent,) = load_catalog(file.parent).agents.values()
    expected = AgentSpec.model_validate(
        {
            "name": "a",
            "description": "Reviews.",
            "prompt": "Review.",
            "timeout_ms": 600_000,
            "permissions": {
                "allow": ["Bash", "Edit", "Glob", "Grep", "NotebookEdit", "Read", "Write"]
            },
        }
    )
    assert (agent, agent.workspace.mode) == (expected, "copy")
