"""One HTTP/1.1 request through to somebody else, and the answer back, never held whole.

Both sides are strangers. Each is read by a parser of its own and written anew, so that nothing but
what was understood gets through: framing, names and values are ours, and there is one request for
each connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import anyio
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.dial import Unreachable
from orchestrator.gateway.http_server import HEAD_BYTES, READ_BYTES, ByteStream, Headers

HEAD_SECONDS = 10.0
"""From the first byte of a request's head to its last."""

FIRST_BYTE_SECONDS = 60.0
"""For a connection to be used at all."""

IDLE_SECONDS = 300.0
"""Without a byte in either direction."""

MOVED_SECONDS = 1.0
"""How exactly that is measured: moving a deadline with every piece costs more than the piece."""

ANSWER_SECONDS = 10.0
"""For a client to take a short answer of ours."""

EARLY_BYTES = 64 * 1024
"""What a client may send after its request. It is thrown away, and more is not read."""

PIECE_BYTES = 256 * 1024
"""Of a body, at once: what a socket is read by. Cutting that up costs more than passing it on."""

MAX_INFORMATIONAL = 16
"""Answers before the answer, such as 103."""

CLIENT_GONE = 499
"""The status of a request whose client did not wait for the answer."""

HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
        *("host", "content-length", "http2-settings"),
    )
)
"""Said to us and not to the next; what of it is needed is set anew."""

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


class Head:
    """The head of a request, whose body is still to come and whose answer is still to be given."""

    def __init__(self, client: ByteStream, http: h11.Connection, request: h11.Request) -> None:
        self.client = client
        self.http = http
        self.method = request.method.decode("latin-1")
        self.target = request.target.decode("latin-1")
        """As it came: a path, a whole URL, or host:port."""
        self.headers: Headers = _texts(request.headers)
        """Names in lower case."""
        self.answered = False
        """An answer has begun; there cannot be another."""

    def __repr__(self) -> str:
        # Headers carry credentials, a target whatever somebody put there.
        return f"Head({self.method})"

    def header(self, name: str) -> str:
        """The first header of that name, or an empty text."""
        return next((value for key, value in self.headers if key == name), "")

    @property
    def has_body(self) -> bool:
        return bool(self.header("transfer-encoding") or self.header("content-length").strip("0"))

    @property
    def early(self) -> bytes:
        """What came after the head: of CONNECT, the first bytes for the tunnel."""
        return bytes(self.http.trailing_data[0])

    async def answer(
        self, status: int, text: str, *, reason: str = "", headers: Headers = ()
    ) -> None:
        """A short answer of ours instead of somebody's, and the last one here."""
        if not self.answered:
            self.answered = True
            await _send_short(self.client, _short(self.http, status, text, reason, headers))


async def read_head(client: ByteStream) -> Head | None:
    """The head of the next request; None when there is none.

    Whoever sends something else has been told so. Of two lengths for one body neither is believed.
    """
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    event: object = None
    try:
        with anyio.move_on_after(FIRST_BYTE_SECONDS) as waiting:
            http.receive_data(await client.read(READ_BYTES))
            waiting.deadline = anyio.current_time() + HEAD_SECONDS
            event = await _head(http, client)
        if waiting.cancelled_caught and http.trailing_data[0]:
            await _refuse(client, http, 408, f"a head takes at most {HEAD_SECONDS:.0f} s")
    except h11.RemoteProtocolError as exc:
        await _refuse(client, http, exc.error_status_hint, "malformed request")
    except (OSError, WireLost):
        return None
    if not isinstance(event, h11.Request):
        return None
    names = [name for name, _ in event.headers]
    if event.http_version not in (b"1.0", b"1.1"):
        await _refuse(client, http, 505, "only HTTP/1.1 is spoken here")
    elif b"content-length" in names and b"transfer-encoding" in names:
        await _refuse(client, http, 400, "a body has one length")
    elif names.count(b"host") > 1:
        await _refuse(client, http, 400, "a request is for one host")
    else:
        return Head(client, http, event)
    return None


