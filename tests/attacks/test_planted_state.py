"""Attacks by a repository, or an agent that may write to one, on the orchestrator's own files."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store.schema import MIGRATIONS
from tests.attacks.mark import attack

TASK = '{"agent": "a", "prompt": "x"}'


def orchestrator(home: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = f"from orchestrator.surfaces.cli.main import main; main({[*argv]!r})"
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], **env}
    for name in ("PYTHONPATH",):
        environ |= {name: os.environ[name]} if name in os.environ else {}
    argv_ = [sys.executable, "-c", code]
    return subprocess.run(argv_, cwd=home / "repo", env=environ, capture_output=True, text=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A person's, with a repository of a stranger's in it."""
    (tmp_path / "repo").mkdir()
    for name in ("Documents", "work.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").write_text("dear")
    return tmp_path


def plant(state: Path, victim: Path) -> None:
    """A state directory whose records lead to the victim's directories."""
    state.mkdir(mode=0o700)
    (state / "changes").symlink_to(victim)
    db = sqlite3.connect(state / "runs.sqlite")
    with db:
        for statement in (each for entry in MIGRATIONS for each in entry):
            db.execute(statement)
        row = (
            "INSERT INTO runs (run_id, agent, caller, status, owner, task, created, ended) "
            "VALUES (?, 'a', 'main', ?, 'nobody', ?, 1.0, ?)"
        )
        db.execute(row, ("Documents", "completed", TASK, 2.0))
        db.execute(row, ("work", "running", TASK, None))
    db.close()


@attack(
    "planted settings",
    "name a state directory in orchestrator.yaml whose records lead to a person's folders",
    "refused before anything of it is opened; the folders are as they were",
)
def test_a_repository_cannot_name_the_state_directory(home: Path) -> None:
    plant(home / "repo/state", home)
    (home / "repo/orchestrator.yaml").write_text("state_dir: ./state\n")
    done = orchestrator(home, "runs")
    assert done.returncode == 4
    assert "state_dir decides over this machine" in done.stderr
    assert (home / "Documents/kept").exists()
    assert (home / "work.new/kept").exists()


@attack(
    "planted settings",
    "have a run's id, or a link called changes, lead out of the state directory",
    "no id but our own becomes a path, and no link is followed; the folders are as they were",
)
@pytest.mark.parametrize("command", [("runs",), ("runs", "prune", "--older-than", "1d")])
def test_no_record_leads_out_of_the_state_directory(home: Path, command: tuple[str, ...]) -> None:
    plant(home / "state", home)
    done = orchestrator(home, *command, ORCHESTRATOR_STATE_DIR=str(home / "state"))
    assert "Traceback" not in done.stderr
    assert (home / "Documents/kept").exists()
    assert (home / "work.new/kept").exists()


@attack(
    "planted settings",
    "share a state directory that another user can write to",
    "refused with a sentence, as is a link in the place of its id",
)
def test_a_state_directory_is_the_users_alone(home: Path) -> None:
    state = home / "state"
    state.mkdir(mode=0o700)
    (state / "id").symlink_to(home / "nowhere")
    done = orchestrator(home, "sessions", "list", ORCHESTRATOR_STATE_DIR=str(state))
    assert (done.returncode, "is a link" in done.stderr) == (4, True), done.stderr
    (state / "id").unlink()
    state.chmod(0o777)
    done = orchestrator(home, "sessions", "list", ORCHESTRATOR_STATE_DIR=str(state))
    assert (done.returncode, "by another user" in done.stderr) == (4, True), done.stderr
