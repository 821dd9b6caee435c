"""The HTTP API: how fast events reach a thousand readers, and how fast runs are accepted.

The server is a process of its own (api_server.py): its routes, its store and its events are the
real ones, its agents do nothing.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import httpx
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.bench.row import Row, ours_below
from tests.bench.stage import Stage
from tests.surfaces.http.api_stage import TOKENS

EVENTS_PER_SECOND = 100
READY_SECONDS = 120
WRITERS = 8
TIMED_READERS = 20
"""Whose events are looked at; the others' are only counted."""

_AT = re.compile(rb'"at": ([0-9.]+)')


class ApiServer:
    """A server in a process of its own, told what to do on its stdin."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._lines = process.stdin, BufferedByteReceiveStream(process.stdout)

    async def ask(self, **what: Any) -> dict[str, Any]:
        await self._stdin.send(json.dumps(what).encode() + b"\n")
        with anyio.fail_after(READY_SECONDS):
            said: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", 10_000))
        return said


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "tests.bench.api_server", folder]
        async with await anyio.open_process(argv, stderr=None) as process:
            try:
                yield ApiServer(process)
            finally:
                process.terminate()


async def api(stage: Stage) -> tuple[Row, ...]:
    readers, seconds = stage.times(1000, 200), stage.times(10, 4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * readers)), hard))
    async with api_server() as server:
        about = await server.ask(do="begin")
        times, memory, lost = await _read(server, about["url"], readers, seconds)
        accepted = await _accepted(about["url"], stage.times(400, 100))
    assert not lost, f"{lost} readers have not had every event"
    of = f"{readers:,} readers, {EVENTS_PER_SECOND} events a second"
    name = f"an event, kept, to a reader ({of})"
    return (
        Row(name=name, unit="ms", ours=statistics.median(times), target=ours_below(1000)),
        Row(name=f"{name}, 99th percentile", unit="ms", ours=_percentile(times, 0.99)),
        Row(
            name=f"memory of the server for a reader of events (of {readers:,})",
            unit="kB",
            ours=memory,
        ),
        Row(name="POST /v1/runs, accepted", unit="/s", ours=accepted),
    )


async def _read(
    server: ApiServer, url: str, readers: int, seconds: int
) -> tuple[list[float], float, int]:
    """Milliseconds to a reader, kB for one, and how many have not had all."""
    times: list[float] = []
    counts = [0] * readers
    before = (await server.ask(do="memory"))["kB"]
    connected = anyio.Event()
    waiting = readers

    async def read(number: int) -> None:
        nonlocal waiting
        host, port = url.removeprefix("http://").split(":")
        stream, writer = await asyncio.open_connection(host, int(port))
        ask = f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
        writer.write(f"{ask}Authorization: Bearer {TOKENS['main']}\r\n\r\n".encode())
        try:
            await stream.readuntil(b"event: hello")
            waiting -= 1
            if not waiting:
                connected.set()
            while chunk := await stream.read(262144):
                counts[number] += chunk.count(b"\nevent: text\n")
                if number < TIMED_READERS:
                    now = time.time()
                    times.extend((now - float(at)) * 1000 for at in _AT.findall(chunk))
        finally:
            writer.close()

    async with anyio.create_task_group() as group:
        for number in range(readers):
            group.start_soon(read, number)
            if number % 50 == 0:
                await anyio.sleep(0.05)
        with anyio.fail_after(READY_SECONDS):
            await connected.wait()
        after = (await server.ask(do="memory"))["kB"]
        sent = (await server.ask(do="write", count=EVENTS_PER_SECOND * seconds))["sent"]
        with anyio.move_on_after(READY_SECONDS):
            while min(counts) < sent:
                await anyio.sleep(0.1)
        group.cancel_scope.cancel()
    return times, (after - before) / readers, sum(count != sent for count in counts)


async def _accepted(url: str, count: int) -> float:
    """Runs that several clients together begin in a second."""
    headers = {"Authorization": f"Bearer {TOKENS['main']}"}
    left = count

    async def post(client: httpx.AsyncClient) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            answer = await client.post("/v1/runs", json={"agent": "for-main", "prompt": "go"})
            assert answer.status_code == 202, answer.text

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(WRITERS):
                group.start_soon(post, client)
        return count / (time.perf_counter() - began)


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]
