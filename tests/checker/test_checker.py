"""What is said of agents, with the line and what to write: one table for all commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from orchestrator.app import without_image
from orchestrator.catalog import Catalog, Problem
from orchestrator.settings import Settings, read_settings
from orchestrator.state import open_agents
from orchestrator.surfaces.cli.main import main
from tests.checker.broken_agents import BROKEN, DOUBTFUL, GOOD, Case

OTHER = "---\nname: other\ndescription: Is another one.\n---\nGo.\n"
BAD = "---\nname: bad\n---\nGo.\n"


@pytest.fixture
def agents_dir(tmp_path: Path) -> Path:
    for name, text in (("other", OTHER), ("bad", BAD)):
        write(tmp_path / "agents" / name, text)
    return tmp_path / "agents"


def write(folder: Path, text: str, file: str = "agent.md") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)
    return folder / file


def settings_of(agents_dir: Path) -> Settings:
    home = {"HOME": str(agents_dir.parent), "ORCHESTRATOR_AGENTS_DIR": str(agents_dir)}
    return read_settings(home, agents_dir.parent)


def checked(agents_dir: Path) -> Catalog:
    return open_agents(settings_of(agents_dir)).current()


def lines(problems: tuple[Problem, ...], path: Path) -> list[str]:
    return [str(problem).removeprefix(f"{path}:") for problem in problems]


def test_there_are_enough_of_them() -> None:
    assert len(BROKEN) >= 40
    assert len({each.text for each in (*BROKEN, *DOUBTFUL, *GOOD)}) == len(BROKEN) + len(
        DOUBTFUL
    ) + len(GOOD)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda each: each.name)
def test_what_stops_an_agent_is_told_with_its_line_and_what_to_write(
    agents_dir: Path, broken: Case
) -> None:
    path = write(agents_dir / "mine", broken.text)
    (found,) = [each for each in checked(agents_dir).broken if each.name == "mine"]
    assert lines(found.problems, path) == list(broken.said)


@pytest.mark.parametrize("doubtful", DOUBTFUL, ids=lambda each: each.name)
def test_what_is_probably_not_meant_is_told_and_stops_nothing(
    agents_dir: Path, doubtful: Case
) -> None:
    path = write(agents_dir / "mine", doubtful.text)
    catalog = checked(agents_dir)
    assert "mine" in catalog.agents
    assert lines(catalog.warnings["mine"], path) == list(doubtful.said)


@pytest.mark.parametrize("good", GOOD, ids=lambda each: each.name)
def test_of_what_can_work_nothing_is_said(agents_dir: Path, good: Case) -> None:
    write(agents_dir / "mine", good.text)
    catalog = checked(agents_dir)
    assert ("mine" in catalog.agents, catalog.warnings) == (True, {})


# The directory


def test_a_file_with_another_name_than_agent_md_is_told(agents_dir: Path) -> None:
    files = [
        write(agents_dir / name, OTHER, name) for name in ("AGENT.md", "Agent.MD", "agent.txt")
    ]
    catalog = checked(agents_dir)
    assert list(catalog.agents) == ["other"]
    assert [str(each.problems[0]) for each in catalog.broken if each.path in files] == [
        f"{path}: an agent's file is called agent.md; rename {path.name} to that" for path in files
    ]


def test_a_folder_without_an_agent_is_told_beside_agents(agents_dir: Path) -> None:
    (agents_dir / "later" / "deep").mkdir(parents=True)
    (agents_dir / ".git").mkdir()
    (agents_dir / "main").mkdir()
    (agents_dir / "servers").mkdir()
    assert list(map(str, checked(agents_dir).doubts)) == [
        f"{agents_dir}/later: holds no agent.md; write one, or move the folder elsewhere"
    ]


def test_a_directory_of_other_things_is_told_once(tmp_path: Path) -> None:
    for name in ("bin", "etc/deep/deeper/deepest/more/x", "home/me/agents/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lib").symlink_to("bin")
    write(tmp_path / "home/me/agents/a", OTHER)
    (told,) = checked(tmp_path).doubts
    assert str(told).startswith(f"{tmp_path}: no folder in it holds an agent.md; an agent is a ")


# What each command says of the same


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    code = exit_.value.code
    assert isinstance(code, int)
    return code


@pytest.fixture
def here(agents_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The commands find these agents: one that is broken, one that is not, one with a warning."""
    monkeypatch.setenv("ORCHESTRATOR_AGENTS_DIR", str(agents_dir))
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(agents_dir.parent / "state"))
    write(
        agents_dir / "mine", OTHER.replace("other", "mine").replace("---\nGo", "model: x\n---\nGo")
    )
    return agents_dir


