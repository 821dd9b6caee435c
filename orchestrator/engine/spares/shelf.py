"""What a pool is made of: shelves and slots, its limits, and is there memory for one more?"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import anyio
from pydantic import Field

from orchestrator.domain import Frozen
from orchestrator.domain.container import MIB
from orchestrator.engine.spares.spare import Spare

MEMINFO = Path("/proc/meminfo")

MEMINFO_BYTES = 64 * 1024
"""What is read of it: some two kilobytes, on any machine."""

REFILL_PATIENCE_SECONDS = 2.0
"""How long a refill stands back for runs that start: on a busy day there is always one, and then
every next run would start cold as well."""

S = TypeVar("S", bound=Spare)
Maker = Callable[[], AbstractAsyncContextManager[S]]
"""Makes one: entered and left in one task, which is the pool's; leaving it leaves nothing."""

DiscardReason = Literal[
    "dead",  # it ended by itself, or was killed from outside
    "silent",  # it did not answer when it was claimed
    "old",
    "forgotten",  # what it was made for has changed
    "surplus",  # fewer are wanted now
    "memory",  # given back, since memory was short
    "abandoned",  # the run that claimed it was cancelled before it had it
    "closing",  # the pool has ended
]


class PoolLimits(Frozen):
    """How much a pool may hold, and how patient it is."""

    max_spares: Annotated[int, Field(ge=0)] = 8
    """Of all keys together. Claimed ones belong to their runs and do not count."""
    max_memory_bytes: Annotated[int, Field(ge=0)] = 4096 * MIB
    """What all spares together may take."""
    min_available_bytes: Annotated[int, Field(ge=0)] = 512 * MIB
    """With less than this left on the machine, spares are given back, oldest first."""
    enough_available_bytes: Annotated[int, Field(ge=0)] = 1024 * MIB
    """Once memory was short, none is made until so much is left again."""
    max_age_seconds: Annotated[float, Field(gt=0)] = 1800.0
    """An older one is replaced. A container's lifetime must have room for this and for a run."""
    pause_after_seconds: Annotated[float, Field(ge=0)] | None = None
    """One that no run claimed for so long is paused, and takes no CPU; None is never."""
    quiet_seconds: Annotated[float, Field(ge=0)] = 0.5
    """After a claim, none is made for so long: the run that took it goes first."""
    check_seconds: Annotated[float, Field(gt=0)] = 1.0
    """Between two looks at how much memory is left."""
    backoff_seconds: Annotated[float, Field(gt=0)] = 1.0
    """After a spare that could not be made; twice as long each time, up to a minute."""


class MemoryGuard:
    """Remembers that memory was short until there is enough of it again."""

    def __init__(self, limits: PoolLimits, available_bytes: Callable[[], int]) -> None:
        self._limits = limits
        self._available_bytes = available_bytes
        self.short = False

    def look(self) -> bool:
        """See how much is left; True when some of it has to be given back now."""
        available = self._available()
        too_little = available < self._limits.min_available_bytes
        self.short = too_little or (self.short and available < self._limits.enough_available_bytes)
        return too_little

    def fits(self, count: int, held_bytes: int, expected_bytes: int) -> bool:
        """Whether one more of the expected size may be made beside those that there are."""
        limits = self._limits
        return (
            not self.short
            and count < limits.max_spares
            and held_bytes + expected_bytes <= limits.max_memory_bytes
            and self._available() - expected_bytes >= limits.min_available_bytes
        )

    def _available(self) -> int:
        try:
            return self._available_bytes()
        except (OSError, ValueError):
            return sys.maxsize  # a machine that does not tell; the caps still hold


def available_bytes() -> int:
    """MemAvailable of this machine, which with a remote engine is another than the spares'."""
    with MEMINFO.open("rb") as file:
        for line in file.read(MEMINFO_BYTES).splitlines():
            name, _, rest = line.partition(b":")
            if name == b"MemAvailable":
                return int(rest.split()[0]) * 1024
    raise ValueError(f"{MEMINFO} does not say how much memory is available")


class Gate:
    """Runs that start go first: refills stand back while one of them is inside."""

    def __init__(self) -> None:
        self._starting = 0
        self._quiet_until = -math.inf
        self._changed = anyio.Event()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around the cold start of a run."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1
            self._changed.set()
            self._changed = anyio.Event()

    def hush(self, seconds: float) -> None:
        """Let nothing be made for so long."""
        self._quiet_until = max(self._quiet_until, anyio.current_time() + seconds)

    async def calm(self) -> None:
        """Wait until no run is starting, or for as long as a refill can be put off."""
        with anyio.move_on_after(REFILL_PATIENCE_SECONDS):
            while self._starting or anyio.current_time() < self._quiet_until:
                if self._starting:
                    await self._changed.wait()
                else:
                    await anyio.sleep_until(self._quiet_until)


class Shelf(Generic[S]):
    """The spares of one key."""

    def __init__(self, key: str, make: Maker[S]) -> None:
        self.key = key
        self.make = make
        self.wanted = 0
        self.waiting: deque[Slot[S]] = deque()
        self.making: Slot[S] | None = None
        self.failures = 0
        """Attempts in a row that failed; a spare that died young counts, unless it is the first."""
        self.died_young = False
        self.not_before = -math.inf
        self.expected_bytes = 0
        """What the last one took."""

    @property
    def missing(self) -> bool:
        return len(self.waiting) + (self.making is not None) < self.wanted


class Slot(Generic[S]):
    """One spare's place in the pool."""

    spare: S
    """From the moment it is no longer being made."""

    def __init__(self, shelf: Shelf[S]) -> None:
        self.shelf = shelf
        self.state: Literal["making", "waiting", "waking", "claimed", "closing"] = "making"
        self.since = math.inf
        self.paused = False
        self.unwanted = False
        """It need not be made any more."""
        self.scope = anyio.CancelScope()
        self.lock = anyio.Lock()
        self.settled = anyio.Event()
        """It waits, or it could not be made."""
        self.over = anyio.Event()
        """It is to be closed."""
        self.gone = anyio.Event()

    def give_up(self) -> None:
        """Stop making it."""
        self.unwanted = True
        self.scope.cancel()
