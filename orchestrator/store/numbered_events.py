"""All events of the store in one line: each has its number, in the order in which they were kept.

It is read over a connection of its own, so that readers never keep a run from writing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread

from orchestrator.store.database import Database


class KeptEvent:
    """An event, as the store has it; `data` is JSON text."""

    def __init__(self, row: sqlite3.Row) -> None:
        self.number: int = row["number"]
        self.run_id: str = row["run_id"]
        self.seq: int = row["seq"]
        self.at: float = row["at"]
        self.kind: str = row["kind"]
        self.text: str = row["text"]
        self.data: str = row["data"]

    @cached_property
    def json(self) -> str:
        """All of it, on one line."""
        head = {"id": self.number, "run_id": self.run_id, "seq": self.seq, "at": self.at}
        head |= {"kind": self.kind, "text": self.text}
        data = self.data
        if "NaN" in data or "Infinity" in data:  # which is JSON to Python, and to no other reader
            data = json.dumps(_plain(json.loads(data)))
        return f'{json.dumps(head)[:-1]}, "data": {data}}}'

    @cached_property
    def frame(self) -> bytes:
        """The same as a server-sent event."""
        return f"id: {self.number}\nevent: {self.kind}\ndata: {self.json}\n\n".encode()


class Kinship(NamedTuple):
    """Whose a run is."""

    project: str
    caller: str
    agent: str
    parent: str


class NumberedEvents:
    """Reads events by their numbers. Close it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: Database | None = None
        self._opening = anyio.Lock()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    async def newest(self) -> int:
        """The last number that was given; 0 before the first."""
        rows = await self._select("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
        return int(rows[0]["seq"]) if rows else 0

    async def oldest(self, project: str) -> int:
        """The first number of a project that is still there; 0 if there is none."""
        rows = await self._select(
            "SELECT number FROM events CROSS JOIN runs USING (run_id) WHERE project = ? "
            "ORDER BY number LIMIT 1",
            project,
        )
        return int(rows[0]["number"]) if rows else 0

    async def removed(self, project: str) -> int:
        """The last number of those that were removed with a project's runs; 0 if none was."""
        rows = await self._select("SELECT number FROM removed_events WHERE project = ?", project)
        return int(rows[0]["number"]) if rows else 0

    async def of_project(
        self, project: str, after: int, limit: int, upto: int | None = None
    ) -> list[KeptEvent]:
        """The first events after a number, of all runs of a project.

        CROSS JOIN is an order to SQLite: along the numbers. It would rather read all events of the
        project, and sort them, at each call.
        """
        rows = await self._select(
            f"{_NUMBERED} CROSS JOIN runs USING (run_id) WHERE number > ? AND number <= ? "
            "AND project = ? ORDER BY number LIMIT ?",
            after,
            _LAST if upto is None else upto,
            project,
            limit,
        )
        return list(map(KeptEvent, rows))

    async def of_run(
        self,
        run_id: str,
        after: int,
        limit: int,
        upto: int | None = None,
        kinds: Sequence[str] = (),
    ) -> list[KeptEvent]:
        """The first events of a run after a number, of some kinds or of all."""
        seq = await self._seq(run_id, after) if after else 0
        rows = await self._select(
            f"{_NUMBERED} WHERE run_id = ? AND seq > ? AND number <= ? AND number > ? "  # noqa: S608 our own text
            "AND (? = '[]' OR kind IN (SELECT value FROM json_each(?))) ORDER BY seq LIMIT ?",
            run_id,
            seq,
            _LAST if upto is None else upto,
            after,
            json.dumps(list(kinds)),
            json.dumps(list(kinds)),
            limit,
        )
        return list(map(KeptEvent, rows))

    async def of_thread(self, thread_id: str, after: int, limit: int, upto: int) -> list[KeptEvent]:
        """The first events after a number, of the runs of one line of runs."""
        rows = await self._select(
            f"{_NUMBERED} WHERE run_id IN (SELECT run_id FROM runs WHERE "  # noqa: S608 our own text
            "json_extract(task, '$.thread') = ? AND json_extract(task, '$.thread') != '') "
            "AND number > ? AND number <= ? ORDER BY number LIMIT ?",
            thread_id,
            after,
            upto,
            limit,
        )
        return list(map(KeptEvent, rows))

    async def first_of_run(self, run_id: str) -> int:
        """The number of a run's first event; 0 if there is none."""
        rows = await self._select(
            "SELECT number FROM events WHERE run_id = ? ORDER BY seq LIMIT 1", run_id
        )
        return int(rows[0]["number"]) if rows else 0

    async def last_of_run(self, run_id: str) -> int:
        """The number of a run's last event; 0 if there is none."""
        rows = await self._select(
            "SELECT number FROM events WHERE run_id = ? ORDER BY seq DESC LIMIT 1", run_id
        )
        return int(rows[0]["number"]) if rows else 0

    async def ended(self, run_ids: Iterable[str]) -> set[str]:
        """Those of these runs that have ended, or are gone."""
        rows = await self._select(
            "SELECT value AS run_id FROM json_each(?) LEFT JOIN runs ON run_id = value "
            "WHERE runs.run_id IS NULL OR ended IS NOT NULL",
            json.dumps(list(run_ids)),
        )
        return {row["run_id"] for row in rows}

    async def kinship(self, run_ids: Iterable[str]) -> dict[str, Kinship]:
        """Project, caller and parent of each of these runs that is there."""
        rows = await self._select(
            "SELECT run_id, project, caller, agent, "
            "coalesce(json_extract(task, '$.parent_run_id'), '') AS parent "
            "FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(run_ids)),
        )
        return {row["run_id"]: Kinship(*tuple(row)[1:]) for row in rows}

    async def _seq(self, run_id: str, number: int) -> int:
        """Which of a run's events has a number; 0 if that is another run's."""
        rows = await self._select("SELECT run_id, seq FROM events WHERE number = ?", number)
        return rows[0]["seq"] if rows and rows[0]["run_id"] == run_id else 0

    async def _select(self, sql: str, *values: object) -> list[sqlite3.Row]:
        async with self._opening:
            if self._opened is None:
                self._opened = await anyio.to_thread.run_sync(Database, self._path)
        return await self._opened.select(sql, *values)


_LAST = 2**63 - 1
_NUMBERED = "SELECT number, run_id, seq, at, kind, text, data FROM events"


def _plain(value: object) -> object:
    """A JSON value without numbers that are none."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return list(map(_plain, value)) if isinstance(value, list) else value
