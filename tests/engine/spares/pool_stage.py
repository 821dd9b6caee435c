"""Makers of spares for tests: `cat` plays the CLI, on the engine or on the fake runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from orchestrator.containers.runtime import Runtime
from orchestrator.domain.container import HOME, MIB, ContainerSpec, Launch, Limits, Tmpfs
from orchestrator.engine.spares.shelf import Maker
from orchestrator.engine.spares.spare import WaitingCli, memory_bytes
from orchestrator.wire.host import Process

CAT = Launch(argv=("cat",))

Kill = Callable[[WaitingCli], Awaitable[None]]
"""Ends a container from outside, as `docker kill` does."""


class Stage:
    """Makes spares, remembers what each was made for, and asks the engine what is there."""

    def __init__(self, runtime: Runtime, image: str, kill: Kill) -> None:
        self.runtime = runtime
        self.kill = kill
        self.spec = ContainerSpec(
            image=image,
            tmpfs=(
                Tmpfs(target="/tmp", size_bytes=8 * MIB),
                Tmpfs(target=HOME, size_bytes=8 * MIB),
            ),
            limits=Limits(memory_bytes=128 * MIB, pids=32, shm_bytes=MIB),
        )
        self.made_for: dict[str, str] = {}
        """The key, by the container's name."""
        self.spares: dict[str, WaitingCli] = {}
        """Those that there are."""

    def maker(self, key: str) -> Maker[WaitingCli]:
        return lambda: self._make(key)

    @asynccontextmanager
    async def _make(self, key: str) -> AsyncIterator[WaitingCli]:
        async with open_waiting(self.runtime, self.spec) as spare:
            self.made_for[spare.name] = key
            self.spares[spare.name] = spare
            try:
                yield spare
            finally:
                del self.spares[spare.name]

    async def names(self) -> set[str]:
        """Every container, by the engine's word."""
        return {info.name for info in await self.runtime.list()}


@asynccontextmanager
async def open_waiting(runtime: Runtime, spec: ContainerSpec) -> AsyncIterator[WaitingCli]:
    """A container with its `cat` started and ready; leaving the block leaves nothing behind."""
    async with runtime.open(spec) as container, container.spawn(CAT) as process:
        await say(process, b"ready")
        yield WaitingCli(container, process, await memory_bytes(container))


async def say(process: Process, text: bytes) -> None:
    """Say a line to `cat`, and hear it back."""
    heard = b""
    await process.stdin.write(text + b"\n")
    while not heard.endswith(b"\n"):
        data = await process.stdout.read()
        if not data:
            raise EOFError("the CLI says no more")
        heard += data
    assert heard == text + b"\n"
