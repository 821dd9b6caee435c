"""`orchestrator new` from outside: questions at a terminal, flags without one."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

ANSWER_SECONDS = 60
"""For one command to be typed to its end."""


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, in which the test stands."""
    for name in ("ORCHESTRATOR_AGENTS_DIR", "ORCHESTRATOR_TRUSTED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def typed(*argv: str, answers: str) -> str:
    """What a terminal shows while a person types these answers."""
    ours, theirs = pty.openpty()
    try:
        command = [str(Path(sys.executable).parent / "orchestrator"), *argv]
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            os.write(ours, answers.encode())
            shown = bytearray()
            while piece := _read(ours):
                shown += piece
            assert process.wait(ANSWER_SECONDS) == 0, shown.decode()
    finally:
        os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


def test_five_answers_make_an_agent_that_passes_the_check(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = "Fixes what is wrong: at once.\nedit, run\n\ndocs.example.org\nhaiku\n"
    shown = typed("new", "fixer", answers=answers)
    path = place / "agents/fixer/agent.md"
    for question in (
        "What is it for, in one sentence?",
        "What may it do (read, edit, run, web, names of tools)? [read]:",
        "How does it see a workspace (none, ro, rw, copy)? [copy]:",
        "Which hosts may it reach (a.org, b.org)? [none]:",
        "Which model? [sonnet]:",
        f"written  {path}",
        "trusted  fixer with what you have named: network: docs.example.org",
    ):
        assert question in shown
    assert path.read_text().startswith(
        "---\n"
        "name: fixer\n"
        'description: "Fixes what is wrong: at once."\n'
        "permissions:\n"
        "  allow: [Edit, Glob, Grep, Read, Write, Bash]\n"
        "model: haiku\n"
        "network:\n"
        "  allow: [docs.example.org]\n"
        "---\n\n"
        "You are called by another program with one task. "
        "What you are for: Fixes what is wrong: at once.\n"
    )
    assert run("agents", "check") == 0
    assert capsys.readouterr().out == "1 agent, all good\n"


def test_flags_are_enough_and_only_the_new_agent_is_trusted(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place / "agents/other/agent.md"
    other.parent.mkdir(parents=True)
    other.write_text("---\nname: other\ndescription: x\nnetwork: {allow: [evil.org]}\n---\nx\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("Be brief.\n"))
    flags = ("--description", "Looks.", "--tools", "web, Bash(git log:*)", "--network", "open")
    more = ("--workspace", "rw", "--model", "opus", "--prompt", "-", "--json")
    assert run("new", "looker", *flags, *more) == 0
    said = json.loads(capsys.readouterr().out)
    path = place / "agents/looker/agent.md"
    assert said == {
        "agent": "looker",
        "path": str(path),
        "trusted": [
            "network: every public host",
            "web search: by the model API, which sends what is searched for",
            "workspace: written to, also outside the project",
        ],
    }
    assert path.read_text() == (
        "---\nname: looker\ndescription: Looks.\npermissions:\n"
        '  allow: [WebSearch, "Bash(git log:*)"]\n'
        "model: opus\nworkspace: rw\nnetwork: open\n---\n\nBe brief.\n"
    )
    assert run("agents", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["untrusted"] == {"other": ["network: evil.org"]}
    assert run("new", "second", "--description", "x", "--network", "b.org") == 0
    capsys.readouterr()
    assert run("agents", "list", "--json") == 0  # the first stays trusted
    assert json.loads(capsys.readouterr().out)["untrusted"] == {"other": ["network: evil.org"]}
    assert run("audit", "--act", "trust", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["decisions"]) == 2


def test_where_scripts_play_the_model_a_new_agent_can_be_tried_at_once(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("new", "reader", "--description", "Reads.") == 0
    written = [project.path / "agents/reader" / name for name in ("agent.md", "script.yaml")]
    assert capsys.readouterr().out.splitlines() == [
        *(f"written  {path}" for path in written),
        "Write below its fields what it should know. Then:",
        "  orchestrator plan reader",
        "  orchestrator run reader 'THE TASK'",
    ]
    assert run("run", "reader", "say hello") == 0
    said = capsys.readouterr().out
    assert said.startswith("A script plays the model. I was asked: ")
    assert "say hello" in said
    written[1].unlink()
    assert run("run", "reader", "say hello") == 1
    assert f"there is no {written[1]} to play the model; write one" in capsys.readouterr().err


def test_defaults_are_those_that_open_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("new", "reader", "--description", "Reads.") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"written  {place}/agents/reader/agent.md"
    head = (place / "agents/reader/agent.md").read_text().partition("\n---\n")[0]
    assert head.splitlines()[1:] == [
        "name: reader",
        "description: Reads.",
        "permissions:",
        "  allow: [Glob, Grep, Read]",
    ]
    assert run("new", "reader", "--description", "Reads.") == 4
    assert "reader/agent.md exists; change it, or take another name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ((), 4, "--description is missing: say in one sentence what the agent is for"),
        (("--description", " "), 4, "--description is missing"),
        (("--description", "x", "--workspace", "rx"), 3, "nothing is written: workspace: "),
        (("--description", "x", "--tools", "Raed"), 3, "nothing is written: permissions.allow[0]"),
        (("--description", "x", "--network", "http://a.org"), 3, "nothing is written: network."),
        (("--description", "x", "--model", ""), 3, "nothing is written: model: must not be empty"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_written(
    place: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], code: int, said: str
) -> None:
    assert run("new", "a", *flags) == code
    assert capsys.readouterr().err.startswith(f"error: {said}")
    assert not (place / "agents").exists()


@pytest.mark.parametrize("name", ["Code Reviewer", "../up", "", ".hidden", "main", "servers"])
def test_a_name_that_is_none_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert run("new", name, "--description", "x") in (3, 4)
    assert capsys.readouterr().err.startswith("error: ")
    assert list(place.iterdir()) == []
