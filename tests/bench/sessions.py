"""The next turn of a session, against `docker run` of the same CLI: for each call, or kept open."""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from orchestrator.app import open_orchestrator
from orchestrator.runners.claude.input import user_message
from orchestrator.store.session_rows import SessionKey
from tests.bench.row import Row, ratio_at_most
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
from tests.bench.spares import call
from tests.bench.stage import Stage

AGENT = "---\nname: bench\ndescription: For a measurement.\nsession: true\n---\n"

SETTLE_SECONDS = 0.5
"""Before each call: the engine still removes the container of the one before."""

CHAPTER = 5
"""Turns of one session, before the next begins: a longer history takes the CLI longer."""

LINE_BYTES = 1024 * 1024


async def sessions(stage: Stage) -> tuple[Row, ...]:
    """Turns of sessions whose CLI is alive, in turn with containers made for one call."""
    taken: dict[str, list[Times]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as name:
        folder = Path(name)
        async with open_model() as model, on_bridge(stage, model.url) as url:
            settings = bench_settings(folder, stage.image, model.url, AGENT)
            async with open_orchestrator(settings, {}) as service:
                plan = await planned(service, PROMPT)
                command = docker_run(stage, folder, plan, "bridge", url)
                names = [f"s{number}" for number in range(stage.times(4, 2))]
                for session in names:
                    async with KeptOpen.run(command, model) as cli:
                        calls: dict[str, Callable[[], Awaitable[Times]]] = {
                            "ours": partial(call, service, model, session=session),
                            "kept": cli.turn,
                            "plain": partial(theirs, command, model),
                        }
                        for turn in range(1 + CHAPTER):
                            for who in _in_turn(list(calls), turn):
                                await anyio.sleep(SETTLE_SECONDS)
                                times = await calls[who]()
                                if turn:  # the first one starts the container
                                    taken[who].append(times)
                    key = SessionKey(
                        project=service.project, agent="bench", caller="main", name=session
                    )
                    await service.sessions.remove(key)
    ours, what = taken["ours"], "next turn of a session"
    return (
        call_row(what, "asked", ours, taken["plain"], target=ratio_at_most(0.04)),
        call_row(what, "asked", ours, taken["kept"], "docker run -i, claude kept open"),
        call_row(what, "done", ours, taken["plain"]),
    )


def _in_turn(names: list[str], turn: int) -> list[str]:
    """Each of them comes first equally often: what the one before leaves behind slows the next."""
    first = turn % len(names)
    return names[first:] + names[:first]


class KeptOpen:
    """One `docker run` of the CLI that gets one message after another: nothing of ours in between.

    What the CLI itself takes for a turn, in other words.
    """

    def __init__(self, process: Process, model: Model) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)
        self._model = model

    @classmethod
    @asynccontextmanager
    async def run(cls, command: list[str], model: Model) -> AsyncIterator[KeptOpen]:
        async with await anyio.open_process(command, stderr=None) as process:
            cli = cls(process, model)
            yield cli
            await cli._stdin.aclose()
            await process.wait()

    async def turn(self) -> Times:
        began = time.perf_counter()
        await self._stdin.send(user_message(PROMPT))
        said: dict[str, object] = {}
        while said.get("type") != "result":
            said = json.loads(await self._lines.receive_until(b"\n", LINE_BYTES))
        done = time.perf_counter()
        assert said["result"] == ANSWER, said
        return Times(self._model.first_asked() - began, done - began)
