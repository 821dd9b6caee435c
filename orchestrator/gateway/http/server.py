"""A byte stream -> HTTP/1.1 exchanges. The peer is a process in a container, and not trusted.

Nothing it sends is believed before it is whole: heads and bodies are bounded in size and time, and
what is not plain HTTP gets one refusal and the end of the connection.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import anyio
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import (
    IDLE_SECONDS,
    STREAM_READ_BYTES,
    TURN_EVENTS,
    ByteStream,
)
from orchestrator.gateway.http.headers import Headers, as_text, first_value
from orchestrator.gateway.http.request_head import (
    HEAD_BYTES,
    RequestRefused,
    answer_shortly,
    next_head,
)
from orchestrator.wire.streams import give_way

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 1024 * 1024
"""One request's body: what the model API itself takes."""

BODY_ROOM_BYTES = 64 * 1024 * 1024
"""All request bodies that are held at once by services that share a BodyRoom."""

BODY_SECONDS = 120.0
"""For a whole body to arrive; it comes from the same machine."""

RESPONSE_CLOSE_SECONDS = 10.0
"""For a response to let go of what its body was made from."""

MAX_PIECES = 1000
PIECE_AT_LEAST_BYTES = 64
"""A body of more than MAX_PIECES pieces with fewer bytes on average is refused: parsing it would
cost more than its bytes are worth."""


@dataclass(frozen=True, repr=False)
class HttpRequest:
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
        # Not the headers, which carry credentials, nor the body, which is the agent's own.
        return f"HttpRequest({self.method} {self.path!r}, {len(self.body)} bytes)"


async def _nothing() -> None:
    pass


@dataclass(frozen=True, repr=False)
class HttpResponse:
    status: int
    headers: Headers = ()
    """Without those of the framing, which are the server's business."""
    body: bytes | AsyncIterator[bytes] = b""
    """An iterator is sent as it comes; when it raises Cut, the answer breaks off there."""
    close: Callable[[], Awaitable[None]] = _nothing
    """Awaited once, however the exchange ends."""

    def __repr__(self) -> str:
        return f"HttpResponse({self.status})"


class Cut(Exception):
    """A body cannot go on: the peer sees the connection end in the middle of it."""


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class BodyRoom:
    """How many bytes of request bodies may be held at once."""

    def __init__(self, size_bytes: int = BODY_ROOM_BYTES) -> None:
        self._left = size_bytes

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        self._left += size


def plain_response(status: int, text: str) -> HttpResponse:
    """A line of text for people."""
    shape = (("content-type", "text/plain; charset=utf-8"),)
    return HttpResponse(status, shape, f"{text}\n".encode())


def log_failure(what: str, exc: Exception) -> None:
    """Log where something failed, but not its message: HTTP libraries quote headers in theirs,
    credentials included.
    """
    where = "".join(traceback.format_tb(exc.__traceback__))
    log.error("%s: %s\n%s", what, type(exc).__name__, where)


async def serve_http(stream: ByteStream, handler: Handler, room: BodyRoom | None = None) -> None:
    """Answer the requests on one connection, one after the other, until either side ends it.

    A peer that goes away cancels the handler. The caller ends the stream.
    """
    connection = _Connection(stream, handler, room or BodyRoom())
    try:
        while await connection.exchange():
            pass
    except _Gone:
        log.debug("the peer went away")


class _Gone(Exception):
    """The peer does not read or write any more."""