def test_list_check_and_show_tell_of_warnings(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    doubt = f"{here}/mine/agent.md:4: model: no price is known for 'x', so runs are billed as the "
    assert run("agents", "list") == 0
    assert capsys.readouterr().out.endswith("\n1 warning; see: orchestrator agents check\n")
    assert run("agents", "list", "--json") == 0
    assert [each["line"] for each in json.loads(capsys.readouterr().out)["warnings"]] == [4]
    assert run("agents", "show", "mine") == 0
    assert f"What is probably not meant:\n  {doubt}" in capsys.readouterr().out
    (here / "bad" / "agent.md").unlink()
    (here / "bad").rmdir()
    assert run("agents", "check") == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith(doubt)
    assert (first.endswith(" (a warning)"), last) == (True, "2 agents, usable, with 1 warning")


def test_an_image_that_the_engine_does_not_have_is_told_by_check(here: Path) -> None:
    write(
        here / "mine",
        OTHER.replace("other", "mine").replace("---\nGo", "image: no/such:1\n---\nGo"),
    )
    settings = read_settings({"HOME": str(here.parent), "ORCHESTRATOR_AGENTS_DIR": str(here)})
    (told,) = without_image(settings, open_agents(settings))
    assert str(told).startswith(
        f"{here}/mine/agent.md:4: image: 'no/such:1' is not on the engine, "
    )


@pytest.mark.parametrize("mode", ["ro", "rw", "copy", "none"])
def test_a_workspace_that_is_not_there_has_one_answer(
    here: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    fields = f"workspace: {mode}\n---\nGo"
    write(here / "mine", OTHER.replace("other", "mine").replace("---\nGo", fields))
    (here / "file").touch()
    for name, why in (
        ("nowhere", "does not exist, so no agent can be shown it"),
        ("file", "is not a directory; name one"),
    ):
        assert run("plan", "mine", "--workspace", str(here / name)) == 5
        said = "agent 'mine' takes no workspace; call it without one"
        said = said if mode == "none" else f"{here / name} {why}"
        assert capsys.readouterr().err == f"error: {said}\n"


def serving(agents_dir: Path, lines: int) -> list[str]:
    """What `orchestrator serve` says on stderr, as far as so many lines; then it is ended."""
    command = Path(sys.executable).with_name("orchestrator")
    environ = {**os.environ, "ORCHESTRATOR_AGENTS_DIR": str(agents_dir)}
    with subprocess.Popen(
        [command, "serve"], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environ
    ) as server:
        assert server.stderr is not None
        said = [server.stderr.readline().rstrip() for _ in range(lines)]
        server.communicate(timeout=60)
    return [line.partition(": ")[2] for line in said]


def test_a_server_tells_its_operator_of_what_cannot_be_used(here: Path) -> None:
    broken, doubt = serving(here, 2)
    assert broken.startswith(f"this agent cannot be used: {here}/bad/agent.md:1: description: is ")
    assert doubt.startswith(f"probably not meant: {here}/mine/agent.md:4: model: no price is known")
    (missing,) = serving(here / "nowhere", 1)
    assert missing.startswith(f"there is no directory {here}/nowhere, so there are no agents; ")
