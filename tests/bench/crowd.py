"""Many at once: short runs that need a container each, and containers that are held open."""

from __future__ import annotations

import statistics
import time

import anyio
from anyio import to_thread

from tests.bench.held import Held, measure
from tests.bench.row import Row, Target, ratio_at_most
from tests.bench.stage import COMMAND, LAUNCH, Stage

AT_ONCE = 16
HELD = 50


async def crowd(stage: Stage) -> tuple[Row, ...]:
    """Both sides are done when their last container is gone."""
    count = stage.times(100, 32)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(stage.times(3, 1)):
        ours.append(await _ours(stage, count))
        theirs.append(await _theirs(stage, count))
    return (
        Row(
            name=f"{count} disposable containers, {AT_ONCE} at once",
            against=f"xargs -P {AT_ONCE} docker run --rm",
            unit="s",
            ours=statistics.median(ours),
            theirs=statistics.median(theirs),
            target=ratio_at_most(1.0),
        ),
    )


async def memory(stage: Stage) -> tuple[Row, ...]:
    """In a process of its own, since this one has seen too much to be measured."""
    held: Held = await to_thread.run_sync(measure, stage.image, HELD)
    return (
        Row(
            name=f"memory here for a container held open (of {HELD})",
            unit="MB",
            ours=held.mb_each,
            target=Target(of="ours", how="<", value=1),
        ),
    )


async def _ours(stage: Stage, count: int) -> float:
    async def one() -> None:
        async with limiter, stage.runtime.open(stage.spec) as container:
            completed = await container.run(LAUNCH)
            assert completed.code == 0, completed

    limiter = anyio.Semaphore(AT_ONCE)
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return time.perf_counter() - began


async def _theirs(stage: Stage, count: int) -> float:
    script = f'seq {count} | xargs -P {AT_ONCE} -I {{}} "$@"'
    return await stage.seconds(["sh", "-c", script, "sh", *stage.docker_run, *COMMAND])
