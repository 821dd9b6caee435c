"""The connection to the SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.errors import StoreFailed
from orchestrator.store.database import Database

PATIENCE = 60


async def test_a_database_is_closed_once_what_uses_it_has_ended(tmp_path: Path) -> None:
    """sqlite3 itself crashes: the process is gone, with SIGSEGV."""
    database = Database(tmp_path / "runs.sqlite")
    begun, closing, closed = threading.Event(), threading.Event(), threading.Event()
    found: list[int] = []

    def work(db: sqlite3.Connection) -> int:
        begun.set()
        closing.wait(PATIENCE)
        assert not closed.wait(0.2), "it is closed while it is used"
        return int(db.execute("SELECT 40 + 2").fetchone()[0])

    def close() -> None:
        begun.wait(PATIENCE)
        closing.set()
        database.close()
        closed.set()

    async def use() -> None:
        found.append(await database.atomically(work))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(use)
            tasks.start_soon(anyio.to_thread.run_sync, close)
    assert found == [42]
    with pytest.raises(StoreFailed, match="closed database"):
        await database.select("SELECT 1")
