"""Sockets of a mounted workspace, while a run is under way: each is told once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Bind, User
from orchestrator.domain.task import Task
from orchestrator.engine.workspaces import second_wires
from orchestrator.engine.workspaces.second_wires import SecondWires
from orchestrator.plan import Place, Plan, plan
from orchestrator.workspace.special_files import covers
from tests.workspace.trees import make

PATIENCE = 30


class Told:
    """A record of warnings."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, kind: str, text: str) -> None:
        assert kind == "warning"
        self.lines.append(text)


def planned(root: Path) -> Plan:
    status = root.stat()
    shown = Bind(source=str(root), identity=f"{status.st_dev}:{status.st_ino}")
    agent = AgentSpec.model_validate({"name": "worker", "description": "Works."})
    place = Place(image="x", workspace_owner=User(), workspace=shown, covers=covers([shown]))
    return plan(agent, Task(agent="worker", prompt="x", workspace=root), place, {}, "token")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_wires, "SECOND_LOOK_SECONDS", 0.01)


async def test_what_is_covered_what_appears_and_what_went_again_is_told_once(
    tmp_path: Path,
) -> None:
    root, told = make(tmp_path / "project", {}), Told()
    os.mkfifo(root / "old")
    record: Any = told
    wires = SecondWires(planned(root), record)
    with anyio.fail_after(PATIENCE):
        async with wires.told(), anyio.create_task_group() as tasks:
            tasks.start_soon(wires.keep_looking)
            os.mkfifo(root / "brief")
            while len(told.lines) < 2:
                await anyio.sleep(0.01)
            (root / "brief").unlink()
            tasks.cancel_scope.cancel()
            os.mkfifo(root / "last")
    assert [line.partition(" appeared")[0] for line in told.lines[1:]] == [
        "/workspace/brief (FIFO)",
        "/workspace/last (FIFO)",
    ]
    assert told.lines[0].startswith("the agent cannot reach /workspace/old (FIFO): covered")


async def test_a_workspace_that_cannot_be_looked_through_any_more_is_told_once(
    tmp_path: Path,
) -> None:
    root, told = make(tmp_path / "project", {}), Told()
    record: Any = told
    wires = SecondWires(planned(root), record)
    root.rename(tmp_path / "away")
    with anyio.fail_after(PATIENCE):
        async with wires.told(), anyio.create_task_group() as tasks:
            tasks.start_soon(wires.keep_looking)
            while not told.lines:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    (line,) = told.lines
    assert line.startswith("sockets may have appeared unseen: ")
