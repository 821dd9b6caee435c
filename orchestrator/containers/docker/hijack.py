"""Engine connections that do not end, on asyncio: attach (the wire) and events.

docker-py would take a thread for each. The requests are two, so they are written out here.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.failure import engine_error
from orchestrator.errors import EngineUnreachable, OrchestratorError

MAX_HEAD = 64 * 1024
"""An engine's response head; a longer one is not an engine's."""

ANSWER_SECONDS = 30.0
"""From asking to the response head."""

WRITE_HIGH_WATER = 1024 * 1024
"""Unsent bytes above which streams wait."""


class Connection(asyncio.Protocol):
    """One HTTP exchange whose body goes to `on_body` until either side hangs up."""

    def __init__(self, on_body: Callable[[bytes], None]) -> None:
        self.on_body = on_body
        self.on_lost: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None
        self.on_resume: Callable[[], None] = lambda: None
        self._transport: asyncio.Transport | None = None
        self._head: bytearray | None = bytearray()
        self._refusal: tuple[int, bytearray] | None = None
        self._refusal_bytes = MAX_HEAD
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, request: str) -> None:
        """Send the request; return when the engine has said yes."""
        self.write(request.encode())
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._answered
        except TimeoutError as exc:
            raise EngineUnreachable(
                f"the engine did not answer within {ANSWER_SECONDS:.0f} s; is it overloaded?"
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
            self.on_body(data)
        elif self._refusal is not None:
            self._read_refusal(self._refusal[1], data)
        else:
            self._head += data
            self._read_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(self._why_not(exc))
            self._answered.exception()  # nobody may be waiting any more
        self.on_lost()

    def pause_writing(self) -> None:
        self.on_pause()

    def resume_writing(self) -> None:
        self.on_resume()

    # Inside

    def _read_head(self) -> None:
        assert self._head is not None  # noqa: S101 for the type checker
        head, separator, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not separator:
            if len(self._head) > MAX_HEAD:
                self.close()
            return
        words = head.split(b" ", 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status in (101, 200):
            self._head = None
            if not self._answered.done():
                self._answered.set_result(None)
            if rest:
                self.on_body(rest)
        else:  # the reason follows in the body
            self._refusal = (status, bytearray())
            length = re.search(rb"(?i)\r\ncontent-length: *([0-9]{1,9})\r\n", head + b"\r\n")
            self._refusal_bytes = min(int(length[1]), MAX_HEAD) if length else MAX_HEAD
            self._read_refusal(self._refusal[1], rest)

    def _read_refusal(self, body: bytearray, data: bytes) -> None:
        body += data[:MAX_HEAD]
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


async def attach(engine: Engine, container: str, connection: Connection) -> None:
    """Become the one client of a container's stdin, stdout and stderr. Before its start."""
    await _connect(engine, connection)
    path = f"/containers/{quote(container)}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    await connection.ask(
        f"POST {_prefix(engine)}{path} HTTP/1.1\r\nHost: engine\r\nContent-Length: 0\r\n"
        "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    )


async def follow_events(
    engine: Engine, filters: dict[str, list[str]], since: str, connection: Connection
) -> None:
    """Have the engine's events come in as lines of JSON, from `since` on."""
    await _connect(engine, connection)
    query = f"filters={quote(json.dumps(filters))}" + (f"&since={since}" if since else "")
    # HTTP/1.0: the body comes as it is, without chunks to take apart.
    await connection.ask(f"GET {_prefix(engine)}/events?{query} HTTP/1.0\r\nHost: engine\r\n\r\n")


class Demultiplexer:
    """The engine's framing of stdout and stderr, taken off. Its headers cut ours anywhere."""

    def __init__(
        self, stdout: Callable[[memoryview], None], stderr: Callable[[bytes], None]
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
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
                self._stderr(bytes(part))
            else:
                self._stdout(part)
            if not self._left:
                self._header.clear()


def _prefix(engine: Engine) -> str:
    return f"/v{engine.api.api_version}"


async def _connect(engine: Engine, connection: Connection) -> None:
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
                f"{engine.address}: only unix:// and tcp:// engines can hold a wire; "
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
