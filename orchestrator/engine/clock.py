"""A run's time: it stands still while the run waits for its caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import inf

import anyio


class Clock:
    """Counts the seconds that a run was at work, and ends it when they are used up."""

    def __init__(
        self, seconds: float, may_stop_seconds: float = inf, outer: Clock | None = None
    ) -> None:
        self.seconds = seconds
        self._outer = outer
        """Of the run that this one works for: it stops whenever this one does."""
        self._may_stop = may_stop_seconds
        """Total seconds the clock may be stopped; after that it runs even while the run waits."""
        self._before = 0.0
        self._since: float | None = None
        self._stopped_at = 0.0
        self._stops = 0
        self._scope: anyio.CancelScope | None = None
        self._changed = anyio.Event()

    @property
    def spent(self) -> float:
        """Seconds at work so far."""
        running = 0.0 if self._since is None else anyio.current_time() - self._since
        return self._before + running

    @contextmanager
    def running(self) -> Iterator[anyio.CancelScope]:
        """What is done in this block is cancelled when the time is used up."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            self._go()
            try:
                yield scope
            finally:
                self._before, self._since, self._scope = self.spent, None, None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time stands still in this block; several may overlap."""
        self._stops += 1
        if self._stops == 1:
            self._before, self._since = self.spent, None
            self._stopped_at = anyio.current_time()
            self._set_deadline(self._stopped_at + self._may_stop + self.seconds - self._before)
        try:
            with nullcontext() if self._outer is None else self._outer.stopped():
                yield
        finally:
            self._stops -= 1
            if self._stops == 0:
                stood = anyio.current_time() - self._stopped_at
                self._before += max(0.0, stood - self._may_stop)
                self._may_stop = max(0.0, self._may_stop - stood)
                self._go()

    async def until(self, seconds: float) -> None:
        """Wait until so many seconds have been spent at work."""
        while (left := seconds - self.spent) > 0:
            changed = self._changed
            with anyio.move_on_after(inf if self._since is None else left):
                await changed.wait()

    def _go(self) -> None:
        if self._scope is None or self._stops:
            return  # not yet, or not any more
        self._since = anyio.current_time()
        self._set_deadline(self._since + self.seconds - self._before)

    def _set_deadline(self, deadline: float) -> None:
        if self._scope is not None:
            self._scope.deadline = deadline
        self._changed.set()
        self._changed = anyio.Event()
