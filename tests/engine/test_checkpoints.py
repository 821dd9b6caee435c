"""What an agent has changed is saved while it works, and there when nobody can hand it back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.fake import FakeEngine, FakeRuntime
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.record import Record
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.engine.workspaces import checkpoints as checkpoints_module
from orchestrator.engine.workspaces.checkpoints import keep_checkpoints
from orchestrator.errors import CopyFailed
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 170

ASK: dict[str, object] = {"tool": "mcp__parent__ask_parent", "input": {"question": "Go on?"}}
FIELDS: dict[str, Any] = {"ask": "parent", "workspace": "copy"}


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "greeting.txt").write_text("hello\n")
    return root


def saved(event: Event) -> bool:
    return event.kind == "workspace" and "so far" in event.text


async def test_a_container_killed_from_outside_leaves_what_was_saved(
    harness: Harness, project: Path, runtime: DockerRuntime
) -> None:
    steps: Steps = [bash("echo late > greeting.txt; mkdir d; echo x > 'd/a b'"), ASK]
    outcome: list[RunResult] = []
    at_rest = anyio.Event()

    async def go() -> None:
        task = Task(agent="worker", prompt="x", workspace=project)
        service = harness.service(steps, **FIELDS)
        outcome.append(await service.run(task, lambda e: at_rest.set() if saved(e) else None))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await at_rest.wait()
            (info,) = await runtime.list()
            await runtime.engine.call(runtime.engine.api.kill, info.id)

    (result,) = outcome
    assert (result.status, result.reason) == ("failed", "container_killed"), result
    assert result.changed_files == (
        ChangedFile(path="d/a b", change="added"),
        ChangedFile(path="greeting.txt", change="modified"),
    )
    assert "-hello\n+late\n" in result.patch
    assert any(" are handed back" in line for line in result.log_tail)
    assert [path.name for path in (project.parent / "changes").iterdir()] == [result.run_id]
    harness.copies.apply(result.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "late\n"
    assert (project / "d/a b").read_text() == "x\n"


async def test_processes_live_on_while_changes_are_saved_and_the_end_replaces_what_was(
    harness: Harness, project: Path
) -> None:
    steps: Steps = [
        bash("tail -f /dev/null > /dev/null 2>&1 & echo $! > /tmp/pid; echo late > greeting.txt"),
        ASK,
        bash("kill -0 $(cat /tmp/pid) && echo alive; ls -a; echo hello > greeting.txt"),
        {"text": "{last_tool_result}"},
    ]
    at_rest = anyio.Event()
    service = harness.service(steps, **FIELDS)
    with anyio.fail_after(PATIENCE):
        async with Tasks(service) as tasks:
            task = Task(agent="worker", prompt="x", workspace=project)
            run_id = await tasks.start(task, lambda e: at_rest.set() if saved(e) else None)
            await at_rest.wait()
            (question,) = (await tasks.book.view(run_id)).questions
            await tasks.book.reply(run_id, question.message_id, "yes", None)
            (view,) = await tasks.book.wait([run_id], None, seconds=PATIENCE)
    assert view.result is not None
    assert (view.status, view.result.result) == ("completed", "alive\n.\n..\ngreeting.txt")
    assert view.result.changed_files == ()
    assert list((project.parent / "changes").iterdir()) == []


async def test_changes_that_cannot_be_saved_are_told_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "CHECKPOINT_SECONDS", 0.001)
    events: list[Event] = []
    tries: list[int] = []

    async def save() -> None:
        tries.append(1)
        if len(tries) == 3:
            raise KeyboardInterrupt  # enough
        raise CopyFailed("no room")

    record = Record("r1", harness.store, [events.append])
    with anyio.fail_after(PATIENCE):
        async with FakeRuntime(FakeEngine(images=frozenset({"image"}), programs={})).open(
            ContainerSpec(image="image")
        ) as container:
            with pytest.raises(KeyboardInterrupt):
                await keep_checkpoints(save, container, record)
    told = "its changes so far could not be saved; it goes on: no room"
    assert [(event.kind, event.text) for event in events] == [("warning", told)]
