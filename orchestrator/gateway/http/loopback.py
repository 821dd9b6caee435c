"""HTTP on this machine's loopback, by the same server that answers containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio

from orchestrator.gateway.http.byte_stream import STREAM_READ_BYTES
from orchestrator.gateway.http.server import Handler, serve_http

LINGER_SECONDS = 2.0
"""For the peer to take what was written."""


class SocketStream:
    """An asyncio connection, with a wire stream's manners."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int = STREAM_READ_BYTES) -> bytes:
        return await self._reader.read(max_bytes)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        with suppress(OSError):
            self._writer.write_eof()

    def reset(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        """Let the peer have what was written, and go."""
        self._writer.close()
        with suppress(OSError), anyio.move_on_after(LINGER_SECONDS, shield=True):
            await self._writer.wait_closed()
        self._writer.transport.abort()


@asynccontextmanager
async def serve_on_loopback(handler: Handler) -> AsyncIterator[str]:
    """The URL at which a handler answers; leaving the block ends its connections."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(stream: SocketStream) -> None:
        try:
            await serve_http(stream, handler)
        finally:
            await stream.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(SocketStream(reader, writer)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)  # a connection that was just accepted has its task now
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
