"""`orchestrator import` from outside: what it writes passes the check, and what it says is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.surfaces.cli.main import main
from tests.catalog.foreign_files import FILES, QUOTED

REVIEWER = """\
---
name: Code Reviewer
description: Use it when: a change is ready
tools: Read, WebFetch, WebSearch, Task
color: red
memory: project
---
Review: "it".
"""


MEMORY = (
    "'project' keeps notes for later calls in Claude Code; here only agents with sessions have a "
    "memory"
)
RUNNING = "Task (for running other agents, which this file cannot allow)"
FETCHING = "WebFetch (for fetching from hosts, and this file cannot open a network)"
NO_FIELDS = "does not begin with fields, so it is no agent"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with agents of Claude Code's, in which the test stands."""
    for name in ("ORCHESTRATOR_AGENTS_DIR", "ORCHESTRATOR_TRUSTED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    project = tmp_path / "project"
    (project / ".claude/agents").mkdir(parents=True)
    (project / ".claude/agents/reviewer.md").write_text(REVIEWER)
    monkeypatch.chdir(project)
    return project


def test_a_file_becomes_an_agent_and_the_rest_is_told(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "agents/code-reviewer/agent.md"
    (place / ".claude/agents/notes.md").write_text("# Notes\n")
    assert run("import", ".claude/agents") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"written  {path}, of .claude/agents/reviewer.md",
        "  honoured     nothing",
        "  passed over  has fields that mean nothing here: color",
        "  changed      name: 'Code Reviewer' is no name here; it is called code-reviewer",
        f"  changed      description: {QUOTED}",
        f"  left out     tools: {RUNNING}",
        f"  left out     tools: {FETCHING}",
        f"  left out     memory: {MEMORY}",
        f"passed over  {place}/.claude/agents/notes.md:1: {NO_FIELDS}",
        "1 agent written; see: orchestrator agents check",
    ]
    assert path.read_text() == (
        "---\n"
        "# Imported from reviewer.md, which was written for Claude Code.\n"
        f"# tools: left out: {RUNNING}. To have it otherwise:\n"
        "#     subagents: [NAME]  # which list this agent in their allowed_callers\n"
        f"# tools: left out: {FETCHING}. To have it otherwise:\n"
        "#     network: {allow: [docs.example.org]}  # and WebFetch under permissions.allow\n"
        f"# memory: {MEMORY}. To have it otherwise:\n"
        "#     session: true\n"
        "#     memory: rw\n"
        "name: code-reviewer\n"
        'description: "Use it when: a change is ready"\n'
        "timeout_ms: 600000\n"
        "permissions:\n"
        "  allow: [Read, WebSearch]\n"
        "---\n\n"
        'Review: "it".\n'
    )
    assert run("agents", "check") == 0
    out = capsys.readouterr().out
    assert "not trusted yet with what they want: code-reviewer" in out  # it searches
    assert out.endswith("1 agent, all good\n")


def test_nothing_is_written_over_unless_it_is_wanted(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "agents/code-reviewer/agent.md"
    source = ".claude/agents/reviewer.md"
    assert run("import", source, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"would be written  {path}, of {source}\n")
    assert shown.endswith("\nnothing is written\n")
    assert not path.parent.exists()
    assert run("import", source) == 0
    text = path.read_text()
    assert text in shown
    assert run("import", source) == 0
    assert f"unchanged  {path}" in capsys.readouterr().out
    path.write_text("mine")
    assert run("import", source) == 1
    assert f"exists  {path}, of {source}; --force writes over it" in capsys.readouterr().out
    assert path.read_text() == "mine"
    assert run("import", source, "--force") == 0
    assert (path.read_text(), list(path.parent.iterdir())) == (text, [path])


def test_json_is_one_object_with_the_text(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / ".claude/agents/broken.md").write_text("---\nname: broken\n---\n")
    (place / ".claude/agents/same.md").write_text(REVIEWER)
    assert run("import", ".claude/agents", "--to", "elsewhere", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], list(said)) == (False, ["ok", "agents", "passed_over", "broken"])
    (agent,) = said["agents"]
    path = place / "elsewhere/code-reviewer/agent.md"
    assert (agent["name"], agent["state"], agent["path"]) == ("code-reviewer", "written", str(path))
    assert agent["text"] == path.read_text()
    assert [note["kind"] for note in agent["notes"]].count("left out") == 3
    assert said["broken"][0]["field"] == "description"
    assert said["passed_over"][0]["message"].startswith("is not imported: ")


def test_every_file_of_others_becomes_an_agent_that_says_the_same(
    tmp_path: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {}
    for at, file in enumerate(FILES):
        path = tmp_path / "files" / str(at) / file.path
        path.parent.mkdir(parents=True)
        path.write_text(file.text)
        to = tmp_path / "agents" / str(at)
        assert run("import", str(path), "--to", str(to)) in (0, 3)
        expected[at] = {} if file.agent is None else {file.agent.name: file.agent}
        catalog = load_catalog(to)
        assert (catalog.agents, catalog.broken, catalog.notes) == (expected[at], (), ())
    assert sum(map(len, expected.values())) >= 60


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nowhere", "nowhere cannot be imported: there is no such file"),
        ("notes.txt", "notes.txt cannot be imported: agent files end in .md or .yaml"),
        ("agents/x/agent.md", "agents/x/agent.md is an agent.md already; copy its folder"),
        (".", ". holds no agent files of other programs; .claude/agents holds 1 file for Claude"),
        ("empty", "empty holds no agent files of other programs, which end in .md"),
    ],
)
def test_what_cannot_be_imported_is_told(
    place: Path, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    (place / "notes.txt").touch()
    (place / "empty").mkdir()
    assert run("import", source) == 4
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_a_link_in_the_place_of_a_folder_is_not_followed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "agents").mkdir()
    (place / "agents/code-reviewer").symlink_to(place.parent)
    assert run("import", ".claude/agents/reviewer.md", "--force") == 4
    assert "agents/code-reviewer is not a folder; remove it" in capsys.readouterr().err
    assert not (place.parent / "agent.md").exists()


def test_a_file_of_others_is_trusted_as_ours_are(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def untrusted() -> object:
        capsys.readouterr()
        assert run("agents", "list", "--agents-dir", ".claude/agents", "--json") == 0
        return json.loads(capsys.readouterr().out)["untrusted"]

    search = "web search: by the model API, which sends what is searched for"
    assert untrusted() == {"code-reviewer": [search]}
    assert run("agents", "list", "--agents-dir", ".claude/agents") == 0
    command = f"orchestrator trust {place}/.claude"
    assert capsys.readouterr().out.rstrip().endswith(f"see: {command}")
    assert run(*command.split()[1:], "--yes") == 0
    assert f"  + {search}" in capsys.readouterr().out
    assert untrusted() == {}


def test_without_agents_it_is_said_how_to_use_those_of_others(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ".claude/agents holds 1 file for Claude Code: use them as they are with --agents-dir"
    assert run("agents", "list") == 4
    assert how in capsys.readouterr().err
    (place / "agents").mkdir()
    assert run("agents", "list") == 0
    assert how in capsys.readouterr().out
    assert run("agents", "list", "--agents-dir", ".claude/agents") == 0
    assert capsys.readouterr().out.startswith("code-reviewer  Use it when: a change is ready\n")
    assert run("agents", "show", "code-reviewer", "--agents-dir", ".claude/agents") == 0
    assert f"  {place}/.claude/agents/reviewer.md:6: memory: {MEMORY}" in capsys.readouterr().out
