"""Spares that wait to be claimed: made in the background, used once, never given back.

A pool keeps as many of them as were wanted, per key. The key stands for everything that makes two
spares interchangeable; nothing of a run, its caller or its limits is in one before it is claimed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Generic, Self

import anyio
import anyio.abc

from orchestrator.engine.spares.shelf import (
    DiscardReason,
    Gate,
    Maker,
    MemoryGuard,
    PoolLimits,
    S,
    Shelf,
    Slot,
    available_bytes,
)
from orchestrator.errors import OrchestratorError

log = logging.getLogger(__name__)

SPARE_MAKE_SECONDS = 180.0
"""For one spare to be ready, on a machine under load."""

SPARE_WAKE_SECONDS = 5.0
"""For a spare to be paused or resumed; one that takes longer is not used."""

SPARE_CLOSE_SECONDS = 30.0
"""For a spare to go; after that whatever it waits for is cancelled."""

YOUNG_SECONDS = 10.0
"""A spare that dies so soon may have a CLI that always does: the next one is made later."""

MAX_BACKOFF_SECONDS = 60.0
"""Between two attempts; after twice as long without a failure, all is forgiven."""


class Pool(Generic[S]):
    """Spares, from `async with` to its end; then all of them go, those in use as well."""

    def __init__(
        self,
        limits: PoolLimits | None = None,
        *,
        gate: Gate | None = None,
        available_bytes: Callable[[], int] = available_bytes,
    ) -> None:
        self.limits = limits or PoolLimits()
        self.gate = gate or Gate()
        self._memory = MemoryGuard(self.limits, available_bytes)
        self._shelves: dict[str, Shelf[S]] = {}
        self._slots: set[Slot[S]] = set()
        self._changed = anyio.Event()
        self._leaving = anyio.Event()
        self._home: asyncio.Task[None] | None = None
        self._tasks: anyio.abc.TaskGroup

    async def __aenter__(self) -> Self:
        # In a task of its own: a group held open across a block would wrap the block's errors.
        begun = anyio.Event()
        self._home = asyncio.get_running_loop().create_task(self._live(begun), name="spares")
        await begun.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        if self._home is not None:
            with anyio.CancelScope(shield=True):  # every wait in there is bounded
                await self._home

    # What is wanted

    def want(self, key: str, count: int, make: Maker[S]) -> None:
        """Keep so many of this key from now on; they are made in the background."""
        if self._leaving.is_set():
            return
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(key, make)
        shelf.wanted, shelf.make = count, make
        while len(shelf.waiting) > count:
            self._discard(shelf.waiting[0], "surplus")
        self._tell()

    def forget(self, key: str) -> None:
        """What this key stood for has changed: no claim gets one any more, and all of them go."""
        shelf = self._shelves.pop(key, None)
        if shelf is None:
            return
        while shelf.waiting:
            self._discard(shelf.waiting[0], "forgotten")
        if shelf.making is not None:
            shelf.making.give_up()
        self._tell()

    def states(self) -> dict[str, Counter[str]]:
        """How many there are of each key, by what they do: making, waiting, paused."""
        return {
            key: Counter(
                [
                    *("paused" if slot.paused else "waiting" for slot in shelf.waiting),
                    *(["making"] if shelf.making is not None else []),
                ]
            )
            for key, shelf in self._shelves.items()
        }

    # Claims

    @asynccontextmanager
    async def claimed(self, key: str, make: Maker[S]) -> AsyncIterator[S]:
        """A spare of this key, or one made now; an error from making it is the caller's.

        It is the block's alone, and closed afterwards.
        """
        slot = await self._take(key)
        if slot is not None:
            try:
                yield slot.spare
            finally:
                await self._close(slot)
            return
        async with AsyncExitStack() as stack:
            with self.gate.starting():
                cold = await stack.enter_async_context(make())
            yield cold

    # Handing over

    async def _take(self, key: str) -> Slot[S] | None:
        while (slot := self._next(key)) is not None:
            try:
                with anyio.fail_after(SPARE_WAKE_SECONDS):
                    async with slot.lock:
                        await slot.spare.resume()
            except Exception as exc:  # noqa: BLE001 whatever it is, this one is of no use
                log.info("a spare of no use, %s: %s", slot.spare.name, exc)
                self._drop(slot, "silent")
                continue
            except BaseException:
                self._drop(slot, "abandoned")
                raise
            if self._shelves.get(key) is not slot.shelf:
                self._drop(slot, "forgotten")
                continue
            if not slot.spare.alive:
                self._drop(slot, "dead")
                continue
            slot.state = "claimed"
            self._put_away(slot)
            slot.shelf.failures, slot.shelf.died_young = 0, False
            self.gate.hush(self.limits.quiet_seconds)
            return slot
        return None

    def _next(self, key: str) -> Slot[S] | None:
        """The oldest that is good, taken off its shelf: no second claim can see it."""
        shelf = self._shelves.get(key)
        while shelf is not None and shelf.waiting:
            slot = shelf.waiting[0]
            if not slot.spare.alive:
                self._discard(slot, "dead")
            elif anyio.current_time() - slot.since > self.limits.max_age_seconds:
                self._discard(slot, "old")
            else:
                shelf.waiting.popleft()
                slot.state = "waking"
                self._tell()
                return slot
        return None

    async def _close(self, slot: Slot[S]) -> None:
        """See it go, cancelled or not."""
        slot.over.set()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(SPARE_CLOSE_SECONDS):
                await slot.gone.wait()
                return
            log.warning("%s takes long to go", slot.spare.name)
            slot.scope.cancel()

    def _discard(self, slot: Slot[S], reason: DiscardReason) -> None:
        """Close one that waits; in any other state its claim or its maker closes it."""
        if slot.state == "waiting":
            slot.shelf.waiting.remove(slot)
            self._drop(slot, reason)

    def _drop(self, slot: Slot[S], reason: DiscardReason) -> None:
        log.debug("spare %s goes: %s", slot.spare.name, reason)
        slot.state = "closing"
        slot.over.set()
        self._put_away(slot)

    # The life of a spare

    async def _live(self, begun: anyio.Event) -> None:
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._fill)
                self._tasks.start_soon(self._mind_memory)
                begun.set()
                await self._leaving.wait()
                with anyio.move_on_after(SPARE_CLOSE_SECONDS):
                    await self._empty()
                self._tasks.cancel_scope.cancel()
        finally:
            begun.set()
            self._leaving.set()
            self._shelves.clear()  # whatever went wrong: from now on every start is a cold one
            self._tell()

    async def _empty(self) -> None:
        for shelf in [*self._shelves.values()]:
            while shelf.waiting:
                self._discard(shelf.waiting[0], "closing")
        self._shelves.clear()
        for slot in [*self._slots]:
            if slot.state == "making":
                slot.give_up()
            slot.over.set()
        while self._slots:
            await self._changed.wait()

    async def _keep(self, slot: Slot[S]) -> None:
        """From making it to its end, in one task, since that is how context managers want it."""
        try:
            with slot.scope:
                slot.scope.deadline = anyio.current_time() + SPARE_MAKE_SECONDS
                async with slot.shelf.make() as spare:
                    slot.scope.deadline = math.inf
                    try:
                        self._offer(slot, spare)
                        await self._attend(slot)
                    finally:
                        self._discard(slot, "dead")  # before it is closed, so that no claim gets it
            if slot.state == "making" and not slot.unwanted:
                self._failed(slot, f"it was not ready after {SPARE_MAKE_SECONDS:.0f} s")
        except OrchestratorError as exc:
            self._failed(slot, str(exc))
        except Exception as exc:  # a spare that fails must not take the others with it
            log.exception("a container that waits for a call failed")
            self._failed(slot, f"{type(exc).__name__}; the log says more")
        finally:
            if slot.shelf.making is slot:
                slot.shelf.making = None
            slot.settled.set()
            slot.gone.set()
            self._put_away(slot)

    def _offer(self, slot: Slot[S], spare: S) -> None:
        """Put it on its shelf, unless the world has changed while it was made."""
        shelf = slot.shelf
        shelf.making, shelf.expected_bytes = None, spare.memory_bytes()
        slot.spare, slot.state, slot.since = spare, "waiting", anyio.current_time()
        shelf.waiting.append(slot)
        self._tell()
        if self._leaving.is_set():
            self._discard(slot, "closing")
        elif self._shelves.get(shelf.key) is not shelf:
            self._discard(slot, "forgotten")
        elif len(shelf.waiting) > shelf.wanted:
            self._discard(slot, "surplus")
        elif self._held_bytes() > self.limits.max_memory_bytes:
            self._discard(slot, "memory")
        slot.settled.set()

    async def _attend(self, slot: Slot[S]) -> None:
        """Until it has been used, or will not be: dead, old, or not wanted any more."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._notice_end, slot)
            tasks.start_soon(self._grow_old, slot)
            await slot.over.wait()
            tasks.cancel_scope.cancel()

    async def _notice_end(self, slot: Slot[S]) -> None:
        await slot.spare.wait_ended()
        if slot.state != "waiting":
            return  # a claimed one is its run's to miss
        if anyio.current_time() - slot.since < YOUNG_SECONDS:
            if slot.shelf.died_young:
                self._back_off(slot.shelf)
            slot.shelf.died_young = True
        self._discard(slot, "dead")

    async def _grow_old(self, slot: Slot[S]) -> None:
        limits = self.limits
        if limits.pause_after_seconds is not None:
            await anyio.sleep(limits.pause_after_seconds)
            try:
                with anyio.fail_after(SPARE_WAKE_SECONDS):
                    async with slot.lock:  # no claim resumes it in between
                        if slot.state == "waiting":
                            await slot.spare.pause()
                            slot.paused = True
                            self._tell()
            except Exception as exc:  # noqa: BLE001 as with resume
                log.info("%s cannot be paused: %s", slot.spare.name, exc)
                self._discard(slot, "silent")
        await anyio.sleep_until(slot.since + limits.max_age_seconds)
        self._discard(slot, "old")

    def _failed(self, slot: Slot[S], text: str) -> None:
        if slot.state != "making":
            log.warning(
                "the waiting container %s did not go as it should: %s", slot.spare.name, text
            )
            return
        log.info("a spare cannot be made; it is tried again later: %s", text)
        self._back_off(slot.shelf)
        self._tell()

    def _back_off(self, shelf: Shelf[S]) -> None:
        now = anyio.current_time()
        if now - shelf.not_before > 2 * MAX_BACKOFF_SECONDS:
            shelf.failures = 0
        wait = min(self.limits.backoff_seconds * 2**shelf.failures, MAX_BACKOFF_SECONDS)
        shelf.failures = min(shelf.failures + 1, 16)
        shelf.not_before = now + wait

    def _put_away(self, slot: Slot[S]) -> None:
        """Forget one that is gone, once it is clear whether a claim got it."""
        if slot.gone.is_set() and slot.state != "waking":
            self._slots.discard(slot)
        self._tell()

    # In the background

    async def _fill(self) -> None:
        """Make what is missing, one at a time, when no run is starting."""
        while True:
            changed = self._changed
            shelf = self._neediest()
            if shelf is None:
                with anyio.move_on_after(self._until_retry()):
                    await changed.wait()
                continue
            await self.gate.calm()
            shelf = self._neediest()
            if shelf is not None:
                slot = shelf.making = Slot(shelf)
                self._slots.add(slot)
                self._tell()
                self._tasks.start_soon(self._keep, slot)
                await slot.settled.wait()

    def _neediest(self) -> Shelf[S] | None:
        """The emptiest shelf that there is room for, and that did not fail a moment ago."""
        now = anyio.current_time()
        needy = [s for s in self._shelves.values() if s.missing and s.not_before <= now]
        count = sum(slot.state in ("waiting", "waking", "closing") for slot in self._slots)
        held = self._held_bytes()
        for shelf in sorted(needy, key=lambda s: len(s.waiting) / s.wanted):
            if self._memory.fits(count, held, shelf.expected_bytes):
                return shelf
        return None

    def _until_retry(self) -> float:
        now = anyio.current_time()
        times = [s.not_before - now for s in self._shelves.values() if s.missing]
        return min((seconds for seconds in times if seconds > 0), default=math.inf)

    async def _mind_memory(self) -> None:
        """Give spares back while memory is short, the oldest first, each one seen off."""
        while True:
            too_little = self._memory.look()
            waiting = [slot for slot in self._slots if slot.state == "waiting"]
            if too_little and waiting:
                oldest = min(waiting, key=lambda slot: slot.since)
                self._discard(oldest, "memory")
                await self._close(oldest)
                continue
            self._tell()  # there may be room for one that did not fit
            await anyio.sleep(self.limits.check_seconds)

    # Inside

    def _held_bytes(self) -> int:
        held = (slot for slot in self._slots if slot.state in ("waiting", "waking"))
        return sum(slot.spare.memory_bytes() for slot in held)

    def _tell(self) -> None:
        """Wake the tasks that wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()
