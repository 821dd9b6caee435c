"""A byte stream -> HTTP/1.1 exchanges. The peer is a stranger in a container.

Nothing it sends is believed before it is whole: heads and bodies are bounded in size and time, and
what is not plain HTTP gets one refusal and the end of the connection.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
import anyio.lowlevel
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.http.headers import Headers, as_text, first_value

log = logging.getLogger(__name__)

HEAD_BYTES = 64 * 1024
"""The request line and all headers."""

BODY_BYTES = 32 * 1024 * 1024
"""One request's body: what the model API itself takes."""

ROOM_BYTES = 96 * 1024 * 1024
"""All bodies that are held at once for whoever shares a Room."""

HEAD_SECONDS = 10.0
"""From the first byte of a head to its last."""

BODY_SECONDS = 120.0
"""For a whole body to arrive; it comes from the same machine."""

IDLE_SECONDS = 300.0
"""Between two requests on one connection, before the first, and for a peer that does not take what
it is sent."""

CLOSE_SECONDS = 10.0
"""For letting go of whatever an answer was made from."""

READ_BYTES = 64 * 1024

PIECE_BYTES = 256 * 1024
"""Of a body that is passed on, at once: what a socket is read by. Cutting that up costs more than
passing it on."""

CLIENT_GONE = 499
"""The status of a request whose client did not wait for the answer."""

TURN_EVENTS = 64
"""Pieces of a message after which others get their turn: what has arrived is read without waiting,
and somebody who sends crumbs would have the event loop for himself."""

MAX_PIECES = 1000
PIECE_AT_LEAST_BYTES = 64
"""A body of more pieces than that, which have fewer bytes on average, is there to keep us busy."""


class ByteStream(Protocol):
    """Two directions of bytes: a wire's Stream, or a socket."""

    async def read(self, max_bytes: int = READ_BYTES, /) -> bytes:
        """Some bytes, or b"" at the end; OSError or WireLost when it broke."""
        ...

    async def write(self, data: bytes, /) -> None:
        """Send it all, waiting for the reader as needed."""
        ...

    def end(self) -> None:
        """Nothing more will be written."""
        ...

    def reset(self) -> None:
        """Give it up, both ways, now."""
        ...


@dataclass(frozen=True, repr=False)
class Request:
    method: str
    target: str
    """Path and query as they came."""
    headers: Headers
    body: bytes = b""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]

    def header(self, name: str) -> str:
        """The first header of that name, or an empty text."""
        return first_value(self.headers, name)

    def __repr__(self) -> str:
        # Headers carry credentials, a body whatever somebody said.
        return f"Request({self.method} {self.path!r}, {len(self.body)} bytes)"


async def _nothing() -> None:
    pass


@dataclass(frozen=True, repr=False)
class Response:
    status: int
    headers: Headers = ()
    """Without those of the framing, which are the server's business."""
    body: bytes | AsyncIterator[bytes] = b""
    """An iterator is sent as it comes; when it raises Cut, the answer breaks off there."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Awaited once, however the exchange ends."""

    def __repr__(self) -> str:
        return f"Response({self.status})"


class Cut(Exception):
    """A body cannot go on: the peer sees the connection end in the middle of it."""


Handler = Callable[[Request], Awaitable[Response]]


class Room:
    """How much of other people's bodies we are willing to hold at once."""

    def __init__(self, size_bytes: int = ROOM_BYTES) -> None:
        self._left = size_bytes

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


async def serve_http(stream: ByteStream, handler: Handler, room: Room | None = None) -> None:
    """Answer the requests on one connection, one after the other, until either side has enough.

    A peer that goes away cancels the handler. It returns when nothing more is to be said; whoever
    owns the stream ends it.
    """
    connection = _Connection(stream, handler, room or Room())
    try:
        while await connection.exchange():
            pass
    except _Gone:
        log.debug("the peer went away")


