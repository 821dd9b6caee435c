"""The real engine behind a door of our own: reached over TCP, or gone from one moment on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit


class EngineProxy:
    """Passes every connection on to the engine, until it is cut off."""

    def __init__(self, engine: str) -> None:
        self._socket = urlsplit(engine).path
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""

    async def serve_tcp(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def serve_unix(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._accept, path)
        self.address = f"unix://{path}"

    async def cut_off(self) -> None:
        """Be gone, as an engine that crashed."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, engine = await asyncio.open_unix_connection(self._socket)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers |= {writer, engine}
        await asyncio.gather(_copy(reader, engine), _copy(there, writer))
        self._writers -= {writer, engine}
        self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def engine_proxy(engine: str) -> AsyncIterator[EngineProxy]:
    proxy = EngineProxy(engine)
    try:
        yield proxy
    finally:
        await proxy.cut_off()
