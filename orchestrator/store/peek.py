"""A glance at the record of runs for a shell that completes a word: read-only, and at once.

It loads nothing but sqlite3: the rest of the store takes longer than a person waits for a Tab.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

PEEK_SECONDS = 0.3
"""For another process that is writing."""

PEEK_ROWS = 40
"""Of one kind, the newest: more fits no screen."""


class PeekedRun(NamedTuple):
    """A run, as far as it has to be told apart."""

    run_id: str
    agent: str
    status: str


class Peek:
    """What a record of runs holds; nothing, if there is none, or if it is another version's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def runs(self, project: str) -> list[PeekedRun]:
        """A project's runs, the newest first."""
        sql = (
            "SELECT run_id, agent, status FROM runs WHERE project IN (?, '') "
            "ORDER BY created DESC LIMIT ?"
        )
        return [PeekedRun(*map(str, row)) for row in self._rows(sql, project, PEEK_ROWS)]

    def calls(self, run_id: str = "") -> list[tuple[str, str]]:
        """Tool calls that wait, of one run or of all, and their tools."""
        sql = (
            "SELECT call_id, tool FROM approvals WHERE decision = 'pending' "
            "AND (run_id = ? OR ? = '') ORDER BY asked LIMIT ?"
        )
        return [(str(call), str(tool)) for call, tool in self._rows(sql, run_id, run_id, PEEK_ROWS)]

    def questions(self, run_id: str = "") -> list[tuple[str, str]]:
        """Questions that wait, of one run or of all, and what they ask."""
        sql = (
            "SELECT message_id, question FROM questions WHERE status = 'pending_parent_reply' "
            "AND (run_id = ? OR ? = '') ORDER BY asked LIMIT ?"
        )
        return [(str(name), str(text)) for name, text in self._rows(sql, run_id, run_id, PEEK_ROWS)]

    def sessions(self, project: str) -> list[tuple[str, str]]:
        """A project's sessions, and how they are."""
        sql = (
            "SELECT agent || '/' || caller || '/' || name, state FROM sessions "
            "WHERE project IN (?, '') ORDER BY used DESC LIMIT ?"
        )
        return [(str(key), str(state)) for key, state in self._rows(sql, project, PEEK_ROWS)]

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            with self._opened() as db:
                return list(db.execute(sql, values))
        except sqlite3.Error:
            return []

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        address = f"{self._path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, timeout=PEEK_SECONDS, uri=True)) as db:
            yield db