class _Gone(Exception):
    """The peer does not read or write any more."""


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Connection:
    def __init__(self, stream: ByteStream, handler: Handler, room: Room) -> None:
        self._stream = stream
        self._handler = handler
        self._room = room
        self._held = 0  # bytes of the room
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    async def exchange(self) -> bool:
        """One request and its answer; False when the connection is done for."""
        try:
            try:
                request = await self._request()
            except h11.RemoteProtocolError as exc:
                await self._refuse(exc.error_status_hint, "malformed request")
                return False
            except _Refused as exc:
                await self._refuse(exc.status, str(exc))
                return False
            return request is not None and await self._answer(request)
        finally:
            self._room.give_back(self._held)
            self._held = 0

    # In

    async def _request(self) -> Request | None:
        if not self._http.trailing_data[0]:
            with anyio.move_on_after(IDLE_SECONDS):
                self._http.receive_data(await self._read(READ_BYTES))
        if not any(self._http.trailing_data):
            return None
        with anyio.move_on_after(HEAD_SECONDS) as waiting:
            head = await self._head()
        if waiting.cancelled_caught:
            raise _Refused(408, f"the request's head took longer than {HEAD_SECONDS:.0f} s")
        if head is None:
            return None
        headers = as_text(head.headers)
        if head.http_version not in (b"1.0", b"1.1"):
            raise _Refused(505, "only HTTP/1.1 is spoken here")
        names = {name for name, _ in headers}
        if {"content-length", "transfer-encoding"} <= names:
            raise _Refused(400, "a body has one length")
        with anyio.move_on_after(BODY_SECONDS) as waiting:
            body = await self._body(headers)
        if waiting.cancelled_caught:
            raise _Refused(408, f"the request's body took longer than {BODY_SECONDS:.0f} s")
        return Request(
            method=head.method.decode("latin-1"),
            target=head.target.decode("latin-1"),
            headers=headers,
            body=body,
        )

    async def _head(self) -> h11.Request | None:
        size = len(self._http.trailing_data[0])
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if size >= HEAD_BYTES:
                raise _Refused(431, f"a request's head has at most {HEAD_BYTES} bytes")
            data = await self._read(min(READ_BYTES, HEAD_BYTES - size))
            size += len(data)
            self._http.receive_data(data)
        return event if isinstance(event, h11.Request) else None

    async def _body(self, headers: Headers) -> bytes:
        declared = next((int(value) for key, value in headers if key == "content-length"), 0)
        if declared > BODY_BYTES:
            raise _Refused(413, f"a request's body has at most {BODY_BYTES} bytes")
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body, pieces = bytearray(), 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._read(READ_BYTES))
            elif isinstance(event, h11.Data):
                pieces += 1
                if len(body) + len(event.data) > BODY_BYTES:
                    raise _Refused(413, f"a request's body has at most {BODY_BYTES} bytes")
                if not self._room.take(len(event.data)):
                    raise _Refused(413, "too much at once: let other requests end first")
                self._held += len(event.data)
                body += event.data
                if pieces > MAX_PIECES and len(body) < pieces * PIECE_AT_LEAST_BYTES:
                    raise _Refused(413, "a body in so many pieces has to have larger ones")
                if pieces % TURN_EVENTS == 0:
                    await anyio.lowlevel.checkpoint()
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                raise _Refused(400, "malformed request")

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return await self._stream.read(max_bytes)
        except (OSError, WireLost) as exc:
            raise _Gone from exc

    # Out

    async def _answer(self, request: Request) -> bool:
        going_on = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            going_on = await self._respond(request)
            tasks.cancel_scope.cancel()
        return going_on

    async def _watch(self, answering: anyio.CancelScope) -> None:
        """Notice a peer that hangs up while it waits. Keeps a little of what it sends early."""
        early = 0
        while early < HEAD_BYTES:
            try:
                data = await self._read(READ_BYTES)
            except _Gone:
                data = b""
            self._http.receive_data(data)
            early += len(data)
            if not data:
                answering.cancel()
                return

    async def _respond(self, request: Request) -> bool:
        try:
            response = await self._handler(request)
        except Exception as exc:  # noqa: BLE001 whatever it is, the peer gets an answer
            _log_failure("a request could not be answered", exc)
            response = _plain(502, "the orchestrator could not answer this; see its log")
        try:
            await self._send_response(request.method, response)
        except (_Gone, Cut):
            return False
        except Exception as exc:  # noqa: BLE001 nothing more can be said on this connection
            _log_failure("an answer broke off", exc)
            return False
        finally:
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                if isinstance(response.body, AsyncGenerator):
                    await response.body.aclose()
                await response.close()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _send_response(self, method: str, response: Response) -> None:
        headers = list(response.headers)
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        await self._send(h11.Response(status_code=response.status, headers=headers))
        if method != "HEAD":
            if isinstance(response.body, bytes):
                await self._send(h11.Data(data=response.body))
            else:
                async for chunk in response.body:
                    if chunk:
                        await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _refuse(self, status: int, why: str) -> None:
        response = _plain(status, why)
        headers = [*response.headers, ("connection", "close")]
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send_response("", Response(response.status, tuple(headers), response.body))

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            try:
                with anyio.fail_after(IDLE_SECONDS):
                    await self._stream.write(data)
            except (OSError, WireLost) as exc:  # a TimeoutError is one of them
                raise _Gone from exc


def _plain(status: int, text: str) -> Response:
    return Response(status, (("content-type", "text/plain; charset=utf-8"),), f"{text}\n".encode())


def _log_failure(what: str, exc: Exception) -> None:
    # Where, but not what it said: messages of HTTP libraries quote headers, credentials included.
    where = "".join(traceback.format_tb(exc.__traceback__))
    log.error("%s: %s\n%s", what, type(exc).__name__, where)
