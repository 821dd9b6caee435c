"""Connections of clients that send nothing, or very slowly: they end, and there are only so many.

uvicorn waits for the rest of a request's head for ever, and takes as many connections as there are
file descriptors; runs would then get none for their containers.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_HEAD_SECONDS = 20.0
"""For the head of a request to come."""

MOST_HELD_CONNECTIONS = 4096

SPARE_FILES = 512
"""File descriptors that connections leave to all else."""


class HeldConnection(H11Protocol):
    """A connection that has to ask for something."""

    _heads: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._heads is not None:
            self._heads.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._heads = self.loop.call_later(REQUEST_HEAD_SECONDS, self._look, self.cycle)

    def _look(self, seen: RequestResponseCycle | None) -> None:
        """Close it if no request came since the last look, and none is under way."""
        under_way = seen is not None and not seen.response_complete
        if self.cycle is seen and not under_way:
            self.transport.abort()
        else:
            self._look_later()


def most_connections() -> int:
    """As many as leave enough files to runs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MOST_HELD_CONNECTIONS
    return min(MOST_HELD_CONNECTIONS, max(files - SPARE_FILES, files // 2))


def raise_file_limit() -> None:
    """Up to what this process may have, as far as connections need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_HELD_CONNECTIONS + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
