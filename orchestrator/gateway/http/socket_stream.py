"""A TCP connection as a ByteStream, dialled or accepted, plain or TLS.

An asyncio.Protocol and not asyncio's streams, for three reasons. A StreamReader forgets what it
holds when the peer resets: the answer of a server that refuses an upload and closes at once would
be lost. It keeps what it holds through `start_tls`, so that bytes from before the handshake would
pass for the verified host's. And it copies every byte twice more, which costs 9 % of the processor
time of a download through egress.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import anyio

from orchestrator.gateway.http.byte_stream import STREAM_READ_BYTES

TLS_SECONDS = 10.0
"""For the handshake."""

SOCKET_LINGER_SECONDS = 2.0
"""When we close, for the peer to take what was written."""

HOLD_BYTES = 512 * 1024
"""What may wait to be read before the peer is held back."""


class Unreachable(Exception):
    """A host could not be connected to, or does not answer. The text is for people and holds no
    secret.
    """


class SocketStream(asyncio.Protocol):
    """A protocol factory for `create_connection`, or with a callback for `create_server`."""

    _transport: asyncio.Transport
    """Set by the event loop before it hands the stream to anyone."""

    def __init__(self, on_connected: Callable[[SocketStream], None] | None = None) -> None:
        self._on_connected = on_connected
        self._tls = False
        self._chunks: deque[bytes] = deque()
        self._waiting = 0  # bytes in _chunks
        self._paused = False
        self._read_ended = False
        self._error: Exception | None = None
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    @property
    def address(self) -> str:
        """What it is connected to."""
        return str(self._transport.get_extra_info("peername")[0])

    async def read(self, max_bytes: int = STREAM_READ_BYTES) -> bytes:
        while not self._chunks:
            if self._error is not None:
                raise ConnectionResetError("the connection broke") from self._error
            if self._read_ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._waiting -= len(data)
        if self._paused and self._waiting <= HOLD_BYTES // 2:
            self._paused = False
            if not self._lost.is_set():
                self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        if self._transport.is_closing():
            raise BrokenPipeError("the connection is closed")
        self._transport.write(data)
        await self._writable.wait()
        if self._error is not None:
            raise BrokenPipeError("the connection broke") from self._error

    def end(self) -> None:
        """Nothing more will be written. TLS cannot say so: there, the framing has to."""
        if not self._transport.is_closing() and self._transport.can_write_eof():
            with suppress(OSError):
                self._transport.write_eof()

    def reset(self) -> None:
        if not self._lost.is_set():  # Python 3.11.2's TLS transport fails when it is lost already
            self._transport.abort()

    async def aclose(self) -> None:
        """Let the peer have what was written, and go."""
        self._transport.close()
        with anyio.move_on_after(SOCKET_LINGER_SECONDS, shield=True):
            await self._lost.wait()
        self.reset()

    async def secure(self, host: str, context: ssl.SSLContext) -> None:
        """Speak TLS from here on, with a peer that proves to be that host."""
        if self._chunks:
            raise ConnectionResetError("the peer spoke before the TLS handshake")
        self._tls = True
        secured = await asyncio.get_running_loop().start_tls(
            self._transport,
            self,
            context,
            server_hostname=host,
            ssl_handshake_timeout=TLS_SECONDS,
            ssl_shutdown_timeout=SOCKET_LINGER_SECONDS,
        )
        assert secured is not None  # noqa: S101 typeshed: only a server's may be None
        self._transport = secured

    def unread(self, data: bytes) -> None:
        """Put back what was read too much."""
        if data:
            self._chunks.appendleft(data)
            self._waiting += len(data)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 what a TCP connection has
        self._transport = transport
        if self._on_connected is not None:
            self._on_connected(self)

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._waiting += len(data)
        self._readable.set()
        if self._waiting > HOLD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._read_ended = True
        self._readable.set()
        return not self._tls  # a plain connection can still be written to

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        self._read_ended = True
        for event in (self._lost, self._readable, self._writable):
            event.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
