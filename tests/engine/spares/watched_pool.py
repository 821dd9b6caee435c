"""A pool that tells what happens in it, for tests and measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from orchestrator.domain import Frozen
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.shelf import DiscardReason, Maker, S, Slot

PoolEventKind = Literal[
    "made",
    "claimed",
    "cold",
    "discarded",
    "make_failed",
    "close_failed",
    "memory_short",
    "memory_back",
]


class PoolEvent(Frozen):
    """Something that happened in a pool."""

    kind: PoolEventKind
    key: str = ""
    name: str = ""
    """Of the container."""
    reason: DiscardReason | None = None
    text: str = ""
    """For people: what went wrong."""


class PoolState(Frozen):
    """A pool at one moment. Always: made == claimed + everything discarded + waiting."""

    made: int
    claimed: int
    cold: int
    """Made for a run on the spot, since no spare was waiting."""
    failed: int
    """Attempts to make a spare that came to nothing."""
    discarded: dict[DiscardReason, int]
    """Spares that nobody got."""
    waiting: int
    paused: int
    """Of those that wait."""
    making: int
    in_use: int
    """In the hands of runs, cold ones included."""
    closing: int
    memory_bytes: int
    """Of those that wait."""
    memory_short: bool
    waiting_by_key: dict[str, int]

    @property
    def alive(self) -> int:
        """Containers that there are now, apart from one that may be being made."""
        return self.waiting + self.in_use + self.closing


class WatchedPool(Pool[S]):
    """Counts what a pool does where the pool does it, and tells of each change."""

    def __init__(
        self,
        *args: Any,
        on_event: Callable[[PoolEvent], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._on_event = on_event
        self._counts: Counter[str] = Counter()
        self._discarded: Counter[DiscardReason] = Counter()
        self._cold_in_use = 0
        self._was_short = False

    @property
    def state(self) -> PoolState:
        slots = Counter(slot.state for slot in self._slots)
        return PoolState(
            made=self._counts["made"],
            claimed=self._counts["claimed"],
            cold=self._counts["cold"],
            failed=self._counts["failed"],
            discarded=dict(self._discarded),
            waiting=slots["waiting"] + slots["waking"],
            paused=sum(slot.state == "waiting" and slot.paused for slot in self._slots),
            making=slots["making"],
            in_use=slots["claimed"] + self._cold_in_use,
            closing=slots["closing"],
            memory_bytes=self._held_bytes(),
            memory_short=self._memory.short,
            waiting_by_key={key: len(shelf.waiting) for key, shelf in self._shelves.items()},
        )

    async def until(self, so: Callable[[PoolState], bool]) -> PoolState:
        """Wait until the pool is so."""
        while not so(state := self.state):
            await self._changed.wait()
        return state

    @asynccontextmanager
    async def claim(self, key: str) -> AsyncIterator[S | None]:
        """A spare of this key for the block alone, or None, at once; it is closed afterwards."""
        slot = await self._take(key)
        if slot is None:
            yield None
            return
        try:
            yield slot.spare
        finally:
            await self._close(slot)

    @asynccontextmanager
    async def claimed(self, key: str, make: Maker[S]) -> AsyncIterator[S]:
        @asynccontextmanager
        async def counted() -> AsyncIterator[S]:
            async with make() as cold:
                self._counts["cold"] += 1
                self._cold_in_use += 1
                self._on_event(PoolEvent(kind="cold", key=key, name=cold.name))
                try:
                    yield cold
                finally:
                    self._cold_in_use -= 1
                    self._tell()

        async with super().claimed(key, counted) as spare:
            yield spare

    async def _take(self, key: str) -> Slot[S] | None:
        slot = await super()._take(key)
        if slot is not None:
            self._counts["claimed"] += 1
            self._on_event(PoolEvent(kind="claimed", key=key, name=slot.spare.name))
        return slot

    def _offer(self, slot: Slot[S], spare: S) -> None:
        self._counts["made"] += 1
        self._on_event(PoolEvent(kind="made", key=slot.shelf.key, name=spare.name))
        super()._offer(slot, spare)

    def _drop(self, slot: Slot[S], reason: DiscardReason) -> None:
        self._discarded[reason] += 1
        key, name = slot.shelf.key, slot.spare.name
        self._on_event(PoolEvent(kind="discarded", key=key, name=name, reason=reason))
        super()._drop(slot, reason)

    def _failed(self, slot: Slot[S], text: str) -> None:
        key = slot.shelf.key
        if slot.state == "making":
            self._counts["failed"] += 1
            self._on_event(PoolEvent(kind="make_failed", key=key, text=text))
        else:
            name = slot.spare.name
            self._on_event(PoolEvent(kind="close_failed", key=key, name=name, text=text))
        super()._failed(slot, text)

    def _tell(self) -> None:
        if self._memory.short != self._was_short:
            self._was_short = self._memory.short
            kind: PoolEventKind = "memory_short" if self._was_short else "memory_back"
            self._on_event(PoolEvent(kind=kind))
        super()._tell()