def passed_on(headers: Headers, host: str, dropped: frozenset[str] = frozenset()) -> Headers:
    """Headers for the next one: end to end ones only, its own name, nothing about proxies."""
    return (("host", host), *_end_to_end(headers, dropped), ("connection", "close"))


def unchanged(status: int, headers: Headers) -> tuple[Headers, Filter | None]:  # noqa: ARG001
    return headers, None


async def forward(
    head: Head, upstream: ByteStream, request: Outgoing, *, rewrite: Rewrite = unchanged
) -> Forwarded:
    """Send a request on, body and all, and pass the answer back.

    A client that goes away ends it. Raises Unreachable when no answer came, and the client has not
    been told yet; an answer that breaks off in the middle is cut for the client as well. The
    caller closes the upstream.
    """
    return await _Exchange(head, upstream, rewrite).run(request)


async def splice(client: ByteStream, upstream: ByteStream, early: bytes = b"") -> None:
    """Bytes both ways until both sides have ended, one has gone, or nothing moves any more."""

    async def copy(source: ByteStream, target: ByteStream, first: bytes = b"") -> None:
        try:
            if first:
                await target.write(first)
            while data := await source.read(PIECE_BYTES):
                both.deadline = anyio.current_time() + IDLE_SECONDS
                await target.write(data)
            target.end()
        except (OSError, WireLost):
            broken.append(source)
            both.cancel()

    broken: list[ByteStream] = []
    async with anyio.create_task_group() as tasks:
        both = tasks.cancel_scope
        both.deadline = anyio.current_time() + IDLE_SECONDS
        tasks.start_soon(copy, client, upstream, early)
        await copy(upstream, client)
    if broken or both.cancelled_caught:
        client.reset()
        upstream.reset()


class _ClientGone(Exception):
    """Whoever asked does not wait for the answer."""


