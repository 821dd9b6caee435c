"""One HTTP/1.1 request on to a host, and its answer back, neither ever held whole.

Neither the client nor the host is trusted. Each is read by a parser of its own and its message is
written anew, so that only what was understood gets through: framing, names and values are ours, and
there is one request for each connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import (
    IDLE_SECONDS,
    PIECE_BYTES,
    STREAM_READ_BYTES,
    TURN_EVENTS,
    ByteStream,
)
from orchestrator.gateway.http.headers import (
    CLIENT_GONE,
    Headers,
    as_bytes,
    as_text,
    end_to_end,
    first_value,
)
from orchestrator.gateway.http.request_head import ANSWER_HEAD_BYTES, Head
from orchestrator.gateway.http.socket_stream import Unreachable
from orchestrator.wire.streams import give_way

MOVED_SECONDS = 1.0
"""How exactly IDLE_SECONDS are measured: moving a deadline with every piece costs more than the
piece."""

EARLY_BYTES = 64 * 1024
"""What a client may send after its request. We throw it away, and read no more."""

MAX_INFORMATIONAL = 16
"""Answers before the answer, such as 103."""

FRAMING = ("content-length", "transfer-encoding")


class Filter(Protocol):
    """Looks through an answer's body as it passes.

    One that has a true `keeps_length` gives as many bytes as it takes, so that what was said of
    their number stays true.
    """

    def feed(self, data: bytes, /) -> bytes:
        """What may go on now; it may hold some back."""
        ...

    def finish(self) -> bytes:
        """What is left at the end."""
        ...


Rewrite = Callable[[int, Headers], tuple[Headers, Filter | None]]
"""An answer's status and headers -> what the client gets of them, and what its body goes through.

