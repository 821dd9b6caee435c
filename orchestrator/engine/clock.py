"""A run's time: it stands still while the run does nothing but wait for its caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

import anyio

QUIET_SECONDS = 60.0
"""What an agent may have done unseen before a sign of its work; one that has waited for hours must
not lose them for one late sign."""


class Clock:
    """Counts the seconds that a run was at work, and ends it when they are used up."""

    def __init__(
        self, seconds: float, may_stop_seconds: float = inf, outer: Clock | None = None
    ) -> None:
        self.seconds = seconds
        self._outer = outer
        """Of the run that this one works for: it stops whenever this one does, and goes on whenever
        this one does, whatever its own agent waits for."""
        self._may_stop = may_stop_seconds
        """Total seconds the clock may be stopped; after that it runs even while the run waits."""
        self._before = 0.0
        self._since: float | None = None
        """When it was last looked at, while it goes."""
        self._still_since: float | None = None
        """The same while it stands still."""
        self._stood = 0.0
        """For how long it has stood still without a sign of work."""
        self._stops = 0
        self._works = 0
        self._scope: anyio.CancelScope | None = None
        self._changed = anyio.Event()

    @property
    def spent(self) -> float:
        """Seconds at work so far."""
        now, running = anyio.current_time(), 0.0
        if self._since is not None:
            running = now - self._since
        elif self._still_since is not None:
            running = max(0.0, now - self._still_since - self._may_stop)
        return self._before + running

    def stands_still(self) -> bool:
        return self._still_since is not None

    @contextmanager
    def running(self) -> Iterator[anyio.CancelScope]:
        """What is done in this block is cancelled when the time is used up."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            self._turn()
            try:
                yield scope
            finally:
                self._scope = None
                self._turn()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time stands still in this block, unless the agent works all the same; several may
        overlap.
        """
        self._stops += 1
        self._turn()
        try:
            yield
        finally:
            self._stops -= 1
            self._turn()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The agent works in this block: time goes on, although somebody is waited for."""
        self.seen_at_work()
        self._works += 1
        self._turn()
        try:
            yield
        finally:
            self._works -= 1
            self._turn()

    def seen_at_work(self, seconds: float = QUIET_SECONDS) -> None:
        """The agent has just done something, and may have worked at it for so long: if time stood
        still, it should not have.
        """
        if self._still_since is not None:
            self._turn()
            worked = min(seconds, self._stood)
            self._before, self._stood = self._before + worked, 0.0
            self._turn()
        if self._outer is not None and self._scope is not None:
            self._outer.seen_at_work(seconds)

    async def until(self, seconds: float) -> None:
        """Wait until so many seconds have been spent at work."""
        while (left := seconds - self.spent) > 0:
            changed = self._changed
            with anyio.move_on_after(self._soonest(left)):
                await changed.wait()

    def _soonest(self, left: float) -> float:
        """How long it takes to spend so many seconds, as things are."""
        if self._since is not None:
            return left
        if self._still_since is None:
            return inf
        patience = self._may_stop - (anyio.current_time() - self._still_since)
        return max(0.0, patience) + left

    async def until_still(self) -> None:
        """Wait until time stands still."""
        while not self.stands_still():
            await self._changed.wait()

    def follow(self, *, stops: int, works: int) -> None:
        """The clock of a run that works for this one has stopped, or goes, or does not any more."""
        if stops or works:
            self._stops += stops
            self._works += works
            self._turn()

    def _turn(self) -> None:
        """Count what has passed, and go or stand still, as things are now."""
        now, was_still = anyio.current_time(), self._still_since is not None
        went = self._since is not None
        if self._since is not None:
            self._before += now - self._since
        if self._still_since is not None:
            stood = now - self._still_since
            self._stood += min(stood, self._may_stop)
            self._before += max(0.0, stood - self._may_stop)
            self._may_stop = max(0.0, self._may_stop - stood)
        still = self._stops > 0 and self._works == 0
        self._since = self._still_since = None
        if self._scope is not None:
            left = self.seconds - self._before
            if still:
                self._still_since = now
                self._scope.deadline = now + self._may_stop + left
            else:
                self._since, self._stood = now, 0.0
                self._scope.deadline = now + left
        self._changed.set()
        self._changed = anyio.Event()
        if self._outer is not None:
            self._outer.follow(
                stops=(self._still_since is not None) - was_still,
                works=(self._since is not None) - went,
            )
