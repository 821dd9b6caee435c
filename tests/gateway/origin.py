"""Servers on loopback that say just what a test wants, names that lead there, and a way in."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from orchestrator.gateway.http.socket_stream import SocketStream

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port at which each connection is talked to; leaving the block ends them."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await talk(reader, writer)
                await writer.drain()
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Origin:
    """Answers every request with the same bytes, and keeps what it was asked."""

    def __init__(
        self, answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    ) -> None:
        self.answer = answer
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        self.bodies.append(await _body(head.lower(), reader))
        writer.write(self.answer)


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    for line in head.split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2]))
    return b""


class Names:
    """A resolver that knows a few names, and remembers what it was asked."""

    def __init__(self, **names: str | tuple[str, ...]) -> None:
        self._names = {name.replace("_", "."): found for name, found in names.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        self.asked.append(host)
        found = self._names.get(host)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return (found,) if isinstance(found, str) else found


def certificate(folder: Path, host: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate that vouches for itself, and a server's context with it."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
    command += ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={host}"]
    command += ["-addext", f"subjectAltName=DNS:{host}", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


async def connect(port: int) -> SocketStream:
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(SocketStream, "127.0.0.1", port))[1]
