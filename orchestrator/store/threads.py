"""Lines of runs that clients begin: what each is called, whose it is, and that one run of it is
under way at a time.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Mapping

from orchestrator.domain import Frozen
from orchestrator.domain.result import FINAL
from orchestrator.domain.task import Task
from orchestrator.errors import ThreadRefused
from orchestrator.store.database import Database

MAX_THREADS = 10_000
"""Of one caller in one project."""


class Thread(Frozen):
    """One line of runs."""

    thread_id: str
    project: str
    caller: str
    parent: str = ""
    """The line that it was begun for, if it was."""
    title: str
    cwd: str = ""
    """The directory to work on; none if empty."""
    model: str = ""
    """For the next runs, as Wish has it."""
    created: float = 0.0
    updated: float = 0.0


class Threads:
    """Reads and writes them. Each belongs to one caller in one project."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, thread: Thread) -> Thread:
        """A new one, with an id of its own. Of too many, those go that were changed longest ago."""
        now = time.time()
        ids = {"thread_id": str(uuid.uuid4()), "created": now, "updated": now}
        added = thread.model_copy(update=ids)

        def write(db: sqlite3.Connection) -> None:
            db.execute(_INSERT_THREAD, tuple(added.model_dump().values()))
            db.execute(_DELETE_OLDEST, (added.project, added.caller, MAX_THREADS))

        await self._database.atomically(write)
        return added

    async def find(self, thread_id: str, project: str, caller: str) -> Thread | None:
        """One of this caller's; None if there is none."""
        rows = await self._database.select(
            "SELECT * FROM threads WHERE thread_id = ? AND project = ? AND caller = ?",
            *(thread_id, project, caller),
        )
        return Thread.model_validate(dict(rows[0])) if rows else None

    async def page(
        self,
        project: str,
        caller: str,
        *,
        parent: str = "",
        search: str = "",
        limit: int,
        offset: int,
    ) -> tuple[tuple[Thread, ...], int]:
        """A caller's, those changed last first; and how many there are in all."""
        of_parent = "(? = '' OR parent = ?) AND instr(lower(title), lower(?))"
        where = f"FROM threads WHERE project = ? AND caller = ? AND {of_parent}"
        values = (project, caller, parent, parent, search)
        counted = await self._database.select(f"SELECT count(*) AS total {where}", *values)
        rows = await self._database.select(
            f"SELECT * {where} ORDER BY updated DESC, thread_id LIMIT ? OFFSET ?",
            *(*values, limit, offset),
        )
        found = tuple(Thread.model_validate(dict(row)) for row in rows)
        return found, int(counted[0]["total"])

    async def change(self, thread: Thread, fields: Mapping[str, str] | None = None) -> Thread:
        """Its title or its model is another one, or something has happened in it."""
        changed = thread.model_copy(update={**(fields or {}), "updated": time.time()})
        await self._database.write(
            "UPDATE threads SET title = ?, model = ?, updated = ? WHERE thread_id = ?",
            *(changed.title, changed.model, changed.updated, changed.thread_id),
        )
        return changed

    async def remove(self, thread: Thread) -> bool:
        """Forget one; its runs stay. False if it was gone already."""
        sql = "DELETE FROM threads WHERE thread_id = ?"
        return await self._database.write(sql, thread.thread_id) == 1


def check_thread(db: sqlite3.Connection, task: Task) -> None:
    """ThreadRefused if a line of runs cannot have one more at this moment; in the transaction that
    adds the run, so that of two at once one is refused.
    """
    if not task.thread:
        return
    ends = ", ".join("?" * len(FINAL))
    busy = db.execute(
        "SELECT run_id FROM runs WHERE json_extract(task, '$.thread') = ? "  # noqa: S608 our own text
        f"AND json_extract(task, '$.thread') != '' AND status NOT IN ({ends})",
        (task.thread, *sorted(FINAL)),
    ).fetchone()
    if busy is not None:
        raise ThreadRefused(
            f"run {busy['run_id']} of this session is under way; wait until it has ended, cancel "
            "it, or tell it something with type: steering"
        )
    if not db.execute("SELECT 1 FROM threads WHERE thread_id = ?", (task.thread,)).fetchone():
        raise ThreadRefused("this session was deleted; create another one")


_INSERT_THREAD = (
    "INSERT INTO threads (thread_id, project, caller, parent, title, cwd, model, created, updated) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_DELETE_OLDEST = (
    "DELETE FROM threads WHERE thread_id IN (SELECT thread_id FROM threads WHERE project = ? "
    "AND caller = ? ORDER BY updated DESC, thread_id LIMIT -1 OFFSET ?)"
)
