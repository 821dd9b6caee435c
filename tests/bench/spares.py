"""Runs that find a spare waiting, against `docker run` of the same CLI; and what waiting costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from orchestrator.app import open_orchestrator
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.pool import Pool
from orchestrator.engine.service import Service
from orchestrator.engine.shelf import PoolState
from orchestrator.engine.stage import WaitingStage
from orchestrator.settings import Settings
from tests.bench.row import Row, Target, ratio_at_most
from tests.bench.runs import (
    ANSWER,
    PROMPT,
    Model,
    Times,
    bench_settings,
    docker_run,
    on_bridge,
    open_model,
    theirs,
)
from tests.bench.stage import Stage, median_ms

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
        plan = await service.plan(Task(agent="bench", prompt=PROMPT))
        async with on_bridge(stage, model.url) as url:
            command = docker_run(stage, folder, plan, "bridge", url)
            for round_number in range(1 + stage.times(20, 6)):
                await _calm(service, 1)
                measured = await call(service, model), await theirs(command, model)
                if round_number:  # the first one only warms up
                    ours.append(measured[0])
                    plain.append(measured[1])
            claimed = pool_of(service).state.claimed
        assert claimed == 1 + len(ours), "a call was not a warm one"
        row = {"against": "docker run --rm, claude", "unit": "ms"}
        asked = median_ms([times.asked for times in plain])
        done = median_ms([times.done for times in plain])
        return (
            Row(
                name="run_subagent, warm, to the first model request",
                ours=median_ms([times.asked for times in ours]),
                theirs=asked,
                target=ratio_at_most(0.08),
                **row,
            ),
            Row(
                name="run_subagent, warm, to the answer",
                ours=median_ms([times.done for times in ours]),
                theirs=done,
                target=ratio_at_most(0.15),
                **row,
            ),
        )


async def spare_crowd(stage: Stage) -> tuple[Row, ...]:
    """Many calls at once, with and without spares, taking turns."""
    taken: dict[int, list[float]] = {AT_ONCE: [], 0: []}
    calls = stage.times(CALLS, 24)
    async with open_model() as model:
        for _ in range(stage.times(3, 1)):
            for warm, seconds in taken.items():
                async with _open_warm(stage, model, warm) as (_, service):
                    await _calm(service, warm)
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
    """What a paused spare takes of the machine while it waits."""
    async with open_model() as model, _open_warm(stage, model, 1, pause=0.0) as (_, service):
        with anyio.fail_after(READY_SECONDS):
            state = await pool_of(service).until(lambda state: state.paused == 1)
        group = await _processes(stage, service)
        before = sum(map(_cpu_ticks, group))
        await anyio.sleep(IDLE_SECONDS)
        spent = sum(map(_cpu_ticks, group)) - before
    return (
        Row(
            name=f"CPU of a paused spare in {IDLE_SECONDS:.0f} s",
            unit="ms",
            ours=spent * 1000 / TICKS,
            target=Target(of="ours", how="<=", value=1000 / TICKS),  # the warden's pings
        ),
        Row(name="memory of a paused spare", unit="MB", ours=state.memory_bytes / 1e6),
    )
