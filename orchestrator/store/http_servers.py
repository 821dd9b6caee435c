"""Which servers answer over HTTP now: a file for each, locked by its process while it lives.

A file and not a row: the kernel lets go of the lock however the process ends, so that nobody is led
to a port that another program has by now.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from orchestrator.containers.file_lock import FileLock
from orchestrator.domain import Frozen

SERVER_FILE_BYTES = 64 * 1024
"""The longest file that is read."""


class HttpServer(Frozen):
    """One server that answers over HTTP."""

    url: str
    """Without a path, as this machine reaches it."""
    project: str


class HttpServers:
    """The servers of one state directory. Blocks, for moments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def told(self, server: HttpServer) -> Iterator[None]:
        """While in this block, others find the server."""
        name = secrets.token_hex(8)
        lock = FileLock(self._folder / f"{name}.lock")
        lock.acquire()
        file = self._folder / f"{name}.json"
        try:
            file.touch(0o600)
            file.write_text(server.model_dump_json())
            yield
        finally:
            file.unlink(missing_ok=True)
            lock.release()

    def of(self, project: str) -> HttpServer | None:
        """A living server of a project; what dead ones left is cleared away."""
        for file in sorted(self._folder.glob("*.json")):
            lock = FileLock(file.with_suffix(".lock"))
            if lock.acquire():
                file.unlink(missing_ok=True)
                lock.release()
                continue
            found = _read(file)
            if found is not None and found.project == project:
                return found
        return None


def _read(file: Path) -> HttpServer | None:
    try:
        with file.open() as opened:
            return HttpServer.model_validate_json(opened.read(SERVER_FILE_BYTES))
    except (OSError, ValueError, ValidationError):
        return None
