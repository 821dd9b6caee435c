"""Requests that are made once: under which keys callers have asked for something, and what came of
it.
"""

from __future__ import annotations

import sqlite3
import time

from orchestrator.domain import Frozen
from orchestrator.domain.task import Once, Task
from orchestrator.errors import AskedBefore, KeyReused
from orchestrator.store.database import Database

KEY_SECONDS = 24 * 3600
"""For which a key is remembered."""


class KeptRequest(Frozen):
    """What came of a request that had a key."""

    sha256: str
    run_id: str = ""
    answer: str = ""
    """As it was sent, for a request that began no run."""


class RequestKeys:
    """Reads and writes them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, project: str, once: Once) -> KeptRequest | None:
        """What came of an earlier request; KeyReused if that was another one."""
        return await self._database.atomically(lambda db: _found(db, project, once))

    async def keep(self, project: str, once: Once, answer: str, run_id: str = "") -> None:
        """Remember an answer; the first one counts."""

        def write(db: sqlite3.Connection) -> None:
            if _found(db, project, once) is None:
                db.execute(_INSERT_KEY, (*_row_key(project, once), once.sha256, run_id, answer))

        await self._database.atomically(write)


def claim(db: sqlite3.Connection, task: Task) -> None:
    """Remember a task's key in the transaction that adds its run; AskedBefore if it has one."""
    if task.once is None:
        return
    found = _found(db, task.project, task.once)
    if found is not None:
        raise AskedBefore(f"the same was asked for before: run {found.run_id}", found.run_id)
    row = (*_row_key(task.project, task.once), task.once.sha256, task.run_id, "")
    db.execute(_INSERT_KEY, row)


def _found(db: sqlite3.Connection, project: str, once: Once) -> KeptRequest | None:
    db.execute("DELETE FROM request_keys WHERE at < ?", (time.time() - KEY_SECONDS,))
    row = db.execute(_SELECT_KEY, _row_key(project, once)[:-1]).fetchone()
    if row is None:
        return None
    if row["sha256"] != once.sha256:
        raise KeyReused(
            f"the key {once.key!r} came before with another request; take a new key for a new one"
        )
    return KeptRequest(**row)


def _row_key(project: str, once: Once) -> tuple[str, str, str, str, str, float]:
    return project, once.asker, once.method, once.path, once.key, time.time()


_SELECT_KEY = (
    "SELECT sha256, made AS run_id, answer FROM request_keys WHERE project = ? AND caller = ? "
    "AND method = ? AND path = ? AND key = ?"
)
_INSERT_KEY = (
    "INSERT INTO request_keys (project, caller, method, path, key, at, sha256, made, answer) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
