"""What the services of a container have in common: connections that are cut when the run ends, and
the run's record, which is told what passed.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import anyio

from orchestrator.domain.audit import AuditAct
from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.gateway.http.request_head import Head, read_head
from orchestrator.gateway.http.server import log_failure

log = logging.getLogger(__name__)

DENIALS_PER_HOST = 20
"""Denials of one host that are told. An agent that goes on asking gets the answer, but no event."""

MAX_DENIALS = 1000
"""Denials that are told in all."""

Seen = TypeVar("Seen")


class Decided(Protocol):
    """Writes down what an agent is let or refused, before it is."""

    async def __call__(
        self, act: AuditAct, subject: str, *, allowed: bool, why: str = ""
    ) -> None: ...


async def undecided(act: AuditAct, subject: str, *, allowed: bool, why: str = "") -> None:
    """For a service whose decisions are not written down."""


class Doorway:
    """The connections of one service. A service has one; it is not one."""

    def __init__(self) -> None:
        self.revoked = False
        """The run has ended, or none has begun."""
        self._open: set[anyio.CancelScope] = set()

    @property
    def open_connections(self) -> int:
        """Those that `cut` would end."""
        return len(self._open)

    async def serve_one(
        self, stream: ByteStream, answer: Callable[[Head], Awaitable[None]]
    ) -> None:
        """Answer the one request of a connection, which `cut` ends at any time."""

        async def serve(scope: anyio.CancelScope) -> None:
            self.enter(scope)
            head = await read_head(stream)
            if head is not None:
                await answer(head)

        await self.serve(stream, serve)

    async def serve(
        self, stream: ByteStream, answer: Callable[[anyio.CancelScope], Awaitable[None]]
    ) -> None:
        """Answer a connection, which `cut` ends while its scope has been entered and not left: a
        CLI's to its model stays from one run to the next. Its peer sees a reset.
        """
        with anyio.CancelScope() as scope:
            try:
                await answer(scope)
            except (OSError, WireLost):
                raise  # the peer went away; the wire knows what to do
            except Exception as exc:  # noqa: BLE001 its text may quote what the agent must not see
                log_failure("a connection could not be answered", exc)
                stream.reset()
            finally:
                self.leave(scope)
        if scope.cancelled_caught:
            stream.reset()

    def enter(self, scope: anyio.CancelScope) -> None:
        self._open.add(scope)

    def leave(self, scope: anyio.CancelScope) -> None:
        self._open.discard(scope)

    def cut(self) -> None:
        """End what is under way."""
        for scope in self._open:
            scope.cancel()

    def revoke(self) -> None:
        """End what is under way; the service refuses what comes from now on."""
        self.revoked = True
        self.cut()

    def reopen(self) -> None:
        """The service is bound to another run."""
        self.revoked = False


class Observer(Generic[Seen]):
    """Tells the run's record what passed. An error in there changes no answer."""

    def __init__(
        self,
        on_seen: Callable[[Seen], None] | None,
        what: str,
        *,
        most: float = math.inf,
    ) -> None:
        """`what` is told of, for the log; at most so many."""
        self._on_seen = on_seen
        self._what = what
        self._left = most
        self._denials: Counter[str] = Counter()

    def tell(self, seen: Seen) -> None:
        if self._on_seen is None or self._left <= 0:
            return
        self._left -= 1
        try:
            self._on_seen(seen)
        except Exception:
            log.exception("%s could not be recorded", self._what)

    def wants_denial(self, host: str) -> bool:
        """Whether one more denial of a host is to be told; it counts as told."""
        if self._denials.total() >= MAX_DENIALS or self._denials[host] >= DENIALS_PER_HOST:
            return False
        self._denials[host] += 1
        return True
