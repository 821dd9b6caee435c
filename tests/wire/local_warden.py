"""The real warden as a plain process on pipes: the protocol without an engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from orchestrator.domain.container import User
from orchestrator.wire import warden
from orchestrator.wire.host import Wire

ME = User.model_construct(uid=os.getuid(), gid=os.getgid())  # unchecked: here, root may be root


class _Pipes(asyncio.SubprocessProtocol):
    """A Link whose far end is a child process."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.transport: asyncio.SubprocessTransport | None = None
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        assert self.wire is not None
        if fd == 1:
            self.wire.feed(data)
        else:
            self.wire.feed_stderr(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and self.wire is not None:
            self.wire.disconnected()

    def process_exited(self) -> None:
        self.gone.set()

    def write(self, data: bytes) -> None:
        assert self.transport is not None
        stdin = self.transport.get_pipe_transport(0)
        assert isinstance(stdin, asyncio.WriteTransport)
        stdin.write(data)

    def unsent(self) -> int:
        return 0

    def close(self) -> None:
        assert self.transport is not None
        stdin = self.transport.get_pipe_transport(0)
        assert stdin is not None
        stdin.close()


@asynccontextmanager
async def local_wire(
    user: User = ME, groups: list[int] | None = None
) -> AsyncIterator[tuple[Wire, _Pipes]]:
    """A wire to a warden that runs on this machine, in these groups; gone when the block ends."""
    loop = asyncio.get_running_loop()
    pipes = _Pipes()
    wire = pipes.wire = Wire(pipes, user, "local")
    argv = [sys.executable, "-I", "-S", warden.__file__]
    transport, _ = await loop.subprocess_exec(lambda: pipes, *argv, extra_groups=groups)
    try:
        with anyio.fail_after(10):
            await wire.hello()
        yield wire, pipes
    finally:
        await wire.close()
        with anyio.move_on_after(5, shield=True):
            await pipes.gone.wait()
        transport.close()
