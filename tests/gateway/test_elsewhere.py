"""Work in a process that can be killed: answered, given up, and nothing left of it."""

from __future__ import annotations

import os
import re
import sys
import time

import anyio
import pytest

from orchestrator.gateway.elsewhere import IDLE_WORKERS, end_idle_workers, run_elsewhere
from tests.waited_for import processes_waited_for

PATIENCE = 60


def add(one: int, other: int) -> int:
    print("this is no answer")
    sys.stdin.read()
    return one + other


def pid_and_secrets() -> tuple[int, bool]:
    return os.getpid(), "A_KEY" in os.environ


def fail() -> None:
    raise ValueError("seven")


def die() -> None:
    os._exit(3)


def busy(text: str) -> bool:
    return re.match(r"^(a+)+$", text) is None


async def until_waited_for(count: int) -> None:
    with anyio.fail_after(PATIENCE):
        while processes_waited_for() != count:
            await anyio.sleep(0.01)


async def test_work_is_done_by_one_process_after_another_that_knows_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", "s3cret")
    assert await run_elsewhere(add, 3, 4, seconds=PATIENCE) == 7
    with pytest.raises(ValueError, match="seven"):
        await run_elsewhere(fail, seconds=PATIENCE)
    (one, knows), (other, _) = [
        await run_elsewhere(pid_and_secrets, seconds=PATIENCE) for _ in range(2)
    ]
    assert (one, knows) == (other, False)
    assert one != os.getpid()


async def test_what_takes_for_ever_is_killed_and_what_died_is_told() -> None:
    with pytest.raises(TimeoutError):
        await run_elsewhere(busy, "a" * 60 + "!", seconds=0.5)
    with pytest.raises(anyio.BrokenWorkerProcess):
        await run_elsewhere(die, seconds=PATIENCE)
    await until_waited_for(0)
    assert await run_elsewhere(add, 3, 4, seconds=PATIENCE) == 7


@pytest.mark.parametrize("seconds", [0, 0.001, 0.01, 0.03, 0.1, 0.3])
async def test_a_caller_that_gives_up_at_any_time_leaves_no_process(seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await run_elsewhere(busy, "a" * 60 + "!", seconds=PATIENCE)
    await until_waited_for(0)


async def test_few_processes_are_kept_for_the_next_caller() -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2 * IDLE_WORKERS):
            tasks.start_soon(lambda: run_elsewhere(time.sleep, 0.1, seconds=PATIENCE))
    await until_waited_for(IDLE_WORKERS)
    await end_idle_workers()
    await until_waited_for(0)
    assert await run_elsewhere(add, 3, 4, seconds=PATIENCE) == 7
