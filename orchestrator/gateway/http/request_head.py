"""The head of a stranger's request, read before its body; and short answers of ours to it."""

from __future__ import annotations

from contextlib import suppress

import anyio
import h11

from orchestrator.errors import WireLost
from orchestrator.gateway.http.headers import Headers, as_bytes, as_text, first_value
from orchestrator.gateway.http.server import HEAD_BYTES, READ_BYTES, ByteStream

HEAD_SECONDS = 10.0
"""From the first byte of a request's head to its last."""

FIRST_BYTE_SECONDS = 60.0
"""For a connection to be used at all."""

ANSWER_SECONDS = 10.0
"""For a client to take a short answer of ours."""


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
        # Headers carry credentials, a target whatever somebody put there.
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

    async def answer(
        self, status: int, text: str, *, reason: str = "", headers: Headers = ()
    ) -> None:
        """A short answer of ours instead of somebody's, and the last one here."""
        if not self.answered:
            self.answered = True
            await _send(self.client, _short_answer(self.http, status, text, reason, headers))


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
            event = await _first_event(http, client)
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


async def _first_event(http: h11.Connection, client: ByteStream) -> object:
    """The head, if it is one, of which no more is read than it may have."""
    size = len(http.trailing_data[0])
    while (event := http.next_event()) is h11.NEED_DATA:
        if size >= HEAD_BYTES:
            raise h11.RemoteProtocolError("a head that is too long", error_status_hint=431)
        data = await client.read(min(READ_BYTES, HEAD_BYTES - size))
        size += len(data)
        http.receive_data(data)
    return event


async def _refuse(client: ByteStream, http: h11.Connection, status: int, why: str) -> None:
    if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
        await _send(client, _short_answer(http, status, why))


def _short_answer(
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
    head = http.send(h11.Response(status_code=status, headers=as_bytes(shown), reason=phrase))
    with suppress(h11.LocalProtocolError):  # nobody asked for a body: HEAD
        return head + (http.send(h11.Data(data=body)) or b"")
    return head


async def _send(client: ByteStream, data: bytes) -> None:
    with suppress(OSError, WireLost), anyio.move_on_after(ANSWER_SECONDS):
        await client.write(data)