class _Connection:
    def __init__(self, stream: ByteStream, handler: Handler, room: BodyRoom) -> None:
        self._stream = stream
        self._handler = handler
        self._room = room
        self._held = 0  # bytes of the room
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    async def exchange(self) -> bool:
        """One request and its answer; False when the connection is done for."""
        try:
            request = await self._request()
            return request is not None and await self._answer(request)
        except RequestRefused as exc:
            await answer_shortly(self._stream, self._http, exc.status, str(exc))
            return False
        finally:
            self._room.give_back(self._held)
            self._held = 0

    # In

    async def _request(self) -> HttpRequest | None:
        try:
            head = await next_head(self._http, self._stream, IDLE_SECONDS)
        except (OSError, WireLost) as exc:
            raise _Gone from exc
        if head is None:
            return None
        headers = as_text(head.headers)
        with anyio.move_on_after(BODY_SECONDS) as waiting:
            body = await self._body(headers)
        if waiting.cancelled_caught:
            raise RequestRefused(408, f"the request's body took longer than {BODY_SECONDS:.0f} s")
        return HttpRequest(
            method=head.method.decode("latin-1"),
            target=head.target.decode("latin-1"),
            headers=headers,
            body=body,
        )

    async def _body(self, headers: Headers) -> bytes:
        declared = next((int(value) for key, value in headers if key == "content-length"), 0)
        if declared > MAX_BODY_BYTES:
            raise RequestRefused(413, f"a request's body has at most {MAX_BODY_BYTES} bytes")
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        body, pieces = bytearray(), 0
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as exc:
                raise RequestRefused(exc.error_status_hint, "malformed request") from None
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._read(STREAM_READ_BYTES))
            elif isinstance(event, h11.Data):
                pieces += 1
                if len(body) + len(event.data) > MAX_BODY_BYTES:
                    why = f"a request's body has at most {MAX_BODY_BYTES} bytes"
                    raise RequestRefused(413, why)
                if not self._room.take(len(event.data)):
                    raise RequestRefused(413, "too much at once: let other requests end first")
                self._held += len(event.data)
                body += event.data
                if pieces > MAX_PIECES and len(body) < pieces * PIECE_AT_LEAST_BYTES:
                    raise RequestRefused(413, "a body in so many pieces has to have larger ones")
                if pieces % TURN_EVENTS == 0:
                    await give_way()
            elif isinstance(event, h11.EndOfMessage):
                return bytes(body)
            else:
                raise RequestRefused(400, "malformed request")

    async def _read(self, max_bytes: int) -> bytes:
        try:
            return await self._stream.read(max_bytes)
        except (OSError, WireLost) as exc:
            raise _Gone from exc

    # Out

    async def _answer(self, request: HttpRequest) -> bool:
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
                data = await self._read(STREAM_READ_BYTES)
            except _Gone:
                data = b""
            self._http.receive_data(data)
            early += len(data)
            if not data:
                answering.cancel()
                return

    async def _respond(self, request: HttpRequest) -> bool:
        try:
            response = await self._handler(request)
        except Exception as exc:  # noqa: BLE001 whatever it is, the peer gets an answer
            log_failure("a request could not be answered", exc)
            response = plain_response(502, "the orchestrator could not answer this; see its log")
        try:
            await self._send_response(request.method, response)
        except (_Gone, Cut):
            return False
        except Exception as exc:  # noqa: BLE001 nothing more can be said on this connection
            log_failure("an answer broke off", exc)
            return False
        finally:
            with anyio.move_on_after(RESPONSE_CLOSE_SECONDS, shield=True):
                if isinstance(response.body, AsyncGenerator):
                    await response.body.aclose()
                await response.close()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _send_response(self, method: str, response: HttpResponse) -> None:
        headers = list(response.headers)
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        head = h11.Response(status_code=response.status, headers=headers)
        if isinstance(response.body, bytes):
            body = () if method == "HEAD" else (h11.Data(data=response.body),)
            await self._send(head, *body, h11.EndOfMessage())  # at once: each write costs the wire
            return
        await self._send(head)
        if method != "HEAD":
            async for chunk in response.body:
                if chunk:
                    await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        data = b"".join(self._http.send(event) or b"" for event in events)
        if data:
            try:
                with anyio.fail_after(IDLE_SECONDS):
                    await self._stream.write(data)
            except (OSError, WireLost) as exc:  # a TimeoutError is one of them
                raise _Gone from exc
