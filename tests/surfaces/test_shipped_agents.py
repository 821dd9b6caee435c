"""The agents that come with the project, played by their scripts: without a key or a secret."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from orchestrator.surfaces.cli.main import main
from tests.surfaces.conftest import Project

AGENTS = Path(__file__).parent.parent.parent / "agents"


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("name", sorted(path.parent.name for path in AGENTS.glob("*/agent.md")))
def test_a_shipped_agent_answers_from_its_script(
    project: Project, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(AGENTS / name, project.path / "agents" / name)
    shutil.copytree(AGENTS / "servers", project.path / "agents" / "servers")
    assert run("run", name, "What is new?") == 0
    said = capsys.readouterr()
    assert said.out
    assert "denied" not in said.err
    if " session " in said.err:
        assert run("sessions", "rm", name) == 0


def test_the_github_agent_goes_on_where_it_was(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(AGENTS / "github", project.path / "agents" / "github")
    for number, asked in enumerate(("What is new?", "What is new?; And now?")):
        assert run("run", "github", asked.rpartition("; ")[2]) == 0
        said = capsys.readouterr()
        assert said.out.rstrip().endswith(f"In this session you have asked: {asked}")
        assert re.search(rf"git version \S+ ⏎ {number}$", said.err, re.MULTILINE)
    assert run("sessions", "rm", "github") == 0
