"""How long until a process has run: in a waiting container, and in one made for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.to_thread
from docker.models.containers import Container as DockerContainer

from orchestrator.containers.runtime import Container
from tests.bench.row import Row, Target, ratio_at_most
from tests.bench.stage import COMMAND, LAUNCH, Stage, library, median_ms

PER_ROUND = 10
"""Measurements of a waiting container in each round: one takes a hundredth of a cold run."""

AT_ONCE = 8


async def latency(stage: Stage) -> tuple[Row, ...]:
    """Every way takes its turn in every round, so that a slow moment is everybody's."""
    taken: dict[str, list[float]] = defaultdict(list)
    with _waiting(stage) as theirs:
        async with stage.runtime.open(stage.spec) as ours:
            for round_number in range(1 + stage.times(30, 8)):
                for name, seconds in await _one_round(stage, ours, theirs):
                    if round_number:  # the first one only warms up
                        taken[name].append(seconds)
    ms = {name: median_ms(seconds) for name, seconds in taken.items()}
    run, exec_ = "docker run --rm", "docker-py exec"
    warm, cold = "a process in a waiting container", "a disposable container"
    return (
        Row(
            name=warm,
            against=run,
            unit="ms",
            ours=ms["warm"],
            theirs=ms["run"],
            target=ratio_at_most(0.02),
        ),
        Row(
            name=warm,
            against=exec_,
            unit="ms",
            ours=ms["warm"],
            theirs=ms["exec"],
            target=ratio_at_most(0.15),
        ),
        Row(
            name=f"{cold}, create to exit",
            against=run,
            unit="ms",
            ours=ms["exit"],
            theirs=ms["run"],
            target=ratio_at_most(0.75),
        ),
        Row(
            name=f"{cold}, create to gone",
            against=run,
            unit="ms",
            ours=ms["gone"],
            theirs=ms["run"],
        ),
        Row(name="ping over the wire", unit="ms", ours=ms["ping"]),
    )


async def rate(stage: Stage) -> tuple[Row, ...]:
    """Processes a second in one waiting container, one after another and several at once."""
    count = stage.times(1000, 200)

    async def some(container: Container, times: int) -> None:
        for _ in range(times):
            await container.run(LAUNCH)

    async with stage.runtime.open(stage.spec) as container:
        await some(container, AT_ONCE)
        began = time.perf_counter()
        await some(container, count)
        one_by_one = count / (time.perf_counter() - began)
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(some, container, count // AT_ONCE)
        at_once = count / (time.perf_counter() - began)
    target = Target(of="ours", how=">=", value=200)
    return (
        Row(name="processes in one container, in turn", unit="/s", ours=one_by_one, target=target),
        Row(
            name=f"processes in one container, {AT_ONCE} at once",
            unit="/s",
            ours=at_once,
            target=target,
        ),
    )


async def _one_round(
    stage: Stage, ours: Container, theirs: DockerContainer
) -> list[tuple[str, float]]:
    taken = [("run", await stage.seconds([*stage.docker_run, *COMMAND]))]
    began = time.perf_counter()
    async with stage.runtime.open(stage.spec) as cold:
        await cold.run(LAUNCH)
        taken.append(("exit", time.perf_counter() - began))
    taken.append(("gone", time.perf_counter() - began))
    for _ in range(PER_ROUND):
        began = time.perf_counter()
        completed = await ours.run(LAUNCH)
        taken.append(("warm", time.perf_counter() - began))
        assert completed.code == 0, completed
        taken.append(("ping", await ours.wire.ping()))
        began = time.perf_counter()
        await anyio.to_thread.run_sync(partial(theirs.exec_run, list(COMMAND)))
        taken.append(("exec", time.perf_counter() - began))
    return taken


@contextmanager
def _waiting(stage: Stage) -> Iterator[DockerContainer]:
    """A container that waits for `docker exec`, as one would make it by hand."""
    client = library(stage.runtime.engine)
    try:
        container = client.containers.run(stage.image, ["sleep", "infinity"], detach=True)
        try:
            yield container
        finally:
            container.remove(force=True)
    finally:
        client.close()
