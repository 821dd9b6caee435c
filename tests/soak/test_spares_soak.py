"""Hundreds of whole runs on spares, with faults. SOAK_SPARE_RUNS, SOAK_SEED."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.errors import OrchestratorError
from tests.engine.harness import Harness, Steps, bash
from tests.engine.spares.watched_pool import PoolState, WatchedPool

RUNS = int(os.environ.get("SOAK_SPARE_RUNS", "300"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

WARM = 4
AT_ONCE = 2
PLENTY = 1 << 40

KILL_WAITING, KILL_RUNNING, TOUCH, MEMORY = 0.08, 0.04, 0.04, 0.03
"""How often each fault comes before a run."""
MEMORY_COMES_BACK = 0.3
IN_A_HURRY = 0.2
"""Runs that do not wait for a spare to be there."""
WAIT_SECONDS = 20.0
"""For the others."""
STORM_SECONDS = 3600
REST_SECONDS = 300

MARK = "/home/agent/.mark"
STEPS: Steps = [
    bash(f"test -e {MARK} && echo used; touch {MARK}; hostname; echo $GENERATION"),
    {"text": "{last_tool_result} for {last_user_text}"},
]
"""Whoever comes second to a container finds the mark."""

pytestmark = pytest.mark.timeout(0)


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.pool:
        yield harness


class Storm:
    """Runs tasks on one service and does harm to its spares."""

    def __init__(self, harness: Harness, runtime: DockerRuntime) -> None:
        self._harness = harness
        self._runtime = runtime
        self._random = random.Random(SEED)
        self.available = PLENTY
        self._left = RUNS
        self._number = 0
        self._generation = 0
        self._under_way: dict[str, str] = {}
        """Containers by run."""
        self._harmed: set[str] = set()
        """Runs that were killed."""
        self._used: set[str] = set()
        self.ends: Counter[str] = Counter()

    def service(self) -> Service:
        return self._harness.service(STEPS, warm=WARM, env={"GENERATION": f"g{self._generation}"})

    async def blow(self, service: Service) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(self._run_on, service)
        self.available = PLENTY

    def is_over(self, state: PoolState) -> bool:
        """All spares are there again, of the agent as it is now, and nothing else is."""
        spares = [slot.spare for slot in self._harness.pool._slots if slot.state == "waiting"]
        made_for = [spare.process.launch.env["GENERATION"] for spare in spares]
        busy = state.making or state.closing or state.in_use
        return not busy and made_for == [f"g{self._generation}"] * WARM

    async def _run_on(self, service: Service) -> None:
        while self._left > 0:
            self._left -= 1
            await self._do_harm()
            if self._random.random() > IN_A_HURRY:
                with anyio.move_on_after(WAIT_SECONDS):
                    await self._harness.pool.until(lambda s: s.memory_short or s.waiting > 0)
            await self._run(service)

    async def _run(self, service: Service) -> None:
        self._number += 1
        task = Task(agent="worker", prompt=f"number {self._number}")
        harm = self._random.random() < KILL_RUNNING
        at_least = self._generation

        def listen(event: Event) -> None:
            if event.kind == "started":
                self._under_way[task.run_id] = event.text.split()[-1]
            elif event.kind == "ready" and harm:
                self._harmed.add(task.run_id)
                killing.start_soon(self._kill, self._under_way[task.run_id])

        async with anyio.create_task_group() as killing:
            result = await service.run(task, listen)
        container = self._under_way.pop(task.run_id)
        assert container not in self._used, "used twice"
        self._used.add(container)
        self.ends[f"{result.status} {result.reason}"] += 1
        if result.status != "completed":
            assert task.run_id in self._harmed, result
            return
        host, generation, *rest = str(result.result).split()
        assert host != "used", "somebody was there before"
        assert int(generation[1:]) >= at_least, "made for an agent of before"
        assert " ".join(rest) == f"for {task.prompt}"

    async def _do_harm(self) -> None:
        dice = self._random.random()
        pool = self._harness.pool
        waiting = [slot.spare.name for slot in pool._slots if slot.state == "waiting"]
        if self._random.random() < MEMORY_COMES_BACK:
            self.available = PLENTY
        if dice < KILL_WAITING and waiting:
            await self._kill(self._random.choice(waiting))
        elif dice < KILL_WAITING + TOUCH:
            self._generation += 1
            self.service()  # writes agent.md
        elif dice < KILL_WAITING + TOUCH + MEMORY:
            self.available = 0

    async def _kill(self, name: str) -> None:
        with suppress(OrchestratorError):  # it has just gone by itself
            await self._runtime.engine.call(self._runtime.engine.api.kill, name)


async def test_hundreds_of_runs_on_spares_with_faults_leak_nothing_and_reuse_nothing(
    harness: Harness, runtime: DockerRuntime
) -> None:
    storm = Storm(harness, runtime)
    limits = PoolLimits(quiet_seconds=0.1, check_seconds=0.1, backoff_seconds=0.1)
    pool = WatchedPool[WaitingStage](limits, available_bytes=lambda: storm.available)
    try:
        async with pool:
            harness.pool = pool
            service = storm.service()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.keep_warm)
                with anyio.fail_after(STORM_SECONDS):
                    await storm.blow(service)
                with anyio.fail_after(REST_SECONDS):
                    state = await pool.until(storm.is_over)
                tasks.cancel_scope.cancel()
            waiting = {slot.spare.name for slot in pool._slots}
            assert {info.name for info in await runtime.list()} == waiting
            assert len(waiting) == state.alive == WARM
        assert await runtime.list() == ()
        _check(pool.state, storm)
    except BaseException as exc:
        exc.add_note(f"to see it again: SOAK_SEED={SEED}")
        raise
    print(f"\n{RUNS} runs: {dict(storm.ends)}; {pool.state.model_dump()}")


def _check(state: PoolState, storm: Storm) -> None:
    assert state.claimed + state.cold == sum(storm.ends.values()) == RUNS
    assert state.made == state.claimed + sum(state.discarded.values())
    assert state.alive == state.making == 0
