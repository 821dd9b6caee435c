"""Bytes between two sides, both ways, until there are no more."""

from __future__ import annotations

import anyio

from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import IDLE_SECONDS, PIECE_BYTES, ByteStream


async def splice(client: ByteStream, upstream: ByteStream, early: bytes = b"") -> None:
    """Returns when both sides have ended, one has gone, or nothing moves any more."""

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
