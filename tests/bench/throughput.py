"""How fast a process's output reaches us, from its first byte to its last."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections import defaultdict

import anyio.to_thread

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import Launch
from tests.bench.row import Row, ratio_at_least
from tests.bench.stage import Stage

READ_BYTES = 1024 * 1024
MEGABYTE = 1_000_000


async def throughput(stage: Stage) -> tuple[Row, ...]:
    """`docker run` logs to a file as well, unless told not to: both are compared with.

    Only the first is judged: whoever writes here yields to the warden with each write.
    """
    argv = ("head", "-c", str(stage.times(200, 50) * MEGABYTE), "/dev/zero")
    plain = (*stage.docker_run, *argv)
    unlogged = (stage.docker, "run", "--rm", "--log-driver", "none", stage.image, *argv)
    rates: dict[str, list[float]] = defaultdict(list)
    async with stage.runtime.open(stage.spec) as container:
        for _ in range(stage.times(5, 3)):
            rates["ours"].append(await _ours(container, Launch(argv=argv)))
            rates["plain"].append(await anyio.to_thread.run_sync(_theirs, plain))
            rates["unlogged"].append(await anyio.to_thread.run_sync(_theirs, unlogged))
    ours = statistics.median(rates["ours"])
    return tuple(
        Row(
            name="stdout of a process",
            against=against,
            unit="MB/s",
            ours=ours,
            theirs=statistics.median(rates[name]),
            target=target,
        )
        for name, against, target in (
            ("plain", "docker run", ratio_at_least(0.9)),
            ("unlogged", "docker run --log-driver none", None),
        )
    )


async def _ours(container: Container, launch: Launch) -> float:
    async with container.spawn(launch) as process:
        size = len(await process.stdout.read())
        began = time.perf_counter()
        while chunk := await process.stdout.read():
            size += len(chunk)
        return _rate(size, began, launch.argv)


def _theirs(argv: tuple[str, ...]) -> float:
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        fd = process.stdout.fileno()
        size = len(os.read(fd, READ_BYTES))
        began = time.perf_counter()
        while chunk := os.read(fd, READ_BYTES):
            size += len(chunk)
        return _rate(size, began, argv)


def _rate(size: int, began: float, argv: tuple[str, ...]) -> float:
    seconds = time.perf_counter() - began
    assert str(size) in argv, f"{size} bytes came from {argv}"
    return size / MEGABYTE / seconds
