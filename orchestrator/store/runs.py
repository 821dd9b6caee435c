"""Runs and their events in the store."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args

from orchestrator.domain import Frozen
from orchestrator.domain.audit import AuditEntry
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import FINAL, TRANSITIONS, WAITING, Reason, RunResult, RunStatus
from orchestrator.domain.task import Task, Wish
from orchestrator.store.audit import INSERT_DECISION, Audit, decision_values
from orchestrator.store.database import Database
from orchestrator.store.numbered_events import NumberedEvents
from orchestrator.store.outside_calls import OutsideCalls
from orchestrator.store.reports import Reports
from orchestrator.store.request_keys import RequestKeys, claim
from orchestrator.store.schema import RUN_TABLES
from orchestrator.store.threads import Threads, check_thread
from orchestrator.store.webhook_rows import WebhookRows

ROW_BYTES = 100
"""Roughly what a row takes on the disk besides its texts."""


class RunRecord(Frozen):
    """One run, as the store knows it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: str
    owner: str = ""
    """The orchestrator process that has it, or had it."""
    project: str = ""
    """As its task has it; "" for a run from before there were projects."""
    window: str = ""
    prompt: str
    context: str = ""
    wish: Wish | None = None
    """What the caller had made of the agent, if it had."""
    thread: str = ""
    """The line of runs that it is of, if it is of one."""
    parent_run_id: str = ""
    depth: int = 0
    """How many agents stand between it and the caller from outside."""
    workspace: Path | None = None
    session: str = ""
    """In which session it was to run; none if the agent has none."""
    trace_id: str = ""
    """Of the trace that it is part of, if it is of one."""
    created: float
    suspended: float | None = None
    """Since when no process has it, because its orchestrator died while it waited for a word."""
    ended: float | None
    result: RunResult | None


class Caps(Frozen):
    """How many runs may be under way at once, over all processes. A run that only waits for a word
    counts for its own project alone.
    """

    runs: int = 8
    """Of agents that callers from outside run, and as many at each depth below."""
    runs_per_agent: int = 8
    """Of those, of one agent of one project."""


class SuspendedRun(Frozen):
    """A run that waits, or waited, for a word, and that no process has."""

    task: Task
    since: float
    """When it was suspended; another one each time."""


class EndedRun(Frozen):
    """A run that may be removed."""

    run_id: str
    agent: str
    ended: float
    size_bytes: int
    """Roughly what its rows take on the disk."""


