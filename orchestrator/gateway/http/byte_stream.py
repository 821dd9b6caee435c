"""Two directions of bytes, as all of the gateway reads and writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

STREAM_READ_BYTES = 64 * 1024
"""What one read asks for, unless it says otherwise."""

PIECE_BYTES = 256 * 1024
"""What one read of a body that is passed on asks for: as much as asyncio takes from a socket at
once. Smaller pieces cost more than passing them on."""

IDLE_SECONDS = 300.0
"""A connection on which no byte has moved for so long is given up."""

TURN_EVENTS = 64
"""Pieces of a message after which other tasks get their turn. What has arrived is read without
waiting, so a peer that sends a body byte by byte would keep the event loop to itself."""


class ByteStream(Protocol):
    """A wire's Stream, or a socket."""

    async def read(self, max_bytes: int = STREAM_READ_BYTES, /) -> bytes:
        """Some bytes, or b"" at the end; OSError or WireLost when it broke."""
        ...

    async def write(self, data: bytes, /) -> None:
        """Send it all, waiting for the reader as needed."""
        ...

    def end(self) -> None:
        """Nothing more will be written."""
        ...

    def reset(self) -> None:
        """Give it up, both ways, now."""
        ...


def _take_all(_: int) -> None:
    pass


class CountedStream:
    """A ByteStream that counts what passes.

    `on_bytes` gets the size of each piece before it goes on; what it raises keeps the piece back.
    """

    def __init__(self, stream: ByteStream, on_bytes: Callable[[int], None] = _take_all) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self._stream = stream
        self._on_bytes = on_bytes

    async def read(self, max_bytes: int = STREAM_READ_BYTES) -> bytes:
        data = await self._stream.read(max_bytes)
        self.bytes_in += len(data)
        self._on_bytes(len(data))
        return data

    async def write(self, data: bytes) -> None:
        self.bytes_out += len(data)
        self._on_bytes(len(data))
        await self._stream.write(data)

    def end(self) -> None:
        self._stream.end()

    def reset(self) -> None:
        self._stream.reset()
