"""The head of a request from a container, read before its body; and short answers to it."""

from __future__ import annotations

import re
from contextlib import suppress

import anyio
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import STREAM_READ_BYTES, ByteStream
from orchestrator.gateway.http.headers import Headers, as_bytes, as_text, first_value

HEAD_BYTES = 16 * 1024
"""The request line and all headers."""

ANSWER_HEAD_BYTES = 64 * 1024
"""The same of an answer, which comes from outside."""

MAX_HEADERS = 100
"""Lines of a head are counted before they are parsed: each costs the one event loop, which all runs
share, some microseconds."""

HEAD_END = re.compile(rb"\n\r?\n")

HEAD_SECONDS = 10.0
"""From the first byte of a head to its last."""

FIRST_BYTE_SECONDS = 60.0
"""For a connection to a proxy to be used at all."""

SHORT_ANSWER_SECONDS = 10.0
"""For a client to take a short answer of ours."""


class RequestRefused(Exception):
    """A request that is not plain HTTP/1.1, or too large, or too slow. The text is for the peer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Head:
    """The head of a request, whose body is still to come and whose answer is still to be given."""

    def __init__(self, client: ByteStream, http: h11.Connection, request: h11.Request) -> None:
        self.client = client
        self.http = http
        self.method = request.method.decode("latin-1")
        self.target = request.target.decode("latin-1")
        """As it came: a path, a whole URL, or host:port."""
        self.headers: Headers = as_text(request.headers)
        self.answered = False
        """An answer has begun; there cannot be another."""

    def __repr__(self) -> str:
        # Not the headers, which carry credentials, nor the target, which the agent may fill.
        return f"Head({self.method})"

    def header(self, name: str) -> str:
        """The first header of that name, or an empty text."""
        return first_value(self.headers, name)

    @property
    def has_body(self) -> bool:
        return bool(self.header("transfer-encoding") or self.header("content-length").strip("0"))

    @property
    def early(self) -> bytes:
        """What came after the head: of CONNECT, the first bytes for the tunnel."""
        return bytes(self.http.trailing_data[0])

    def begin_answer(self) -> None:
        self.answered = True

    async def answer(
        self, status: int, text: str, *, reason: str = "", headers: Headers = ()
    ) -> None:
        """Give a short answer of ours, the last one on this connection."""
        if not self.answered:
            self.begin_answer()
            await answer_shortly(self.client, self.http, status, text, reason, headers)


async def read_head(client: ByteStream) -> Head | None:
    """The head of a connection's one request; None when none came, or the client was refused."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    try:
        request = await next_head(http, client, FIRST_BYTE_SECONDS)
    except RequestRefused as exc:
        await answer_shortly(client, http, exc.status, str(exc))
        return None
    except (OSError, WireLost):
        return None
    return None if request is None else Head(client, http, request)


async def next_head(
    http: h11.Connection, stream: ByteStream, first_byte_seconds: float
) -> h11.Request | None:
    """The next head on a connection; None when the peer ends it, or stays silent for too long.

    Raises RequestRefused, or what the stream raises. A request with two lengths for one body is
    refused: another reader could take the other length, and see a second request in the body.
    """
    event: object = None
    try:
        with anyio.move_on_after(first_byte_seconds) as waiting:
            if not http.trailing_data[0]:
                http.receive_data(await stream.read(STREAM_READ_BYTES))
            waiting.deadline = anyio.current_time() + HEAD_SECONDS
            event = await _first_event(http, stream)
    except h11.RemoteProtocolError as exc:
        raise RequestRefused(exc.error_status_hint, "malformed request") from None
    if waiting.cancelled_caught and http.trailing_data[0]:
        raise RequestRefused(408, f"the request's head took longer than {HEAD_SECONDS:.0f} s")
    if not isinstance(event, h11.Request):
        return None
    if event.http_version not in (b"1.0", b"1.1"):
        raise RequestRefused(505, "only HTTP/1.1 is spoken here")
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in event.headers}:
        raise RequestRefused(400, "a body has one length")
    return event


async def _first_event(http: h11.Connection, stream: ByteStream) -> object:
    """What the connection begins with, of which no more is parsed than a head may have."""
    counted = _HeadLines()
    counted.add(http.trailing_data[0])
    while (event := http.next_event()) is h11.NEED_DATA:
        data = await stream.read(STREAM_READ_BYTES)
        counted.add(data)
        http.receive_data(data)
    return event


class _HeadLines:
    """The lines and bytes of a head that comes in pieces, up to the empty line at its end."""

    def __init__(self) -> None:
        self._lines = self._bytes = 0
        self._tail = b""
        """The last bytes: the empty line may be cut between two pieces."""

    def add(self, data: bytes) -> None:
        """Count a piece; RequestRefused if the head is larger than a head may be."""
        known, joined = len(self._tail), self._tail + data
        end = HEAD_END.search(joined)
        head = joined[: end.end()] if end else joined
        self._lines += head.count(b"\n", known)
        self._bytes += len(head) - known
        self._tail = joined[-2:]
        if self._bytes > HEAD_BYTES:
            raise RequestRefused(431, f"a request's head has at most {HEAD_BYTES} bytes")
        if self._lines > MAX_HEADERS + 2:  # with the request line and the empty one
            raise RequestRefused(431, f"a request has at most {MAX_HEADERS} headers")


async def answer_shortly(
    client: ByteStream,
    http: h11.Connection,
    status: int,
    text: str,
    reason: str = "",
    headers: Headers = (),
) -> None:
    """Send a line of text and announce the end of the connection, unless an answer has begun."""
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    body = f"{text}\n".encode()
    shown = (
        ("content-type", "text/plain; charset=utf-8"),
        *headers,
        ("content-length", str(len(body))),
        ("connection", "close"),
    )
    phrase = reason.encode("ascii", "replace")
    data = http.send(h11.Response(status_code=status, headers=as_bytes(shown), reason=phrase))
    with suppress(h11.LocalProtocolError):  # the answer to HEAD has no body
        data += http.send(h11.Data(data=body)) or b""
    with suppress(OSError, WireLost), anyio.move_on_after(SHORT_ANSWER_SECONDS):
        await client.write(data)
