"""20 calls to one session in order, 20 sessions side by side, an engine that restarts.

SOAK_SESSIONS says how many. With SOAK_RESTART=1, SOAK_RESTART_COMMAND (such as `systemctl restart
docker`) is run between two calls: other people's containers end as well.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from tests.engine.harness import Harness
from tests.engine.sessions.test_sessions import remembering, told

COUNT = int(os.environ.get("SOAK_SESSIONS", "20"))
RESTART = os.environ.get("SOAK_RESTART") == "1"
RESTART_COMMAND = shlex.split(os.environ.get("SOAK_RESTART_COMMAND", "systemctl restart docker"))
RESTART_SECONDS = 120

pytestmark = [
    pytest.mark.timeout(0),
    # docker-py leaves a socket to the collector when no engine answers.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.sessions:
        yield harness
    for row in await harness.sessions.list():
        await harness.sessions.remove(row.key)


async def test_20_calls_to_one_session_run_in_order_and_none_is_lost(harness: Harness) -> None:
    service = remembering(harness)
    await told(service, "echo start >> log; echo done")
    async with anyio.create_task_group() as tasks:
        for number in range(COUNT):
            tasks.start_soon(told, service, f"echo {number} >> log; echo done")
            await anyio.lowlevel.checkpoint()
    last = await told(service, "tr '\\n' ' ' < log")
    numbers = " ".join(map(str, range(COUNT)))
    assert str(last.result).startswith(f"start {numbers}")
    (row,) = await harness.sessions.list()
    assert row.runs == COUNT + 2
    assert [run.status for run in await harness.store.find_runs()] == ["completed"] * (COUNT + 2)


async def test_20_sessions_run_side_by_side_and_know_nothing_of_each_other(
    harness: Harness, runtime: DockerRuntime
) -> None:
    service = remembering(harness)
    seen: dict[str, str] = {}

    async def talk(name: str) -> None:
        await told(service, f"echo {name} > mine; echo done", name)
        seen[name] = str((await told(service, "cat mine", name)).result)

    names = [f"s{number}" for number in range(COUNT)]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(talk, name)
    assert seen == {name: f"{name} | echo {name} > mine; echo done; cat mine" for name in names}
    assert len(await runtime.list()) == COUNT


@pytest.mark.skipif(not RESTART, reason="SOAK_RESTART=1: it ends everybody's containers")
async def test_a_session_survives_a_restart_of_the_engine(harness: Harness) -> None:
    service = remembering(harness)
    first = await told(service, "echo blue > colour; echo done")
    await _restart()
    second = await told(service, "cat colour")
    assert second.result == "blue | echo blue > colour; echo done; cat colour"
    assert (second.session_id, second.session_note) == (first.session_id, "")


async def _restart() -> None:
    run = partial(subprocess.run, RESTART_COMMAND, check=True, timeout=RESTART_SECONDS)
    await anyio.to_thread.run_sync(run)
