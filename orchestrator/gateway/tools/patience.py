"""How long an answer of a server is waited for, and what of that is the run's time at work. Both
stand still while the server wants to know something of the run's caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import anyio

AtWork = Callable[[], AbstractContextManager[None]]
"""The run is at work in this block: its time goes on."""


class Company:
    """The calls of one container that one server has not answered yet. Which of them a question of
    the server's belongs to, nobody says; so while one is open, none of them is late.
    """

    def __init__(self) -> None:
        self.calls: set[CallPatience] = set()
        self.questions = 0

    @contextmanager
    def asked(self) -> Iterator[None]:
        """In this block the server waits for us."""
        self._turn(1)
        try:
            yield
        finally:
            self._turn(-1)

    def _turn(self, more: int) -> None:
        self.questions += more
        for call in self.calls:
            call.renew()


class CallPatience:
    """Of one call."""

    def __init__(self, company: Company, seconds: float, at_work: AtWork) -> None:
        self._company = company
        self._seconds = seconds
        self._at_work = at_work
        self._work = ExitStack()
        self._works = False
        self._answer = anyio.CancelScope()

    @property
    def over(self) -> bool:
        """No answer came in time."""
        return self._answer.cancelled_caught

    @contextmanager
    def working(self) -> Iterator[None]:
        """The server works for the run in this block, or is started."""
        self._company.calls.add(self)
        self.renew()
        try:
            yield
        finally:
            self._company.calls.discard(self)  # first: a question may outlive the call
            self._work.close()

    @contextmanager
    def lasting(self) -> Iterator[None]:
        """What is done in this block is cancelled when there is no answer for so long."""
        with self._answer:
            self.renew()
            yield

    def renew(self) -> None:
        """Begin to wait anew; or stop, while the server waits for us."""
        if self not in self._company.calls:
            return  # word of a call that has ended
        asked = self._company.questions > 0
        self._answer.deadline = float("inf") if asked else anyio.current_time() + self._seconds
        if asked:
            self._work.close()
        elif not self._works:
            self._work.enter_context(self._at_work())
        self._works = not asked
