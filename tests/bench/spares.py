"""Runs that find a spare waiting, against `docker run` of the same CLI; and what waiting costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator import app
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.stage import WaitingStage
from tests.bench.row import Row, Target, ratio_at_most
from tests.bench.runs import (
    ANSWER,
    PROMPT,
    Model,
    Times,
    bench_settings,
    call_row,
    docker_run,
    on_bridge,
    open_model,
    planned,
    theirs,
)
from tests.bench.stage import Stage
from tests.engine.spares.watched_pool import PoolState, WatchedPool
from tests.engine.staged import engine_of

AGENT = "---\nname: bench\ndescription: For a measurement.\nwarm: {warm}\n---\n"

CALLS = 100
AT_ONCE = 8

READY_SECONDS = 300
"""For spares to be made."""

IDLE_SECONDS = 5.0
"""A paused spare is watched for so long."""


async def spares(stage: Stage) -> tuple[Row, ...]:
    """Each measured call finds exactly one spare, and nothing else going on."""
    ours: list[Times] = []
    plain: list[Times] = []
    async with open_model() as model, _open_warm(stage, model, 1) as (folder, service):
        plan = await planned(service, PROMPT)
        async with on_bridge(stage, model.url) as url:
            command = docker_run(stage, folder, plan, "bridge", url)
            for round_number in range(1 + stage.times(20, 6)):
                await calm(service, 1)
                measured = await call(service, model), await theirs(command, model)
                if round_number:  # the first one only warms up
                    ours.append(measured[0])
                    plain.append(measured[1])
            claimed = pool_of(service).state.claimed
        assert claimed == 1 + len(ours), "a call was not a warm one"
    return (
        call_row("run_subagent, warm", "asked", ours, plain, target=ratio_at_most(0.08)),
        call_row("run_subagent, warm", "done", ours, plain, target=ratio_at_most(0.15)),
    )


async def spare_crowd(stage: Stage) -> tuple[Row, ...]:
    """Many calls at once, with and without spares, taking turns."""
    taken: dict[int, list[float]] = {AT_ONCE: [], 0: []}
    calls = stage.times(CALLS, 24)
    async with open_model() as model:
        for _ in range(stage.times(3, 1)):
            for warm, seconds in taken.items():
                async with _open_warm(stage, model, warm) as (_, service):
                    await calm(service, warm)
                    seconds.append(await _many(service, calls))
    return (
        Row(
            name=f"{calls} calls, {AT_ONCE} at once, warm: {AT_ONCE}",
            against="the same without spares",
            unit="s",
            ours=statistics.median(taken[AT_ONCE]),
            theirs=statistics.median(taken[0]),
        ),
    )


async def idle_spare(stage: Stage) -> tuple[Row, ...]:
    """What a paused spare takes of the machine while it waits: its warden lives on."""
    async with open_model() as model, _open_warm(stage, model, 1, pause=0.0) as (_, service):
        with anyio.fail_after(READY_SECONDS):
            state = await pool_of(service).until(lambda state: state.paused == 1)
        (spare,) = await (await engine_of(service)).list()
        before = await _cpu_ms(stage, spare.id)
        await anyio.sleep(IDLE_SECONDS)
        spent = await _cpu_ms(stage, spare.id) - before
    return (
        Row(
            name="CPU of a paused spare, per second",
            unit="ms",
            ours=spent / IDLE_SECONDS,
            target=Target(of="ours", how="<=", value=1),
        ),
        Row(name="memory of a paused spare", unit="MB", ours=state.memory_bytes / 1e6),
    )


async def call(service: Service, model: Model, **fields: object) -> Times:
    """One call, to its first request and to its answer."""
    task = Task.model_validate({"agent": "bench", "prompt": PROMPT, **fields})
    began = time.perf_counter()
    result = await service.run(task)
    done = time.perf_counter()
    assert result.result == ANSWER, result
    return Times(model.first_asked() - began, done - began)


def pool_of(service: Service) -> WatchedPool[WaitingStage]:
    pool = service._staging.stock.pool
    assert isinstance(pool, WatchedPool)
    return pool


async def _many(service: Service, calls: int) -> float:
    """Seconds for so many calls, so many of them at once as a service lets."""

    async def one() -> None:
        result = await service.run(Task(agent="bench", prompt=PROMPT))
        assert result.result == ANSWER, result

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(calls):
            tasks.start_soon(one)
    return time.perf_counter() - began


async def calm(service: Service, waiting: int) -> None:
    """Wait until so many spares wait, and nothing else is under way."""

    def so(state: PoolState) -> bool:
        return state.waiting == waiting and not (state.making or state.closing or state.in_use)

    with anyio.fail_after(READY_SECONDS):
        await pool_of(service).until(so)


@asynccontextmanager
async def _open_warm(
    stage: Stage, model: Model, warm: int, pause: float | None = None
) -> AsyncIterator[tuple[Path, Service]]:
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        folder = Path(name)
        settings = bench_settings(folder, stage.image, model.url, AGENT.format(warm=warm))
        update = {"max_runs": AT_ONCE, "max_runs_per_agent": AT_ONCE, "pause_spares_seconds": pause}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(app, "Pool", WatchedPool)
            opened = app.open_orchestrator(settings.model_copy(update=update), {})
            async with opened as service, anyio.create_task_group() as tasks:
                tasks.start_soon(service.keep_warm)
                yield folder, service
                tasks.cancel_scope.cancel()


async def _cpu_ms(stage: Stage, container: str) -> float:
    engine = stage.runtime.engine
    stats = await engine.call(engine.api.stats, container, stream=False)
    return float(stats["cpu_stats"]["cpu_usage"]["total_usage"]) / 1e6