class Store:
    """Reads and writes runs and their events; holds the database that other tables are in too."""

    def __init__(self, path: Path, owner: str = "") -> None:
        self.database = Database(path)
        self.audit = Audit(self.database)
        self.outside_calls = OutsideCalls(self.database)
        self.reports = Reports(self.database)
        self.request_keys = RequestKeys(self.database)
        self.threads = Threads(self.database)
        self.webhooks = WebhookRows(self.database)
        self.numbered_events = NumberedEvents(path)
        self._owner = owner
        self._told: Callable[[], None] = lambda: None

    def close(self) -> None:
        self.numbered_events.close()
        self.database.close()

    def tell_of_events(self, told: Callable[[], None]) -> None:
        """Call this whenever events were kept by this process."""
        self._told = told

    async def version(self) -> int:
        """A number that grows when anything in the store has changed, in whichever process."""
        return await self.database.version()

    async def add_run(self, task: Task) -> None:
        """Add a run, and that its caller may have it, at once; AskedBefore if it was asked for
        under a key that has a run.
        """
        row = (
            task.run_id,
            task.project,
            task.agent,
            task.caller,
            task.window,
            task.depth,
            self._owner,
            task.model_dump_json(),
            time.time(),
        )
        let = _let(task)

        def write(db: sqlite3.Connection) -> None:
            claim(db, task)
            check_thread(db, task)
            db.execute(INSERT_DECISION, decision_values(let))
            db.execute(_INSERT_RUN, row)

        await self.database.atomically(write)

    async def stand_in_line(self, run_id: str) -> None:
        """Note that a run is ready to begin: from now on it has its place in the line."""
        await self.database.write(
            "UPDATE runs SET waits = ? WHERE run_id = ? AND waits IS NULL", time.time(), run_id
        )

    async def begin(
        self, run_id: str, caps: Caps, dead: Sequence[str] = (), *, in_line: bool = True
    ) -> bool:
        """Have a run begin, if a slot is free and no run that waits longer could have it; with
        `in_line` False, if a slot is free. False: nothing is changed.

        Runs of the orchestrators named as dead do not count.
        """
        values = _slot_values(run_id, caps, dead)
        begun = {**values, "now": time.time(), "in_line": in_line}
        return bool(await self.database.select(_BEGIN, begun))

    async def slot_is_free(self, run_id: str, caps: Caps, dead: Sequence[str] = ()) -> bool:
        """Whether a run could begin if it were the first in the line."""
        found = await self.database.select(_SLOT_IS_FREE, _slot_values(run_id, caps, dead))
        return bool(found)

    async def owners(self) -> frozenset[str]:
        """The orchestrators that have runs under way, or in the line."""
        rows = await self.database.select("SELECT DISTINCT owner FROM runs WHERE ended IS NULL")
        return frozenset(row["owner"] for row in rows)

    async def set_status(self, run_id: str, status: RunStatus) -> bool:
        """False if what the run is does not lead there (see TRANSITIONS): nothing is changed.

        A run ends with a result, by `finish` and in no other way.
        """
        if status in FINAL:
            return False
        where, before = _leading_to(status)
        sql = f"UPDATE runs SET status = ? WHERE run_id = ? AND {where}"  # noqa: S608 our own text
        return await self.database.write(sql, status, run_id, *before) == 1

    async def finish(
        self, result: RunResult, last: Sequence[Event] = (), *, owner: str | None = None
    ) -> bool:
        """False if the run had ended already: the first end counts. With an owner, also if the run
        is not that one's: another orchestrator has taken it up.

        The last events are kept with it, or not at all: no crash can come between the two.
        """
        if result.status not in FINAL:
            return False
        where, before = _leading_to(result.status)
        sql = (
            "UPDATE runs SET status = ?, reason = ?, result = ?, ended = ?, suspended = NULL "  # noqa: S608 our own text
            f"WHERE run_id = ? AND owner = coalesce(?, owner) AND {where}"
        )
        ended = (result.status, result.reason, result.model_dump_json(), time.time())
        rows = [_event_row(event) for event in last]

        def write(db: sqlite3.Connection) -> bool:
            if db.execute(sql, (*ended, result.run_id, owner, *before)).rowcount != 1:
                return False
            db.executemany(_INSERT_EVENT, rows)
            return True

        finished = await self.database.atomically(write)
        self._told()
        return finished

    async def run(self, run_id: str) -> RunRecord | None:
        rows = await self.database.select(f"{_RUNS} WHERE run_id = ?", run_id)
        return _record(rows[0]) if rows else None

    async def find_runs(
        self,
        caller: str | None = None,
        statuses: Sequence[RunStatus] = (),
        agent: str = "",
        limit: int = 50,
        *,
        projects: Sequence[str] | None = None,
        results: bool = False,
        asked_for: bool = False,
        parent: str = "",
        before: tuple[float, str] | None = None,
    ) -> tuple[RunRecord, ...]:
        """The newest first, of a caller or of all, of some projects or of all; without their
        results, unless they are wanted; `asked_for` leaves out those that work for others, `parent`
        all that do not work for that run. `before` is when the last one of before was begun, and
        its id.

        Reading ten thousand results takes a while.
        """
        conditions = ["1"]
        values: list[object] = []
        for condition, value in (
            ("caller = ?", caller),
            ("agent = ?", agent or None),
            ("json_extract(task, '$.parent_run_id') = ?", parent or None),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        for column, among in (("status", statuses or None), ("project", projects)):
            if among is not None:
                conditions.append(f"{column} IN ({', '.join('?' * len(among))})")
                values += among
        if asked_for:
            conditions.append("depth = 0")
        if parent:
            conditions.append("depth > 0")
        if before is not None:
            conditions.append("(created, run_id) < (?, ?)")
            values += before
        where = " AND ".join(conditions)
        chosen = _RUNS if results else _RUNS_WITHOUT_RESULTS
        sql = f"{chosen} WHERE {where} ORDER BY created DESC, run_id DESC LIMIT ?"
        rows = await self.database.select(sql, *values, limit)
        return tuple(map(_record, rows))

    async def unfinished(self) -> tuple[RunRecord, ...]:
        """Runs that have not ended, of all orchestrators, the oldest first."""
        rows = await self.database.select(f"{_RUNS} WHERE ended IS NULL ORDER BY created")
        return tuple(map(_record, rows))

    async def suspend(self, run_ids: Sequence[str], owner: str, why: str) -> bool:
        """Leave runs of a dead orchestrator, the first of them with the others that work for it, to
        whoever takes it up; False if another process has done so, or has ended it.

        What they wait for has no deadline from now on.
        """
        some = f"run_id IN ({', '.join('?' * len(run_ids))})"
        now = time.time()

        def write(db: sqlite3.Connection) -> bool:
            changed = db.execute(
                f"UPDATE runs SET suspended = ?, begun = NULL, waits = NULL WHERE {some} "  # noqa: S608 our own text
                "AND owner = ? AND ended IS NULL AND suspended IS NULL RETURNING run_id",
                (now, *run_ids, owner),
            ).fetchall()
            for (run_id,) in changed:
                (seq,) = db.execute(_LAST_NUMBER, (run_id,)).fetchone()
                event = Event(run_id=run_id, seq=seq + 1, at=now, kind="warning", text=why)
                db.execute(_INSERT_EVENT, _event_row(event))
            for open_ones in _WAITING_ONES if changed else ():
                db.execute(f"UPDATE {open_ones} AND {some}", run_ids)
            return bool(changed)

        return await self.database.atomically(write)

    async def suspended(self, project: str) -> tuple[SuspendedRun, ...]:
        """A project's runs that no process has, the oldest first; not those that work for them."""
        rows = await self.database.select(
            "SELECT task, suspended FROM runs WHERE suspended IS NOT NULL AND project = ? "
            "AND depth = 0 ORDER BY created",
            project,
        )
        return tuple(
            SuspendedRun(task=Task.model_validate_json(row["task"]), since=row["suspended"])
            for row in rows
        )

    async def take_up(self, run: SuspendedRun, why: str) -> bool:
        """Have a suspended run wait for a slot in this process, and note that it may; False if
        another process has it, or had it since.
        """
        task = run.task
        let = _let(task, why)

        def write(db: sqlite3.Connection) -> bool:
            changed = db.execute(_TAKE_UP, (self._owner, task.run_id, run.since)).rowcount == 1
            if changed:
                db.execute(INSERT_DECISION, decision_values(let))
            return changed

        return await self.database.atomically(write)

    async def add_server(self, project: str) -> None:
        """Note that this process takes up a project's runs."""
        sql = "INSERT OR REPLACE INTO servers (owner, project) VALUES (?, ?)"
        await self.database.write(sql, self._owner, project)

    async def remove_server(self, owner: str = "") -> None:
        """Note that a process, or this one, does so no more."""
        await self.database.write("DELETE FROM servers WHERE owner = ?", owner or self._owner)

    async def servers(self, project: str | None = None) -> frozenset[str]:
        """The processes that take up a project's runs, or any; some may be dead."""
        sql = "SELECT owner FROM servers WHERE project = coalesce(?, project)"
        return frozenset(row["owner"] for row in await self.database.select(sql, project))

    async def family(self, run_id: str) -> tuple[RunRecord, ...]:
        """A run, and those of agents that worked for it, however far down, ended or not."""
        rows = await self.database.select(
            "WITH RECURSIVE family (id) AS (SELECT ? UNION SELECT run_id FROM runs "  # noqa: S608 our own text
            "JOIN family ON json_extract(task, '$.parent_run_id') = family.id WHERE depth > 0) "
            f"{_RUNS_WITHOUT_RESULTS} JOIN family ON run_id = family.id ORDER BY depth, created",
            run_id,
        )
        return tuple(map(_record, rows))

    async def errands(self, run_ids: Sequence[str]) -> tuple[RunRecord, ...]:
        """The runs of agents that worked for these, however far down, with their results."""
        rows = await self.database.select(
            "WITH RECURSIVE family (id) AS (SELECT value FROM json_each(?) UNION "  # noqa: S608 our own text
            "SELECT run_id FROM runs JOIN family "
            "ON json_extract(task, '$.parent_run_id') = family.id WHERE depth > 0) "
            f"{_RUNS} JOIN family ON run_id = family.id WHERE depth > 0 ORDER BY created",
            json.dumps(list(run_ids)),
        )
        return tuple(map(_record, rows))

    async def of_thread(self, thread_id: str, *, newest: bool = False) -> tuple[RunRecord, ...]:
        """The runs of a line of runs, the oldest first, with their results; or the newest alone."""
        order = "DESC LIMIT 1" if newest else "ASC"
        rows = await self.database.select(
            f"{_RUNS} WHERE json_extract(task, '$.thread') = ? AND "
            f"json_extract(task, '$.thread') != '' ORDER BY created {order}",
            thread_id,
        )
        return tuple(map(_record, rows))

    async def descendants(self, run_id: str) -> tuple[str, ...]:
        """Runs that have not ended, of agents that work for this one, however far down."""
        marks = ", ".join("?" * len(FINAL))
        rows = await self.database.select(
            "WITH RECURSIVE family (run_id) AS (SELECT ? UNION SELECT runs.run_id FROM runs "  # noqa: S608
            "JOIN family ON json_extract(runs.task, '$.parent_run_id') = family.run_id) "
            "SELECT run_id FROM runs JOIN family USING (run_id) "
            f"WHERE status NOT IN ({marks}) AND run_id != ?",
            run_id,
            *sorted(FINAL),
            run_id,
        )
        return tuple(row["run_id"] for row in rows)

    async def last_follow_up(self, run_id: str) -> str:
        """The newest run that goes on where this one stopped; itself, if there is none.

        Only an agent made at call time goes on in runs that have a wish as well: what an agent
        hands to others has none.
        """
        rows = await self.database.select(
            "WITH RECURSIVE rounds (run_id, created) AS (SELECT run_id, created FROM runs "
            "WHERE run_id = ? "
            "UNION SELECT runs.run_id, runs.created FROM runs JOIN rounds "
            "ON json_extract(runs.task, '$.parent_run_id') = rounds.run_id "
            "WHERE json_extract(runs.task, '$.wish') IS NOT NULL) "
            "SELECT run_id FROM rounds ORDER BY created DESC LIMIT 1",
            run_id,
        )
        return rows[0]["run_id"] if rows else run_id

    async def removable(self) -> tuple[EndedRun, ...]:
        """Runs that have ended, in that order, but for those that a waiting run is to follow."""
        return tuple(EndedRun(**row) for row in await self.database.select(_REMOVABLE))

    async def remove(self, run_ids: Sequence[str]) -> None:
        """Delete runs, from every table and all at once."""
        where = f"WHERE run_id IN ({', '.join('?' * len(run_ids))})"

        def delete(db: sqlite3.Connection) -> None:
            db.execute(f"{_NOTE_REMOVED} {where} {_NOTE_NEWEST}", run_ids)
            for table in RUN_TABLES:
                db.execute(f"DELETE FROM {table} {where}", run_ids)  # noqa: S608 our own text

        await self.database.atomically(delete)

    async def add_events(self, events: Sequence[Event]) -> None:
        rows = [_event_row(event) for event in events]
        await self.database.atomically(lambda db: db.executemany(_INSERT_EVENT, rows))
        self._told()

    async def versions(self, run_ids: Iterable[str]) -> dict[str, tuple[RunStatus, int]]:
        """Status and number of the last event of each run that is there: another pair whenever
        something has happened in it.
        """
        rows = await self.database.select(
            "SELECT run_id, status, "
            "(SELECT max(seq) FROM events WHERE events.run_id = runs.run_id) AS seq "
            "FROM runs WHERE run_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(run_ids)),
        )
        return {row["run_id"]: (row["status"], row["seq"] or 0) for row in rows}

    async def events(
        self, run_id: str, after: int = 0, limit: int = -1, *, last: bool = False
    ) -> tuple[Event, ...]:
        """Those after a number, in their order; not more than so many, unless that is negative.

        These are the first ones, or the last.
        """
        order = "DESC" if last else "ASC"
        rows = await self.database.select(
            f"SELECT * FROM (SELECT {_EVENT_COLUMNS} FROM events "  # noqa: S608 our own text
            f"WHERE run_id = ? AND seq > ? ORDER BY seq {order} LIMIT ?) ORDER BY seq",
            run_id,
            after,
            limit,
        )
        return tuple(map(_event, rows))

    async def last_event(self, run_id: str, kind: EventKind) -> Event | None:
        """The newest of a kind."""
        rows = await self.database.select(
            f"SELECT {_EVENT_COLUMNS} FROM events WHERE run_id = ? AND kind = ? "  # noqa: S608 our own text
            "ORDER BY seq DESC LIMIT 1",
            run_id,
            kind,
        )
        return _event(rows[0]) if rows else None


def _let(task: Task, why: str = "") -> AuditEntry:
    """That a run may be, in the audit."""
    return AuditEntry(
        project=task.project,
        who=task.caller,
        window=task.window,
        act="run",
        subject=task.agent,
        run_id=task.run_id,
        allowed=True,
        why=why,
    )


_INSERT_RUN = (
    "INSERT INTO runs (run_id, project, agent, caller, window, depth, status, owner, task, "
    "created) VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)"
)
_WAITING_ONES = (
    "questions SET deadline = 0 WHERE status = 'pending_parent_reply'",
    "approvals SET deadline = 0 WHERE decision = 'pending'",
)
_TAKE_UP = (
    "UPDATE runs SET owner = ?, suspended = NULL, status = 'pending', waits = NULL "
    "WHERE run_id = ? AND suspended = ? AND ended IS NULL"
)
_RESTING = """
    WITH RECURSIVE resting (id) AS (
        SELECT run_id FROM runs
        WHERE ended IS NULL AND status IN (SELECT value FROM json_each(:rest))
        UNION SELECT json_extract(child.task, '$.parent_run_id')
        FROM runs AS child JOIN resting ON child.run_id = resting.id WHERE child.depth > 0)
    SELECT id FROM resting
"""
"""Runs that wait for a word, and those that wait for one of these to end."""
_UNDER_WAY_AT = f"""
    SELECT count(*) FROM runs AS held WHERE held.ended IS NULL AND held.begun IS NOT NULL
    AND held.owner NOT IN (SELECT value FROM json_each(:dead)) AND held.depth = {{run}}.depth
    AND (held.project = {{run}}.project OR held.run_id NOT IN ({_RESTING}))
"""  # noqa: S608 our own text
"""What takes a run's slots: one that waits holds a slot of its own project, and of no other."""
_OF_THE_AGENT = " AND held.project = {run}.project AND held.agent = {run}.agent"
_AGENT_IS_FREE = (
    f"({{run}}.depth OR ({_UNDER_WAY_AT}{_OF_THE_AGENT}) < :per_agent)"  # errands have no such cap
)
_FREE = f"""run_id = :run_id AND status = 'pending'
AND ({_UNDER_WAY_AT.format(run="runs")}) < :runs AND {_AGENT_IS_FREE.format(run="runs")}"""
_SLOT_IS_FREE = f"SELECT 1 FROM runs WHERE {_FREE}"  # noqa: S608 our own text
_BEGIN = f"""
UPDATE runs SET status = 'running', begun = :now WHERE {_FREE}
AND NOT (:in_line AND EXISTS (
    SELECT 1 FROM runs AS first WHERE first.ended IS NULL AND first.begun IS NULL
    AND first.depth = runs.depth
    AND (first.waits, first.run_id) < (coalesce(runs.waits, :now), runs.run_id)
    AND first.owner NOT IN (SELECT value FROM json_each(:dead))
    AND ({_UNDER_WAY_AT.format(run="first")}) < :runs AND {_AGENT_IS_FREE.format(run="first")}))
RETURNING run_id
"""  # noqa: S608 our own text


def _slot_values(run_id: str, caps: Caps, dead: Sequence[str]) -> dict[str, object]:
    return {
        "run_id": run_id,
        "runs": caps.runs,
        "per_agent": caps.runs_per_agent,
        "dead": json.dumps(list(dead)),
        "rest": json.dumps(sorted(WAITING)),
    }


def _leading_to(status: RunStatus) -> tuple[str, list[RunStatus]]:
    """A condition, and its values: what the run is may be followed by this."""
    before = [old for old, new in TRANSITIONS.items() if status in new]
    return f"status IN ({', '.join('?' * len(before))})", before


_RUN_COLUMNS = (
    "run_id, project, agent, caller, window, status, reason, owner, depth, created, suspended, "
    "ended, "
    "json_extract(task, '$.prompt') AS prompt, "
    "coalesce(json_extract(task, '$.context'), '') AS context, "
    "json_extract(task, '$.wish') AS wish, "
    "coalesce(json_extract(task, '$.parent_run_id'), '') AS parent_run_id, "
    "coalesce(json_extract(task, '$.session'), '') AS session, "
    "coalesce(json_extract(task, '$.thread'), '') AS thread, "
    "coalesce(substr(json_extract(task, '$.traceparent'), 4, 32), '') AS trace_id, "
    "json_extract(task, '$.workspace') AS workspace"
)
_RUNS = f"SELECT {_RUN_COLUMNS}, result FROM runs"  # noqa: S608 our own text
_RUNS_WITHOUT_RESULTS = f"SELECT {_RUN_COLUMNS}, NULL AS result FROM runs"  # noqa: S608 the same


def _record(row: sqlite3.Row) -> RunRecord:
    result = _result(row["result"]) if row["result"] else None
    wish = json.loads(row["wish"]) if row["wish"] else None
    return RunRecord.model_validate({**row, "wish": wish, "result": result})


def _result(text: str) -> RunResult:
    """As it was kept; what another version of the orchestrator put into it is passed over."""
    kept = {k: v for k, v in json.loads(text).items() if k in RunResult.model_fields}
    if kept.get("reason") not in get_args(Reason):
        kept["reason"] = "machinery"
    return RunResult.model_validate_json(json.dumps(kept))


_NOTE_REMOVED = (
    "INSERT INTO removed_events (project, number) SELECT project, max(number) FROM events "
    "JOIN runs USING (run_id)"
)
_NOTE_NEWEST = (
    "GROUP BY project ON CONFLICT (project) DO UPDATE SET number = max(number, excluded.number)"
)
_EVENT_COLUMNS = "run_id, seq, at, kind, text, data"
_LAST_NUMBER = "SELECT coalesce(max(seq), 0) FROM events WHERE run_id = ?"
_INSERT_EVENT = f"INSERT INTO events ({_EVENT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608 the same


def _event_row(event: Event) -> tuple[object, ...]:
    head = (event.run_id, event.seq, event.at, event.kind, event.text)
    return (*head, json.dumps(event.data))


def _event(row: sqlite3.Row) -> Event:
    """As it was kept; of a kind that another version of the orchestrator knows, a warning."""
    fields = {**row, "data": json.loads(row["data"])}
    if fields["kind"] not in get_args(EventKind):
        fields |= {"kind": "warning", "text": f"{fields['kind']}: {fields['text']}"}
    return Event.model_validate(fields)


def _bytes_of(*columns: str) -> str:
    """What so many columns of a table's rows take together."""
    sizes = [f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns]
    return f"coalesce(sum({' + '.join(sizes)} + {ROW_BYTES}), 0)"


_SIZED = {
    "events": ("text", "data"),
    "questions": ("question", "default_answer", "answer"),
    "approvals": ("input", "new_input", "message"),
    "orders": ("text",),
    "runs": ("task", "result"),
}
"""What an agent or its caller writes at any length, by table: all of RUN_TABLES."""


def _sizes() -> list[str]:
    return [
        f"(SELECT {_bytes_of(*columns)} FROM {table} AS sized WHERE sized.run_id = runs.run_id)"  # noqa: S608 our own text
        for table, columns in _SIZED.items()
    ]


_REMOVABLE = f"""
SELECT run_id, agent, ended,
    {" + ".join(_sizes())} AS size_bytes
FROM runs WHERE ended IS NOT NULL AND run_id NOT IN (
    SELECT wanted.value FROM runs AS waiting, json_each(waiting.task, '$.after') AS wanted
    WHERE waiting.ended IS NULL)
ORDER BY ended, created
"""  # noqa: S608 our own text
