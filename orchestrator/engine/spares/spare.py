"""One spare: a container on its wire with its CLI started, waiting for a run."""

from __future__ import annotations

import hashlib
import signal
from contextlib import suppress
from typing import Protocol

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.errors import WireLost
from orchestrator.wire.host import Process

PONG_SECONDS = 2.0
"""For the warden of a spare that is claimed to say that it is there; it takes a millisecond."""

MEMORY_FILES = ("/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory/memory.stat")
"""Where a container finds what it uses: cgroup v2, and v1."""

MEMORY_ROWS = ((b"anon", b"shmem"), (b"total_rss", b"total_shmem"))
"""What goes back to the machine when the container goes: v2, and v1. Not the page cache, which
holds a CLI's program for all of them, and is charged to the container that read it first."""


class Spare(Protocol):
    """What a pool needs to know of what it keeps."""

    @property
    def name(self) -> str:
        """Of the container, for people."""
        ...

    @property
    def alive(self) -> bool:
        """It can still be used, as far as is known without asking it."""
        ...

    def memory_bytes(self) -> int:
        """What it took when it was ready. It has done nothing since."""
        ...

    async def wait_ended(self) -> None:
        """Return as soon as it cannot be used any more, for whatever reason."""
        ...

    async def pause(self) -> None:
        """Let it take no CPU until `resume`. When this process dies it goes, paused or not."""
        ...

    async def resume(self) -> None:
        """Make it ready for work, paused or not; raise if it does not answer, and soon."""
        ...


class WaitingCli:
    """A Spare: the container, and the CLI in it."""

    def __init__(self, container: Container, process: Process, memory_bytes: int) -> None:
        self.container = container
        self.process = process
        self._memory_bytes = memory_bytes
        self._paused = False

    @property
    def name(self) -> str:
        return self.container.name

    @property
    def alive(self) -> bool:
        return self.container.wire.ended is None and self.process.code is None

    def memory_bytes(self) -> int:
        return self._memory_bytes

    async def wait_ended(self) -> None:
        with suppress(WireLost):
            await self.process.wait()

    async def pause(self) -> None:
        # Stopped by the warden, not frozen by the engine: a frozen PID 1 would not see its wire
        # end, and so outlive us (decisions/0005).
        self._paused = True
        self.process.signal(signal.SIGSTOP)

    async def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.process.signal(signal.SIGCONT)
        try:
            with anyio.fail_after(PONG_SECONDS):
                await self.container.wire.ping()  # an exit that we have not heard of comes first
        except TimeoutError as exc:
            raise WireLost(f"{self.name}: the container does not answer") from exc
        if not self.alive:
            raise WireLost(f"{self.name}: the CLI has exited while it waited")


def takes_spares(agent: AgentSpec) -> bool:
    """Whether a spare can stand in for a run of this agent: nothing of the run is in a spare."""
    exposed = any(secret.expose is not None for secret in agent.secrets)
    return bool(agent.warm) and not agent.session.keep and not exposed


def spare_key(spec: ContainerSpec, launch: Launch, *versions: str) -> str:
    """The same for spares that can stand in for each other: what they may touch, what runs in
    them, and the versions (of the image, of the CLI) that neither of the two says.
    """
    files = [(f.path, f.mode, hashlib.sha256(f.content).hexdigest()) for f in launch.files]
    told = (launch.argv, sorted(launch.env.items()), launch.cwd, launch.opening)
    parts = (spec.digest, *told, files, versions)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


async def memory_bytes(container: Container) -> int:
    """What a container takes now; 0 if it does not say."""
    look = Launch(argv=("cat", *MEMORY_FILES), errand=True)  # one of them is not there
    done = await container.run(look)
    return min(read_memory_stat(done.stdout), container.spec.limits.memory_bytes)


def read_memory_stat(text: bytes) -> int:
    """A cgroup's memory.stat -> bytes; 0 where it says nothing that makes sense."""
    rows = dict(line.split(b" ", 1) for line in text.splitlines() if b" " in line)
    sums = [sum(_number(rows.get(name, b"")) for name in names) for names in MEMORY_ROWS]
    return max(sums)  # v1 has a "shmem" as well, of less than its total


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 20 else 0
