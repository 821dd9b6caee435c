"""The SQLite file that all orchestrators of a user share: how it is opened, read and written."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from orchestrator.errors import StoreFailed
from orchestrator.store.schema import migrate, version_of

BUSY_SECONDS = 30.0
"""How long a statement waits while another orchestrator is writing."""

T = TypeVar("T")


class Database:
    """One connection and one thread for it: writes are in order, and nothing blocks the loop."""

    def __init__(self, path: Path) -> None:
        """Open the file, make it if there is none, and bring its tables up to date. Blocks."""
        self._path = path
        self._limiter = anyio.CapacityLimiter(1)
        self._in_use = threading.Lock()
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = _opened(path)

    def close(self) -> None:
        """Wait for the statement that is under way, and close the file.

        sqlite3 does not wait: a connection that is closed while another thread uses it takes the
        whole process down (SIGSEGV, seen with Python 3.11).
        """
        with self._in_use:
            self._db.close()

    async def select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows that a statement gives; one mapping as its values are those of named marks."""
        given = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
        return await self._call(lambda: self._db.execute(sql, given).fetchall())

    async def write(self, sql: str, *values: object) -> int:
        """Run one statement; how many rows it changed."""
        return await self._call(lambda: self._db.execute(sql, values).rowcount)

    async def atomically(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run several statements in one transaction: if `work` raises, none of them counts."""

        def execute() -> T:
            with self._db as db:  # commits, or rolls back
                db.execute("BEGIN IMMEDIATE")
                return work(db)

        return await self._call(execute)

    async def version(self) -> int:
        """A number that grows when anything in the file has changed, in whichever process."""

        def look() -> int:
            # The first counts the commits of other connections, the second the rows of this one.
            others = self._db.execute("PRAGMA data_version").fetchone()[0]
            return int(others) + self._db.total_changes

        return await self._call(look)

    async def compact(self) -> None:
        """Give the room of deleted rows back to the disk. StoreFailed if the file is in use."""
        await self.write("VACUUM")
        await self.select("PRAGMA wal_checkpoint(TRUNCATE)")

    async def _call(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._in_use:
                return work()

        # The thread is never abandoned: a write that has begun is waited for.
        with self._explained():
            return await anyio.to_thread.run_sync(alone, limiter=self._limiter)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as exc:
            raise StoreFailed(
                f"the record of runs, {self._path}, cannot be used ({exc}). Check free space "
                "and permissions. If the file is damaged, move it away; a new one is made."
            ) from exc


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None)
    try:
        version_of(db, path)  # first: nothing may be written to a file that a newer version made
        path.chmod(0o600)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        migrate(db, path)
    except BaseException:
        db.close()
        raise
    db.row_factory = sqlite3.Row
    return db