The headers that come are end to end; those of the framing are neither shown nor taken.
"""


@dataclass(frozen=True, repr=False)
class Outgoing:
    """The head of a request as the other side is to see it."""

    method: str
    target: str
    headers: Headers
    """With `host`, and without those of the framing: made by `passed_on`."""

    def __repr__(self) -> str:
        return f"Outgoing({self.method} {self.target.partition('?')[0]!r})"


@dataclass(frozen=True)
class Forwarded:
    """What became of a request."""

    status: int
    """As the client saw it; 499 when it did not wait."""
    whole: bool
    """The answer was passed on to its end."""


def passed_on(
    headers: Headers,
    host: str,
    dropped: frozenset[str] = frozenset(),
    prefixes: tuple[str, ...] = (),
) -> Headers:
    """Headers for the next server: end to end ones only, its own name, nothing about proxies."""
    kept = end_to_end(headers, dropped, prefixes)
    return (("host", host), *kept, ("connection", "close"))


async def forward(
    head: Head, upstream: ByteStream, request: Outgoing, *, rewrite: Rewrite
) -> Forwarded:
    """Send a request on, body and all, and pass the answer back.

    A client that goes away ends it. Raises Unreachable when no answer came, and the client has not
    been told yet; an answer that breaks off in the middle is cut for the client as well. The
    caller closes the upstream.
    """
    return await _Passage(head, upstream, rewrite).run(request)


class _ClientGone(Exception):
    """The client does not wait for the answer."""


class _Passage:
    def __init__(self, head: Head, upstream: ByteStream, rewrite: Rewrite) -> None:
        self._head = head
        self._client = head.client
        self._near = head.http
        self._upstream = upstream
        self._far = h11.Connection(h11.CLIENT, max_incomplete_event_size=ANSWER_HEAD_BYTES)
        self._rewrite = rewrite
        self._status = 0
        self._gone = False
        self._pending: list[bytes] = []  # for the client
        self._scope: anyio.CancelScope | None = None
        self._last_moved = -MOVED_SECONDS

    async def run(self, request: Outgoing) -> Forwarded:
        first = self._request_head(request)
        problem, whole = "", False
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            self._moved()
            try:
                await self._go_on()
                tasks.start_soon(self._send, first)
                await self._pass_answer()
                whole = True
            except _ClientGone:
                self._gone = True
            except (OSError, WireLost):
                problem = "the connection broke"
            except h11.ProtocolError:
                problem = "what it said is not HTTP, or broke off"
            tasks.cancel_scope.cancel()
        if whole:
            return Forwarded(self._status, whole=True)
        if self._gone:
            self._client.reset()
            return Forwarded(CLIENT_GONE, whole=False)
        if not self._head.answered:
            host = first_value(request.headers, "host")
            why = problem or f"it said nothing for {IDLE_SECONDS:.0f} s"
            raise Unreachable(f"no answer from {host} ({why})")
        self._client.reset()
        return Forwarded(self._status, whole=False)

    def _moved(self) -> None:
        now = anyio.current_time()
        if self._scope is not None and now - self._last_moved > MOVED_SECONDS:
            self._last_moved = now
            self._scope.deadline = now + IDLE_SECONDS

    # Out

    def _request_head(self, request: Outgoing) -> bytes:
        """The request's head, with the framing that the client chose."""
        framing = [pair for pair in self._head.headers if pair[0] in FRAMING]
        headers = as_bytes((*request.headers, *framing))
        try:
            return self._far.send(
                h11.Request(method=request.method, target=request.target, headers=headers)
            )
        except h11.LocalProtocolError:
            raise Unreachable("this request cannot be written as HTTP") from None

    async def _go_on(self) -> None:
        """Tell a client that waits for it to send its body: no rule has refused its head."""
        if self._near.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await self._tell(self._near.send(go_on) or b"")

    async def _send(self, first: bytes) -> None:
        """The request, as it comes; then notice whether the client still waits."""
        assert self._scope is not None  # noqa: S101 this runs inside of it
        try:
            await self._send_all(first)
            await self._watch()
        except (_ClientGone, h11.RemoteProtocolError):
            self._gone = True
            self._scope.cancel()

    async def _send_all(self, first: bytes) -> None:
        pending = first
        try:
            if self._head.has_body:
                await self._upstream.write(pending)
                pending = b""
            while True:
                if data := await _at_hand(self._near):
                    await self._upstream.write(self._far.send(h11.Data(data=data)) or b"")
                if self._near.their_state is not h11.SEND_BODY:
                    break
                self._near.receive_data(await self._from_client())
                self._moved()
            await self._upstream.write(pending + (self._far.send(h11.EndOfMessage()) or b""))
        except (OSError, WireLost):
            return  # it may have answered all the same, and not want the rest

    async def _from_client(self) -> bytes:
        try:
            return await self._client.read(PIECE_BYTES)
        except (OSError, WireLost):
            raise _ClientGone from None

    async def _watch(self) -> None:
        early = 0
        while early < EARLY_BYTES:
            try:
                data = await self._client.read(STREAM_READ_BYTES)
            except (OSError, WireLost):
                data = b""
            early += len(data)
            if not data:
                raise _ClientGone

    # In

    async def _pass_answer(self) -> None:
        """The answer, as it comes; before more is waited for, the client gets what is there."""
        through = self._pass_head(await self._answer_head())
        while True:
            if data := await _at_hand(self._far):
                self._keep(through.feed(data) if through else data)
            if self._far.their_state is not h11.SEND_BODY:
                break
            await self._tell_pending()
            self._far.receive_data(await self._upstream.read(PIECE_BYTES))
            self._moved()
        self._keep(through.finish() if through else b"")
        self._pending.append(self._near.send(h11.EndOfMessage()) or b"")
        await self._tell_pending()

    async def _answer_head(self) -> h11.Response:
        for _ in range(MAX_INFORMATIONAL):
            event = await _next(self._far, self._upstream)
            if isinstance(event, h11.Response):
                self._moved()
                return event
            if not isinstance(event, h11.InformationalResponse):
                break
        raise h11.RemoteProtocolError("no answer")

    def _pass_head(self, came: h11.Response) -> Filter | None:
        """Begin the client's answer; what its body is to go through."""
        headers, through = self._rewrite(came.status_code, end_to_end(as_text(came.headers)))
        same_size = through is None or getattr(through, "keeps_length", False)
        sizes = _sizes(came) if same_size else []
        answer = h11.Response(
            status_code=came.status_code,
            headers=[*as_bytes(end_to_end(headers)), *sizes, (b"connection", b"close")],
            reason=came.reason if through is None else b"",  # no filter has seen that one
        )
        self._status = came.status_code
        self._head.begin_answer()
        self._pending.append(self._near.send(answer))
        return through

    def _keep(self, data: bytes) -> None:
        if data:
            self._pending.append(self._near.send(h11.Data(data=data)) or b"")

    async def _tell_pending(self) -> None:
        pending, self._pending = b"".join(self._pending), []
        await self._tell(pending)

    async def _tell(self, data: bytes) -> None:
        if data:
            try:
                await self._client.write(data)
            except (OSError, WireLost):
                raise _ClientGone from None


async def _next(http: h11.Connection, stream: ByteStream) -> object:
    """The next event of a connection, read for as needed."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.read(PIECE_BYTES))
    return event


async def _at_hand(http: h11.Connection) -> bytes:
    """What has arrived of a body and was not taken yet, put together; b"" when that is nothing.

    A body in tiny chunks goes on in larger ones, and other tasks get their turn meanwhile.
    """
    pieces: list[bytes] = []
    while http.their_state is h11.SEND_BODY:
        event = http.next_event()
        if event is h11.NEED_DATA:
            break
        if isinstance(event, h11.Data):
            pieces.append(event.data)
        elif not isinstance(event, h11.EndOfMessage):
            raise h11.RemoteProtocolError("it broke off")
        if len(pieces) % TURN_EVENTS == TURN_EVENTS - 1:
            await give_way()
    return b"".join(pieces)


def _sizes(answer: h11.Response) -> list[tuple[bytes, bytes]]:
    """Its content-length, where that is what its body is measured by."""
    if any(name == b"transfer-encoding" for name, _ in answer.headers):
        return []
    return [pair for pair in answer.headers if pair[0] == b"content-length"]
