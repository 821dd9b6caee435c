"""Floods of the wire from inside a container, with a bystander that must not notice.

Each runs as the agent in a real container. What is asserted is what happened on both sides: the
attacker got nowhere, and the wire, the host process and the bystander go on. Attacks on PID 1, on
limits and on everything else are in tests/attacks.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, ContainerSpec, Launch, Limits, Tmpfs
from orchestrator.wire import warden as w
from orchestrator.wire.streams import Stream
from tests.attacks.mark import attack

PATIENCE = 180
HOST_GROWTH_BYTES = 96 * MIB
"""What the host process may grow by under attack: a few windows, not what was sent."""

FLOOD_BYTES = 256 * MIB
"""Enough to be seen in the host process if it were held there."""


def python(code: str) -> Launch:
    return Launch(argv=("python3", "-c", code))


@pytest.fixture
async def bystander(runtime: DockerRuntime, spec: ContainerSpec) -> AsyncIterator[Container]:
    """Another container, which must answer before, during and after."""
    async with runtime.open(spec) as container:
        yield container
        assert await answers(container)


@pytest.fixture
async def box(runtime: DockerRuntime, bystander: Container, image: str) -> AsyncIterator[Container]:
    """A container with small limits, to be attacked from inside."""
    limits = Limits(memory_bytes=256 * MIB, pids=64, open_files=1024, shm_bytes=16 * MIB)
    scratch = (Tmpfs(target="/tmp", size_bytes=32 * MIB), Tmpfs(target="/home/agent"))
    small = scratch[1].model_copy(update={"size_bytes": 32 * MIB})
    spec = ContainerSpec(image=image, limits=limits, tmpfs=(scratch[0], small))
    before = rss()
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            yield container
    assert rss() - before < HOST_GROWTH_BYTES


async def answers(container: Container) -> bool:
    with anyio.fail_after(PATIENCE):
        return (await container.run(Launch(argv=("echo", "here")))).stdout == b"here\n"


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@attack(
    "wire",
    "open 10,000 connections to a relay",
    "only so many are open at once outside; the next one is answered in its turn",
)
async def test_ten_thousand_relay_connections_hurt_no_other_stream(
    box: Container, bystander: Container
) -> None:
    seen, open_now, most = 0, 0, 0

    async def service(stream: Stream) -> None:
        nonlocal seen, open_now, most
        seen, open_now = seen + 1, open_now + 1
        most = max(most, open_now)
        try:
            await stream.write(await stream.read())
        finally:
            open_now -= 1

    port = await box.listen(0, "web", service)
    flood = f"""
import errno, socket
held, tried = [], 0
for n in range(10_000):
    s = socket.socket(); s.setblocking(False)
    s.connect_ex(("127.0.0.1", {port})); tried += 1
    held.append(s)
    if len(held) > 900:
        for s in held[:300]: s.close()
        del held[:300]
print(tried)
"""
    done = await box.run(python(flood))

    assert done.stdout.split() == [b"10000"], done.stderr.decode()
    assert most <= 2 * w.MAX_CONNECTIONS
    assert await answers(bystander)
    ask = f"""
import socket
s = socket.create_connection(("127.0.0.1", {port})); s.sendall(b"still there?")
print(s.recv(100).decode())
"""
    done = await box.run(python(ask))  # in its turn: the flood's connections are closed by now
    assert done.stdout.strip() == b"still there?", done.stderr.decode()


@attack(
    "wire",
    "never read what 100 connections are sent",
    "each holds one window; other streams go on",
)
async def test_relay_connections_that_are_never_read_hold_a_window_each(
    box: Container, bystander: Container
) -> None:
    async def firehose(stream: Stream) -> None:
        while True:
            await stream.write(b"x" * 65536)

    port = await box.listen(0, "hose", firehose)
    code = f"""
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", {port})) for _ in range(100)]
print("held", flush=True); time.sleep(600)
"""
    async with box.spawn(python(code)) as process:
        assert await process.stdout.read() == b"held\n"
        assert await answers(box)
        assert await answers(bystander)


@attack(
    "wire",
    "write frames of the wire to standard output",
    "they arrive as output, byte for byte, and mean nothing",
)
async def test_frames_forged_on_a_process_stdout_are_only_its_output(box: Container) -> None:
    forged = w.encode(w.EXIT, 1, b"\0\0\0\0") + w.encode(w.KILLED, 0) + bytes(range(256))
    done = await box.run(python(f"import sys; sys.stdout.buffer.write({forged!r})"))

    assert done.stdout == forged
    assert await answers(box)


async def test_a_program_can_open_its_own_standard_streams(box: Container) -> None:
    code = "read line < /dev/stdin; echo $line > /dev/stdout; echo $line > /dev/stderr"
    done = await box.run(Launch(argv=("sh", "-c", code)), b"hello\n")

    assert (done.stdout, done.stderr) == (b"hello\n", b"hello\n")


@attack(
    "processes and resources",
    "write a quarter of a gigabyte to standard output",
    "all of it passes; the process outside does not grow with it",
)
async def test_a_flood_on_stdout_passes_through_a_bounded_host(
    box: Container, bystander: Container
) -> None:
    before, total, peak = rss(), 0, 0
    async with box.spawn(Launch(argv=("head", "-c", str(FLOOD_BYTES), "/dev/zero"))) as process:
        while chunk := await process.stdout.read():
            if (total + len(chunk)) // MIB > total // MIB:
                peak = max(peak, rss())
            total += len(chunk)
        assert await process.wait() == 0

    assert total == FLOOD_BYTES
    assert peak - before < HOST_GROWTH_BYTES


@attack(
    "wire",
    "flood a stream that is not read",
    "it stops at its window; other streams go on",
)
async def test_a_flood_that_is_not_read_stops_at_its_window(
    box: Container, bystander: Container
) -> None:
    async with box.spawn(Launch(argv=("yes",))) as process:
        while process.stdout._waiting < w.WINDOW:
            await anyio.sleep(0.01)
        assert await answers(box)
        assert process.stdout._waiting == w.WINDOW