class _Exchange:
    def __init__(self, head: Head, upstream: ByteStream, rewrite: Rewrite) -> None:
        self._head = head
        self._client = head.client
        self._near = head.http
        self._upstream = upstream
        self._far = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
        self._rewrite = rewrite
        self._status = 0
        self._gone = False
        self._pending = b""  # for the client
        self._scope: anyio.CancelScope | None = None
        self._last_moved = -MOVED_SECONDS

    async def run(self, request: Outgoing) -> Forwarded:
        first = self._first(request)
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
            idle = f"it said nothing for {IDLE_SECONDS:.0f} s"
            raise Unreachable(f"no answer from {_host(request)} ({problem or idle})")
        self._client.reset()
        return Forwarded(self._status, whole=False)

    def _moved(self) -> None:
        now = anyio.current_time()
        if self._scope is not None and now - self._last_moved > MOVED_SECONDS:
            self._last_moved = now
            self._scope.deadline = now + IDLE_SECONDS

    # Out

    def _first(self, request: Outgoing) -> bytes:
        """The request's head, with the framing that the client chose."""
        framing = [pair for pair in self._head.headers if pair[0] in FRAMING]
        headers = _bytes((*request.headers, *framing))
        try:
            return self._far.send(
                h11.Request(method=request.method, target=request.target, headers=headers)
            )
        except h11.LocalProtocolError:
            raise Unreachable("this request cannot be written as HTTP") from None

    async def _go_on(self) -> None:
        """Ours to say: who could have refused the request by its head has not."""
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
            while not isinstance(event := await self._from_client(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise _ClientGone
                self._moved()
                await self._upstream.write(self._far.send(event) or b"")
            await self._upstream.write(pending + (self._far.send(h11.EndOfMessage()) or b""))
        except (OSError, WireLost):
            return  # it may have answered all the same, and not want the rest

    async def _from_client(self) -> object:
        try:
            return await _next(self._near, self._client)
        except (OSError, WireLost):
            raise _ClientGone from None

    async def _watch(self) -> None:
        early = 0
        while early < EARLY_BYTES:
            try:
                data = await self._client.read(READ_BYTES)
            except (OSError, WireLost):
                data = b""
            early += len(data)
            if not data:
                raise _ClientGone

    # In

    async def _pass_answer(self) -> None:
        event: object = None
        for _ in range(MAX_INFORMATIONAL):
            event = await _next(self._far, self._upstream)
            if not isinstance(event, h11.InformationalResponse):
                break
        if not isinstance(event, h11.Response):
            raise h11.RemoteProtocolError("no answer")
        self._moved()
        came = _end_to_end(_texts(event.headers))
        headers, through = self._rewrite(event.status_code, came)
        same_size = through is None or getattr(through, "keeps_length", False)
        sizes = _sizes(event) if same_size else []
        answer = h11.Response(
            status_code=event.status_code,
            headers=[*_bytes(_end_to_end(headers)), *sizes, (b"connection", b"close")],
            reason=event.reason if through is None else b"",  # no filter has seen that one
        )
        self._status = event.status_code
        self._head.answered = True
        self._pending += self._near.send(answer)
        while not isinstance(event := await self._more(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("it broke off")
            self._moved()
            self._keep(through.feed(bytes(event.data)) if through else event.data)
        self._keep(through.finish() if through else b"")
        self._pending += self._near.send(h11.EndOfMessage()) or b""
        await self._tell(self._pending)

    def _keep(self, data: bytes) -> None:
        if data:
            self._pending += self._near.send(h11.Data(data=data)) or b""

    async def _more(self) -> object:
        """What comes next; before it is waited for, the client gets what came before."""
        while (event := self._far.next_event()) is h11.NEED_DATA:
            pending, self._pending = self._pending, b""
            await self._tell(pending)
            self._far.receive_data(await self._upstream.read(PIECE_BYTES))
        return event

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


async def _head(http: h11.Connection, client: ByteStream) -> object:
    """The same for a head, of which no more is read than it may have."""
    size = len(http.trailing_data[0])
    while (event := http.next_event()) is h11.NEED_DATA:
        if size >= HEAD_BYTES:
            raise h11.RemoteProtocolError("a head that is too long", error_status_hint=431)
        data = await client.read(min(READ_BYTES, HEAD_BYTES - size))
        size += len(data)
        http.receive_data(data)
    return event


def _end_to_end(headers: Headers, dropped: frozenset[str] = frozenset()) -> Headers:
    named = [value for key, value in headers if key == "connection"]
    hops = {name.strip().lower() for value in named for name in value.split(",")}
    hops |= HOP_BY_HOP | dropped
    return tuple(
        (key, value) for key, value in headers if key not in hops and not key.startswith("proxy-")
    )


async def _refuse(client: ByteStream, http: h11.Connection, status: int, why: str) -> None:
    if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await _send_short(client, _short(http, status, why))


def _short(
    http: h11.Connection, status: int, text: str, reason: str = "", headers: Headers = ()
) -> bytes:
    body = f"{text}\n".encode()
    shown = (
        ("content-type", "text/plain; charset=utf-8"),
        *headers,
        ("content-length", str(len(body))),
        ("connection", "close"),
    )
    phrase = reason.encode("ascii", "replace")
    head = http.send(h11.Response(status_code=status, headers=_bytes(shown), reason=phrase))
    with suppress(h11.LocalProtocolError):  # nobody asked for a body: HEAD
        return head + (http.send(h11.Data(data=body)) or b"")
    return head


async def _send_short(client: ByteStream, data: bytes) -> None:
    with suppress(OSError, WireLost), anyio.move_on_after(ANSWER_SECONDS):
        await client.write(data)


def _sizes(answer: h11.Response) -> list[tuple[bytes, bytes]]:
    """Its content-length, where that is what its body is measured by."""
    if any(name == b"transfer-encoding" for name, _ in answer.headers):
        return []
    return [pair for pair in answer.headers if pair[0] == b"content-length"]


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def _bytes(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _host(request: Outgoing) -> str:
    return next((value for key, value in request.headers if key == "host"), "the host")
