"""`orchestrator init` and `trust` from outside: what init writes works, and nothing is overwritten;
what is trusted is what a person has seen.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.setup import project as cli_init
from tests.surfaces.conftest import Project

FILES = ("agents/hello/agent.md", "agents/hello/script.yaml", ".mcp.json")


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_the_example_loads_and_runs(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [f"written  {project.path / name}" for name in FILES]
    assert run("agents", "check") == 0
    assert capsys.readouterr().out == "1 agent, all good\n"
    assert run("run", "hello", "Which kernel is this?") == 0
    assert list(json.loads(capsys.readouterr().out)) == ["answer", "evidence"]


def test_a_second_time_changes_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", str(tmp_path)) == 0
    capsys.readouterr()
    (tmp_path / ".mcp.json").write_text("mine")
    before = {name: (tmp_path / name).read_bytes() for name in FILES}
    assert run("init", str(tmp_path)) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [f"exists   {tmp_path / name}" for name in FILES]
    assert {name: (tmp_path / name).read_bytes() for name in FILES} == before


def test_what_it_registers_is_a_server_that_can_be_started(tmp_path: Path) -> None:
    command = cli_init.own_command()
    *_, config = cli_init.project_files(tmp_path, command)
    (entry,) = json.loads(config.content)["mcpServers"].items()
    assert entry == (
        "subagents",
        {
            "command": command,
            "args": ["serve"],
            "env": {"ORCHESTRATOR_AGENTS_DIR": str(tmp_path / "agents")},
        },
    )
    add = (
        f"  claude mcp add --env=ORCHESTRATOR_AGENTS_DIR={tmp_path}/agents subagents "
        f"-- {command} serve"
    )
    assert add in cli_init.next_steps(tmp_path, command)
    said = subprocess.run([command, "serve", "--help"], capture_output=True, timeout=60)
    assert said.returncode == 0


def test_our_command_is_called_by_name_only_where_that_finds_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bin_dir = Path(sys.executable).parent
    monkeypatch.setenv("PATH", str(bin_dir))
    assert cli_init.own_command() == "orchestrator"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cli_init.own_command() == str(bin_dir / "orchestrator")
    other = tmp_path / "orchestrator"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert cli_init.own_command() == str(bin_dir / "orchestrator")


def test_a_place_that_cannot_be_written_to_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "agents").write_text("a file")
    assert run("init", str(tmp_path)) == 4
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/agents/hello/agent.md cannot be")


# trust


SEARCH = "---\nname: search\ndescription: Searches.\nnetwork: {allow: [a.org]}\n---\nSearch.\n"
PLAIN = "---\nname: plain\ndescription: Reaches nothing.\n---\nDo.\n"


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that nobody has trusted, in which the test stands."""
    project = tmp_path / "repo"
    monkeypatch.delenv("ORCHESTRATOR_AGENTS_DIR", raising=False)
    monkeypatch.delenv("ORCHESTRATOR_TRUSTED", raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    for name, text in (("search", SEARCH), ("plain", PLAIN)):
        (project / "agents" / name).mkdir(parents=True)
        (project / "agents" / name / "agent.md").write_text(text)
    monkeypatch.chdir(project)
    return project


def answering(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """A person at a terminal who answers so, and what they were asked."""
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return answer

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", confirm)
    return asked


def untrusted(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    capsys.readouterr()
    assert run("agents", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["untrusted"]
    assert isinstance(found, dict)
    return found


def test_trust_shows_what_agents_could_reach_and_asks(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = answering(monkeypatch, False)
    assert run("trust") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"the agents of {stranger} could reach, beside their model:",
        "  plain: nothing",
        "  search",
        "  + network: a.org",
        "what has a + is new, and nobody has trusted them with it",
        "nothing is trusted that was not before",
    ]
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    asked += answering(monkeypatch, True)
    assert run("trust", str(stranger)) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("trusted; you are asked again")
    assert untrusted(capsys) == {}
    assert asked == ["Trust them with it?"]
    assert run("trust") == 0  # and asks no more
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "    network: a.org",
        "nothing of it has to be trusted, or all of it is",
    ]


def test_trust_is_asked_again_when_it_has_become_more_and_only_then(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = stranger / "agents/search/agent.md"
    assert run("trust", "--yes") == 0
    file.write_text(SEARCH.replace("network: {allow: [a.org]}", "model: opus"))
    assert untrusted(capsys) == {}
    file.write_text(SEARCH.replace("[a.org]", "[a.org, b.org]"))
    assert untrusted(capsys) == {"search": ["network: b.org"]}
    assert run("trust", "--yes") == 0
    out = capsys.readouterr().out
    assert "\n    network: a.org\n  + network: b.org\n" in out
    assert untrusted(capsys) == {}


def test_what_is_trusted_is_what_was_shown(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def confirm(*_: object, **__: object) -> bool:
        (stranger / "agents/search/agent.md").write_text(SEARCH.replace("a.org", "evil.org"))
        return True

    answering(monkeypatch, True)
    monkeypatch.setattr("typer.confirm", confirm)
    assert run("trust") == 0
    assert "evil.org" not in capsys.readouterr().out
    assert untrusted(capsys) == {"search": ["network: evil.org"]}


def test_trust_is_listed_and_taken_back(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("trust", "--list") == 0
    assert capsys.readouterr().out == "no project is trusted\n"
    assert run("trust", "--yes", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "project": str(stranger),
        "trusted": True,
        "by_setting": False,
        "agents": {"plain": [], "search": ["network: a.org"]},
        "new": {"search": ["network: a.org"]},
    }
    assert run("trust", "--list", "--json") == 0
    (project,) = json.loads(capsys.readouterr().out)["projects"]
    assert project["agents_dir"] == str(stranger / "agents")
    assert run("trust", "--list") == 0
    assert capsys.readouterr().out.startswith(f"{stranger}  20")
    assert run("trust", "--revoke", str(stranger)) == 0
    assert capsys.readouterr().out == f"{stranger} is trusted no more\n"
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    assert run("trust", "--revoke", "--json") == 0
    assert json.loads(capsys.readouterr().out)["was_trusted"] is False


def test_nothing_is_trusted_where_nobody_can_be_asked(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run("trust") == 4
    assert "nobody can be asked here" in capsys.readouterr().err
    assert run("trust", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trusted"] is False
    assert untrusted(capsys) == {"search": ["network: a.org"]}


def test_a_setting_of_the_operators_trusts_what_is_below_it(
    stranger: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", f"/nowhere:{stranger.parent}")
    assert untrusted(capsys) == {}
    assert run("trust") == 0
    assert "by ORCHESTRATOR_TRUSTED" in capsys.readouterr().out
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", f"{stranger.parent}/other")
    assert untrusted(capsys) == {"search": ["network: a.org"]}
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", ".")
    assert run("trust") == 4
    assert "wherever you are, a stranger's too" in capsys.readouterr().err


def test_agents_and_plan_tell_who_is_not_trusted_yet(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"not trusted yet with what they want: search; see: orchestrator trust {stranger}"
    for of in ("list", "check"):
        assert run("agents", of) == 0
        assert line in capsys.readouterr().out.splitlines()
    assert run("plan", "search", "--json") == 0
    assert json.loads(capsys.readouterr().out)["trust"] == {
        "needed": True,
        "missing": ["network: a.org"],
        "command": f"orchestrator trust {stranger}",
    }
    assert run("plan", "plain") == 0
    assert "none needed: it reaches nothing besides its model" in capsys.readouterr().out


def test_what_init_writes_runs_without_a_word(
    stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("init", str(stranger)) == 0
    assert "hello" not in untrusted(capsys)
    assert untrusted(capsys) == {"search": ["network: a.org"]}  # which init did not write
