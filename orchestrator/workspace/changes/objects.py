"""Contents on their way to the disk: small ones together, large ones piece by piece."""

from __future__ import annotations

import hashlib
from pathlib import Path

import anyio.to_thread

SMALL = 1024 * 1024
"""Contents up to this size wait in memory for others."""

TOGETHER = 4 * 1024 * 1024
"""Bytes that are written in one go."""


class Objects:
    """Files named after their content, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._scratch = folder / "incoming"
        self._sha = hashlib.sha256()
        self._size = 0
        self._buffer = bytearray()
        self._waiting: dict[str, bytes] = {}
        self._waiting_bytes = 0

    async def write(self, data: bytes) -> None:
        self._sha.update(data)
        self._size += len(data)
        self._buffer += data
        if len(self._buffer) > SMALL:
            await anyio.to_thread.run_sync(self._append)

    async def finish(self) -> tuple[str, int]:
        """The content's hash and size, when it is all there."""
        sha256, size = self._sha.hexdigest(), self._size
        if size > len(self._buffer):
            await anyio.to_thread.run_sync(self._append)
            await anyio.to_thread.run_sync(self._scratch.replace, self._folder / sha256)
        else:
            self._waiting[sha256] = bytes(self._buffer)
            self._waiting_bytes += size
            self._buffer.clear()
            if self._waiting_bytes > TOGETHER:
                await self.flush()
        self._sha, self._size = hashlib.sha256(), 0
        return sha256, size

    async def flush(self) -> None:
        await anyio.to_thread.run_sync(self._write_waiting)

    def _append(self) -> None:
        with self._scratch.open("ab") as file:
            file.write(self._buffer)
        self._buffer.clear()

    def _write_waiting(self) -> None:
        for sha256, data in self._waiting.items():
            (self._folder / sha256).write_bytes(data)
        self._waiting.clear()
        self._waiting_bytes = 0
