"""What happened, kept: runs and their events, in SQLite, shared by all orchestrators of a user."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar, get_args

import anyio
import anyio.to_thread

from orchestrator.domain import Frozen
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import FINAL, TRANSITIONS, Reason, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.errors import StoreFailed

BUSY_SECONDS = 30.0
"""For another orchestrator that is writing."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    run_id TEXT PRIMARY KEY, agent TEXT NOT NULL, caller TEXT NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL, task TEXT NOT NULL, result TEXT,
    created REAL NOT NULL, ended REAL);
CREATE INDEX IF NOT EXISTS runs_by_time ON runs (created);
CREATE INDEX IF NOT EXISTS runs_by_all ON runs (caller, agent, status, created);
CREATE INDEX IF NOT EXISTS runs_by_parent ON runs (json_extract(task, '$.parent_run_id'));
CREATE INDEX IF NOT EXISTS runs_under_way ON runs (created) WHERE ended IS NULL;
CREATE INDEX IF NOT EXISTS runs_by_agent ON runs (agent, created);
CREATE INDEX IF NOT EXISTS runs_by_status ON runs (status, created);
CREATE INDEX IF NOT EXISTS runs_by_caller ON runs (caller, created);
CREATE TABLE IF NOT EXISTS events (
    run_id TEXT NOT NULL, seq INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    text TEXT NOT NULL, data TEXT NOT NULL, PRIMARY KEY (run_id, seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sessions (
    agent TEXT NOT NULL, caller TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL,
    owner TEXT NOT NULL, conversation TEXT NOT NULL, runs INTEGER NOT NULL, created REAL NOT NULL,
    used REAL NOT NULL, expires REAL NOT NULL, wanted INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (agent, caller, name)) WITHOUT ROWID;
"""

P = ParamSpec("P")
T = TypeVar("T")


class RunRecord(Frozen):
    """One run, as the store knows it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: str
    owner: str = ""
    """The orchestrator process that has it, or had it."""
    prompt: str
    parent_run_id: str = ""
    workspace: Path | None = None
    session: str = ""
    """In which session it was to run; none if the agent has none."""
    created: float
    ended: float | None
    result: RunResult | None


class Store:
    """One connection and one thread for it: writes are in order, and nothing blocks the loop."""

    def __init__(self, path: Path, owner: str = "") -> None:
        self._path = path
        self._owner = owner
        self._limiter = anyio.CapacityLimiter(1)
        with self._explained():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, check_same_thread=False, isolation_level=None
            )
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
        self.create(SCHEMA)

    def create(self, schema: str) -> None:
        """Have tables. Blocks."""
        with self._explained():
            self._db.executescript(schema)

    def close(self) -> None:
        self._db.close()

    async def add_run(self, task: Task) -> None:
        row = (task.run_id, task.agent, task.caller, "pending", self._owner)
        await self._call(
            self._db.execute,
            "INSERT INTO runs (run_id, agent, caller, status, owner, task, created) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*row, task.model_dump_json(), time.time()),
        )

    async def set_status(self, run_id: str, status: RunStatus) -> bool:
        """False if what the run is does not lead there (see TRANSITIONS): nothing is changed.

        A run ends with a result, by `finish` and in no other way.
        """
        if status in FINAL:
            return False
        where, before = _leading_to(status)
        sql = f"UPDATE runs SET status = ? WHERE run_id = ? AND {where}"  # noqa: S608 our own text
        return await self.write(sql, status, run_id, *before) == 1

    async def finish(self, result: RunResult, last: Sequence[Event] = ()) -> bool:
        """False if the run had ended already: the first end counts.

        The last events are kept with it, or not at all: no crash can come between the two.
        """
        if result.status not in FINAL:
            return False
        where, before = _leading_to(result.status)
        sql = (
            "UPDATE runs SET status = ?, reason = ?, result = ?, ended = ? "  # noqa: S608 our own text
            f"WHERE run_id = ? AND {where}"
        )
        ended = (result.status, result.reason, result.model_dump_json(), time.time())
        rows = [_event_row(event) for event in last]

        def execute() -> bool:
            with self._transaction():
                if self._db.execute(sql, (*ended, result.run_id, *before)).rowcount != 1:
                    return False
                self._db.executemany(_INSERT_EVENT, rows)
            return True

        return await self._call(execute)

    async def find_runs(
        self,
        caller: str | None,
        statuses: Sequence[RunStatus],
        agent: str,
        limit: int,
        *,
        results: bool = False,
    ) -> tuple[RunRecord, ...]:
        """The newest first, of a caller or of all; without their results, unless they are wanted.

        Reading ten thousand results takes a while.
        """
        conditions = ["1"]
        values: list[object] = []
        for condition, value in (("caller = ?", caller), ("agent = ?", agent or None)):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        if statuses:
            conditions.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += statuses
        where = " AND ".join(conditions)
        chosen = _RUNS if results else _RUNS_WITHOUT_RESULTS
        sql = f"{chosen} WHERE {where} ORDER BY created DESC LIMIT ?"
        rows = await self.select(sql, *values, limit)
        return tuple(_record(row) for row in rows)

    async def descendants(self, run_id: str) -> tuple[str, ...]:
        """Runs that have not ended, of agents that work for this one, however far down."""
        marks = ", ".join("?" * len(FINAL))
        rows = await self.select(
            "WITH RECURSIVE family (run_id) AS (SELECT ? UNION SELECT runs.run_id FROM runs "  # noqa: S608
            "JOIN family ON json_extract(runs.task, '$.parent_run_id') = family.run_id) "
            "SELECT run_id FROM runs JOIN family USING (run_id) "
            f"WHERE status NOT IN ({marks}) AND run_id != ?",
            run_id,
            *sorted(FINAL),
            run_id,
        )
        return tuple(row[0] for row in rows)

    async def unfinished(self) -> tuple[RunRecord, ...]:
        """Runs that have not ended, of all orchestrators, the oldest first."""
        rows = await self.select(f"{_RUNS} WHERE ended IS NULL ORDER BY created")
        return tuple(_record(row) for row in rows)

    async def add_events(self, events: Sequence[Event]) -> None:
        rows = [_event_row(event) for event in events]

        def insert() -> None:
            with self._transaction():
                self._db.executemany(_INSERT_EVENT, rows)

        await self._call(insert)

    async def run(self, run_id: str) -> RunRecord | None:
        rows = await self.select(f"{_RUNS} WHERE run_id = ?", run_id)
        return _record(rows[0]) if rows else None

    async def versions(self, run_ids: Iterable[str]) -> dict[str, tuple[RunStatus, int]]:
        """Status and number of the last event of each run that is there: another pair whenever
        something has happened in it.
        """
        rows = await self.select(
            "SELECT run_id, status, "
            "(SELECT max(seq) FROM events WHERE events.run_id = runs.run_id) "
            "FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(run_ids)),
        )
        statuses: dict[str, RunStatus] = {status: status for status in TRANSITIONS}
        return {run_id: (statuses[status], int(seq or 0)) for run_id, status, seq in rows}

    async def runs(self, limit: int = 50) -> tuple[RunRecord, ...]:
        rows = await self.select(f"{_RUNS} ORDER BY created DESC LIMIT ?", limit)
        return tuple(_record(row) for row in rows)

    async def events(
        self, run_id: str, after: int = 0, limit: int = -1, *, last: bool = False
    ) -> tuple[Event, ...]:
        """Those after a number, in their order; not more than so many, unless that is negative.

        These are the first ones, or the last.
        """
        order = "DESC" if last else "ASC"
        rows = await self.select(
            "SELECT run_id, seq, at, kind, text, data FROM (SELECT * FROM events "  # noqa: S608 our own text
            f"WHERE run_id = ? AND seq > ? ORDER BY seq {order} LIMIT ?) ORDER BY seq",
            run_id,
            after,
            limit,
        )
        return tuple(map(_event, rows))

    async def write(self, sql: str, *values: object) -> int:
        """One statement; how many rows it changed."""

        def execute() -> int:
            return self._db.execute(sql, values).rowcount

        return await self._call(execute)

    async def write_all(self, statements: Sequence[tuple[str, Sequence[object]]]) -> int:
        """All of them, or none; how many rows they changed."""

        def execute() -> int:
            with self._transaction():
                return sum(self._db.execute(sql, values).rowcount for sql, values in statements)

        return await self._call(execute)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._db:  # which commits, or rolls back
            self._db.execute("BEGIN IMMEDIATE")
            yield

    async def select(self, sql: str, *values: object) -> list[tuple[str, ...]]:
        """All rows of a question."""

        def fetch() -> list[tuple[str, ...]]:
            return self._db.execute(sql, values).fetchall()

        return await self._call(fetch)

    async def _call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = partial(function, *args, **kwargs)  # not abandoned: a write that has begun is one
        with self._explained():
            return await anyio.to_thread.run_sync(bound, limiter=self._limiter)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as exc:
            raise StoreFailed(
                f"the record of runs, {self._path}, cannot be used ({exc}); is there room, may we "
                "write there, and is it ours? Moved away, it is begun anew"
            ) from exc


_INSERT_EVENT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"


def _event_row(event: Event) -> tuple[object, ...]:
    head = (event.run_id, event.seq, event.at, event.kind, event.text)
    return (*head, json.dumps(event.data))


def _event(row: tuple[str, ...]) -> Event:
    """As it was kept; of a kind that another version of the orchestrator knows, a warning."""
    keys = ("run_id", "seq", "at", "kind", "text")
    fields = {**dict(zip(keys, row, strict=False)), "data": json.loads(row[5])}
    if fields["kind"] not in get_args(EventKind):
        fields |= {"kind": "warning", "text": f"{fields['kind']}: {fields['text']}"}
    return Event.model_validate(fields)


def _result(text: str) -> RunResult:
    """As it was kept; what another version of the orchestrator put into it is passed over."""
    kept = {k: v for k, v in json.loads(text).items() if k in RunResult.model_fields}
    if kept.get("reason") not in get_args(Reason):
        kept["reason"] = "machinery"
    return RunResult.model_validate_json(json.dumps(kept))


def _leading_to(status: RunStatus) -> tuple[str, list[RunStatus]]:
    """A condition, and its values: what the run is may be followed by this."""
    before = [old for old, new in TRANSITIONS.items() if status in new]
    return f"status IN ({', '.join('?' * len(before))})", before


_COLUMNS = (
    "run_id, agent, caller, status, reason, owner, json_extract(task, '$.prompt'), created, ended, "
    "coalesce(json_extract(task, '$.parent_run_id'), ''), "
    "coalesce(json_extract(task, '$.session'), ''), json_extract(task, '$.workspace')"
)
_RUNS = f"SELECT {_COLUMNS}, result FROM runs"  # noqa: S608 our own text
_RUNS_WITHOUT_RESULTS = f"SELECT {_COLUMNS}, NULL FROM runs"  # noqa: S608 the same


def _record(row: tuple[str, ...]) -> RunRecord:
    keys = (
        *("run_id", "agent", "caller", "status", "reason", "owner", "prompt", "created", "ended"),
        *("parent_run_id", "session", "workspace"),
    )
    result = _result(row[12]) if row[12] else None
    return RunRecord.model_validate({**dict(zip(keys, row, strict=False)), "result": result})
