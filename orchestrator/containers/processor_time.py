"""How long a container's processes have computed, as the kernel has counted."""

from __future__ import annotations

import re

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import Launch
from orchestrator.errors import OrchestratorError

PROCESSOR_COUNTERS = (
    "/sys/fs/cgroup/cpu.stat",  # control groups, version 2: usage_usec
    "/sys/fs/cgroup/cpuacct/cpuacct.usage",  # version 1: nanoseconds
)

PROCESSOR_LOOK_SECONDS = 5.0
"""For a container to tell its counters."""

IDLE_SHARE = 0.1
"""Of one processor: a CLI that waits takes less, an agent that computes more."""


async def processor_seconds(container: Container) -> float | None:
    """All processes, from the container's start on; None if the engine does not show it inside.

    OrchestratorError or TimeoutError if nobody could be asked, as when no process can be started.
    """
    argv = ("grep", "-sH", "-m", "20", ".", *PROCESSOR_COUNTERS)
    with anyio.fail_after(PROCESSOR_LOOK_SECONDS):
        done = await container.run(Launch(argv=argv, errand=True))
    return read_counters(done.stdout)


def read_counters(text: bytes) -> float | None:
    """What `grep -H` shows of the counters -> seconds. Pure."""
    if found := re.search(rb"cpu\.stat:usage_usec (\d{1,18})$", text, re.MULTILINE):
        return int(found[1]) / 1e6
    if found := re.search(rb"cpuacct\.usage:(\d{1,19})$", text, re.MULTILINE):
        return int(found[1]) / 1e9
    return None


class ProcessorWatch:
    """Whether a container's processes have computed since one last looked."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._last: tuple[float, float] | None = None

    def forget(self) -> None:
        """What was computed so far is not to count."""
        self._last = None

    async def was_busy(self) -> bool:
        """Since the last look. The first tells nothing, and so does a container that has ended.

        An agent that keeps us from looking counts as busy.
        """
        try:
            seconds = await processor_seconds(self._container)
        except (OrchestratorError, TimeoutError):
            self._last = None
            return self._container.wire.ended is None
        now, last = anyio.current_time(), self._last
        if seconds is None:
            return False
        self._last = (now, seconds)
        return last is not None and seconds - last[1] > IDLE_SHARE * (now - last[0])
