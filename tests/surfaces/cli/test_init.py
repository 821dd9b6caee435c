"""`orchestrator init` from outside: what it writes works, and nothing is overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.surfaces.cli import init as cli_init
from orchestrator.surfaces.cli.main import main
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
