"""The contract: ContainerSpec -> a container on a wire, on any runtime."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio

from orchestrator.containers.failure import classify
from orchestrator.containers.images.fetching import Progress
from orchestrator.containers.labels import ContainerInfo
from orchestrator.domain import Frozen
from orchestrator.domain.container import ContainerSpec, Ending, Failure, Launch
from orchestrator.wire.host import Completed, Process, RelayService, Wire, WireEnd

FATE_SECONDS = 5.0
"""After a wire has ended, for the engine to say with which exit code."""


class Fate:
    """What the engine has told of one container."""

    def __init__(self, since_nano: int = 0) -> None:
        self.since_nano = since_nano
        """Ignore engine events up to this time, on its clock: they belong to an earlier start of
        the same container."""
        self.exit_code: int | None = None
        """Of PID 1."""
        self.out_of_memory = asyncio.Event()
        """The kernel has killed something inside for want of memory."""
        self.died = asyncio.Event()
        self.gone = asyncio.Event()


class Container:
    """A container that answers, until the block that opened it ends."""

    def __init__(self, name: str, spec: ContainerSpec, wire: Wire, fate: Fate) -> None:
        self.name = name
        self.spec = spec
        self.wire = wire
        self.fate = fate

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[Process]:
        """Start a process, after its files; leaving the block kills it and its group."""
        return self.wire.spawn(launch)

    async def run(self, launch: Launch, data: bytes = b"") -> Completed:
        """Start a process, feed it, and wait for its end."""
        return await self.wire.run(launch, data)

    async def listen(self, port: int, name: str, service: RelayService) -> int:
        """Serve 127.0.0.1:port inside from here; 0 picks a free port."""
        return await self.wire.listen(port, name, service)

    async def kill_all(self) -> None:
        """Kill every process inside, escapees included; the container goes on."""
        await self.wire.kill_all()

    @property
    def ending(self) -> Ending | None:
        """How it ended, as far as is known; None while it lives."""
        if self.wire.ended is None:
            return None
        return Ending(
            how=_HOW[self.wire.ended],
            detail=self.wire.detail,
            exit_code=self.fate.exit_code,
            out_of_memory=self.fate.out_of_memory.is_set(),
            last_words=self.wire.last_words.decode(errors="replace"),
        )

    async def failure(self) -> Failure | None:
        """Wait for the end; whose failure it was, or None when we closed the wire ourselves."""
        await self.wire.wait_ended()
        await self.settled()
        ending = self.ending
        return None if ending is None else classify(ending)

    async def settled(self) -> None:
        """Wait, not for long, until the engine has told how the container ended."""
        with anyio.move_on_after(FATE_SECONDS):
            await self.fate.died.wait()


_HOW = {
    WireEnd.CLOSED: "closed",
    WireEnd.EOF: "eof",
    WireEnd.MALFORMED: "malformed",
    WireEnd.SILENT: "silent",
}


class Reaped(Frozen):
    """A container that the reaper removed."""

    name: str
    why: str


class EngineLookup(Protocol):
    """What a plan needs to know of the engine that its container is made on."""

    async def agent_image(self, runner: str, progress: Progress = ...) -> str:
        """The image that a runner's agents run in, unless agent.md names another; `progress` is
        told, line by line, how it is made if it has to be.
        """
        ...

    async def image_id(self, image: str) -> str:
        """What an image's name stands for; "" if that is not known."""
        ...

    async def seccomp_profile(self) -> str | None:
        """The strict profile; None where containers cannot have it."""
        ...


class Runtime(Protocol):
    """Something that makes containers. Every implementation keeps these promises:

    - a container is yielded once its warden has said hello, and not before;
    - leaving an `open` block, in whatever way, leaves no container behind;
    - leaving a `keep` block stops the container and keeps its volumes, under its key;
    - when this process dies, disposables go and kept ones stop, without help;
    - one key is used by one block at a time; the second one gets NameTaken;
    - errors are ours (errors.py), never the engine's library's.
    """

    def open(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AbstractAsyncContextManager[Container]:
        """A disposable container."""
        ...

    def keep(
        self, key: str, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Container]:
        """The container of this key: started again if there is one, made otherwise."""
        ...

    async def seccomp_profile(self) -> str | None:
        """The strict profile, to be put into a spec; None where containers cannot have it."""
        ...

    async def forget(self, key: str) -> bool:
        """Remove a kept container and its volumes; False if there was none."""
        ...

    async def list(self) -> tuple[ContainerInfo, ...]:
        """Every container of this state directory's orchestrators."""
        ...

    async def reap(self) -> tuple[Reaped, ...]:
        """Remove what a crash left, and nothing that a living orchestrator owns."""
        ...
