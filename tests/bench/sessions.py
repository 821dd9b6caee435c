"""The next turn of a session, against `docker run` of the same CLI for each call."""

from __future__ import annotations

import tempfile
from pathlib import Path

import anyio

from orchestrator.app import open_orchestrator
from orchestrator.domain.task import Task
from orchestrator.engine.session_rows import SessionKey
from tests.bench.row import Row, ratio_at_most
from tests.bench.runs import (
    PROMPT,
    Times,
    bench_settings,
    docker_run,
    on_bridge,
    open_model,
    theirs,
)
from tests.bench.spares import call
from tests.bench.stage import Stage, median_ms

AGENT = "---\nname: bench\ndescription: For a measurement.\nsession: true\n---\n"

SETTLE_SECONDS = 0.5
"""Before each call: the engine still removes the container of the one before."""

CHAPTER = 5
"""Turns of one session, before the next begins: a longer history takes the CLI longer."""


async def sessions(stage: Stage) -> tuple[Row, ...]:
    """Turns of sessions whose CLI is alive, in turn with containers made for one call."""
    ours: list[Times] = []
    plain: list[Times] = []
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        folder = Path(name)
        async with open_model() as model, on_bridge(stage, model.url) as url:
            settings = bench_settings(folder, stage.image, model.url, AGENT)
            async with open_orchestrator(settings, {}) as service:
                plan = await service.plan(Task(agent="bench", prompt=PROMPT))
                command = docker_run(stage, folder, plan, "bridge", url)
                names = [f"s{number}" for number in range(stage.times(4, 2))]
                for session in names:
                    for turn in range(1 + CHAPTER):
                        await anyio.sleep(SETTLE_SECONDS)
                        mine = await call(service, model, session=session)
                        await anyio.sleep(SETTLE_SECONDS)
                        measured = mine, await theirs(command, model)
                        if turn:  # the first one starts the container
                            ours.append(measured[0])
                            plain.append(measured[1])
                    key = SessionKey(agent="bench", caller="main", name=session)
                    await service.sessions.remove(key)
    return (
        Row(
            name="next turn of a session, to the first model request",
            against="docker run --rm, claude",
            unit="ms",
            ours=median_ms([times.asked for times in ours]),
            theirs=median_ms([times.asked for times in plain]),
            target=ratio_at_most(0.04),
        ),
        Row(
            name="next turn of a session, to the answer",
            against="docker run --rm, claude",
            unit="ms",
            ours=median_ms([times.done for times in ours]),
            theirs=median_ms([times.done for times in plain]),
        ),
    )
