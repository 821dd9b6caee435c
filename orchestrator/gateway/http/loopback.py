"""HTTP on this machine's loopback, by the same server that answers containers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from orchestrator.gateway.http.server import Handler, serve_http
from orchestrator.gateway.http.socket_stream import SocketStream


def serve_on_loopback(handler: Handler) -> AbstractAsyncContextManager[str]:
    """The URL at which a handler answers; leaving the block ends its connections."""
    return listen_on_loopback(lambda stream: serve_http(stream, handler))


@asynccontextmanager
async def listen_on_loopback(
    service: Callable[[SocketStream], Awaitable[None]],
) -> AsyncIterator[str]:
    """The URL at which a service gets connections; leaving the block ends them."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(stream: SocketStream) -> None:
        try:
            await service(stream)
        finally:
            await stream.aclose()

    def connected(stream: SocketStream) -> None:
        task = loop.create_task(serve(stream))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SocketStream(connected), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)  # a connection that was just accepted has its task now
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
