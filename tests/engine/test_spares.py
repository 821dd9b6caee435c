"""Spares of runs, with the real CLI: who asks finds it waiting, and gets it for himself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker_runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from tests.engine.harness import Harness, bash

PATIENCE = 170


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.pool:
        yield harness


async def warm(harness: Harness, service: Service, count: int) -> None:
    """Have spares made, as a server does, until so many wait."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.keep_warm)
        with anyio.fail_after(PATIENCE):
            await harness.pool.until(lambda state: state.waiting == count)
        tasks.cancel_scope.cancel()


async def test_a_run_takes_a_spare_that_waits_and_nobody_uses_it_again(
    harness: Harness, runtime: DockerRuntime
) -> None:
    steps = [bash("hostname; touch ~/mark; ls ~/mark"), {"text": "{last_tool_result}"}]
    service = harness.service(steps, warm=1)
    await warm(harness, service, 1)
    (waiting,) = await runtime.list()

    with anyio.fail_after(PATIENCE):
        first = await service.run(Task(agent="worker", prompt="x"), harness.events.append)
    assert first.status == "completed", first
    (started,) = (event for event in harness.events if event.kind == "started")
    assert started.text == f"claude in {waiting.name}"
    assert harness.pool.state.claimed == 1

    with anyio.fail_after(PATIENCE):
        second = await service.run(Task(agent="worker", prompt="x"))
    assert second.status == "completed"
    assert str(first.result).split()[0] != str(second.result).split()[0]
