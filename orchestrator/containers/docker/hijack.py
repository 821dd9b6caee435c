"""Engine connections that do not end, on asyncio: attach (the wire) and events.

docker-py would take a thread for each. The requests are two, so they are written out here.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from urllib.parse import quote, urlsplit

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.failure import engine_error
from orchestrator.domain.container import User
from orchestrator.errors import EngineUnreachable, OrchestratorError
from orchestrator.wire.host import Link, Wire

ENGINE_HEAD_BYTES = 64 * 1024
"""An engine's response head; a longer one is not an engine's."""

ENGINE_ANSWER_SECONDS = 30.0
"""From asking to the response head."""

WRITE_HIGH_WATER = 1024 * 1024
"""Unsent bytes above which streams wait."""


class Receiver(Protocol):
    """What hears a connection. The event loop calls it, so nothing in it may block."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body."""
        ...

    def disconnected(self) -> None:
        """Either side has hung up; nothing comes after this."""
        ...

    def hold(self) -> None:
        """More than WRITE_HIGH_WATER is unsent: write no more until `release`."""
        ...

    def release(self) -> None: ...


R = TypeVar("R", bound=Receiver)


class Connection(asyncio.Protocol, Generic[R]):
    """One HTTP exchange whose body goes to its receiver until either side hangs up.

    The receiver is made by `receiver_of`, from this connection: a wire writes to the connection
    that it hears.
    """

    def __init__(self, receiver_of: Callable[[Link], R]) -> None:
        self._transport: asyncio.Transport | None = None
        self._head: bytearray | None = bytearray()
        self._refusal: tuple[int, bytearray] | None = None
        self._refusal_bytes = ENGINE_HEAD_BYTES
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.receiver = receiver_of(self)

    async def ask(self, request: str) -> None:
        """Send the request; return when the engine has said yes."""
        self.write(request.encode())
        try:
            async with asyncio.timeout(ENGINE_ANSWER_SECONDS):
                await self._answered
        except TimeoutError as exc:
            raise EngineUnreachable(
                f"the engine did not answer within {ENGINE_ANSWER_SECONDS:.0f} s; is it overloaded?"
            ) from exc

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        if self._transport is not None:
            # Not close(), which first tries to send what is left: to cut the wire is to cut it.
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 for the type checker
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self.receiver.feed(data)
        elif self._refusal is not None:
            self._read_refusal(self._refusal[1], data)
        else:
            self._head += data
            self._read_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(self._why_not(exc))
            self._answered.exception()  # read: `ask` may have given up
        self.receiver.disconnected()

    def pause_writing(self) -> None:
        self.receiver.hold()

    def resume_writing(self) -> None:
        self.receiver.release()

    # Inside

    def _read_head(self) -> None:
        assert self._head is not None  # noqa: S101 for the type checker
        head, separator, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not separator:
            if len(self._head) > ENGINE_HEAD_BYTES:
                self.close()
            return
        words = head.split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status in (101, 200):
            self._head = None
            if not self._answered.done():
                self._answered.set_result(None)
            if rest:
                self.receiver.feed(rest)
        else:  # the reason follows in the body
            self._refusal = (status, bytearray())
            length = re.search(rb"(?i)\r\ncontent-length: *([0-9]{1,9})\r\n", head + b"\r\n")
            self._refusal_bytes = (
                min(int(length[1]), ENGINE_HEAD_BYTES) if length else ENGINE_HEAD_BYTES
            )
            self._read_refusal(self._refusal[1], rest)

    def _read_refusal(self, body: bytearray, data: bytes) -> None:
        body += data[:ENGINE_HEAD_BYTES]
        # Docker hangs up after it; Podman waits for another request.
        if len(body) >= self._refusal_bytes:
            self.close()

    def _why_not(self, exc: Exception | None) -> OrchestratorError:
        if self._refusal is None:
            return EngineUnreachable(f"the engine hung up before it answered ({exc or 'closed'})")
        status, body = self._refusal
        start = body.find(b"{")
        try:
            message = json.loads(bytes(body[start : body.rfind(b"}") + 1]))["message"]
        except (ValueError, KeyError, TypeError):
            message = body.decode(errors="replace")
        return engine_error(status, str(message))


async def attach(engine: Engine, container: str, connection: Connection[R]) -> None:
    """Become the one client of a container's stdin, stdout and stderr. Before its start."""
    await _connect(engine, connection)
    path = f"/containers/{quote(container)}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    await connection.ask(
        f"POST {_prefix(engine)}{path} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    )


async def follow_events(
    engine: Engine, filters: dict[str, list[str]], since: str, connection: Connection[R]
) -> None:
    """Have the engine's events come in as lines of JSON, from `since` on."""
    await _connect(engine, connection)
    query = f"filters={quote(json.dumps(filters))}" + (f"&since={since}" if since else "")
    # HTTP/1.0: the body comes as it is, without chunks to take apart.
    await connection.ask(f"GET {_prefix(engine)}/events?{query} HTTP/1.0\r\nHost: engine\r\n\r\n")


class AttachedWire:
    """A wire on an attached container: takes off the engine's framing of stdout and stderr.

    The engine's headers may cut our frames anywhere, and come in pieces themselves.
    """

    def __init__(self, link: Link, user: User, name: str) -> None:
        self.wire = Wire(link, user, name)
        self.disconnected = self.wire.disconnected
        self.hold = self.wire.hold
        self.release = self.wire.release
        self._header = bytearray()
        self._left = 0

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not self._left:
                need = 8 - len(self._header)
                self._header += view[:need]
                view = view[need:]
                if len(self._header) == 8:
                    self._left = int.from_bytes(self._header[4:], "big")
                    if not self._left:
                        self._header.clear()
                continue
            part, view = view[: self._left], view[self._left :]
            self._left -= len(part)
            if self._header[0] == 2:
                self.wire.feed_stderr(bytes(part))
            else:
                self.wire.feed(part)
            if not self._left:
                self._header.clear()


def _prefix(engine: Engine) -> str:
    return f"/v{engine.api.api_version}"


async def _connect(engine: Engine, connection: Connection[R]) -> None:
    loop = asyncio.get_running_loop()
    parts = urlsplit(engine.address)
    try:
        if parts.scheme == "unix":
            path = parts.netloc + parts.path
            await loop.create_unix_connection(lambda: connection, path)
        elif parts.scheme in ("tcp", "http", "https"):
            tls = _tls_context(engine) if engine.tls_dir or parts.scheme == "https" else None
            port = parts.port or (2376 if tls else 2375)
            host = parts.hostname or "localhost"
            await loop.create_connection(lambda: connection, host, port, ssl=tls)
        else:
            raise EngineUnreachable(
                f"{engine.address}: only unix:// and tcp:// engines can be attached to; "
                "forward the remote socket, for instance with `ssh -L`"
            )
    except OSError as exc:
        raise engine.unreachable(exc) from exc


def _tls_context(engine: Engine) -> ssl.SSLContext:
    if engine.tls_dir is None:
        return ssl.create_default_context()
    context = ssl.create_default_context(cafile=str(engine.tls_dir / "ca.pem"))
    context.load_cert_chain(engine.tls_dir / "cert.pem", engine.tls_dir / "key.pem")
    return context
