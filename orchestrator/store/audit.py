"""Decisions in the store. A row is written before the act: what is not written is not done."""

from __future__ import annotations

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import get_args

import anyio

from orchestrator.domain import Frozen
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.store.database import Database

MAX_SUBJECT = 300
MAX_WHY = 500

MAX_REFUSALS = 500
"""Of one caller that are written down in REFUSALS_SECONDS, each once: different servers, tools,
agent ids, places."""

MAX_CALLS_EACH = 1000
"""Calls from outside of one caller that have a row each in REFUSALS_SECONDS; of more, those of the
same tool by the same agent are one row."""

REFUSALS_SECONDS = 3600.0
"""After so long the same refusal is written down again."""

_AUDIT_COLUMNS = ", ".join(AuditEntry.model_fields)


class AuditQuery(Frozen):
    """Which decisions are wanted; what is left empty does not matter."""

    projects: tuple[str, ...] | None = None
    who: str = ""
    act: str = ""
    run_id: str = ""
    unseen: bool = True
    """Also that a caller may not see a run; it would learn by that that there is one."""
    allowed: bool | None = None
    since: float = 0.0


class Audit:
    """Writes and reads decisions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, entry: AuditEntry) -> int:
        """Write a decision down; its number. StoreFailed if it cannot be, and then it must not be
        acted on.
        """
        return await self._database.atomically(
            lambda db: db.execute(INSERT_DECISION, decision_values(entry)).lastrowid or 0
        )

    async def amend(self, number: int, why: str) -> None:
        """Say something else of why a decision was made, such as how often."""
        sql = "UPDATE audit SET why = ? WHERE number = ?"
        await self._database.write(sql, why[:MAX_WHY], number)

    async def find(
        self, query: AuditQuery, *, after: int = 0, before: int | None = None, limit: int = 50
    ) -> tuple[AuditEntry, ...]:
        """The last ones that fit, in the order they were written."""
        conditions = ["number > ?", "at >= ?"]
        values: list[object] = [after, query.since]
        if before is not None:
            conditions.append("number < ?")
            values.append(before)
        for column in ("who", "act", "run_id"):
            if value := getattr(query, column):
                conditions.append(f"{column} = ?")
                values.append(value)
        if not query.unseen:
            conditions.append("NOT (act = 'see' AND NOT allowed)")
        if query.allowed is not None:
            conditions.append("allowed = ?")
            values.append(query.allowed)
        if query.projects is not None:
            conditions.append(f"project IN ({', '.join('?' * len(query.projects))})")
            values += query.projects
        rows = await self._database.select(
            f"SELECT * FROM (SELECT {_AUDIT_COLUMNS} FROM audit WHERE {' AND '.join(conditions)} "  # noqa: S608 our own text
            "ORDER BY number DESC LIMIT ?) ORDER BY number",
            *values,
            limit,
        )
        return tuple(map(_entry, rows))

    async def remove_before(self, at: float) -> int:
        """Delete what is older; how many there were."""
        return await self._database.write("DELETE FROM audit WHERE at < ?", at)

    async def keep_last(self, count: int) -> int:
        """Delete all but so many; how many there were."""
        return await self._database.write(
            "DELETE FROM audit WHERE number <= (SELECT max(number) FROM audit) - ?", count
        )


WriteDecision = Callable[[AuditEntry], Awaitable[int]]
"""Writes one down; its number."""


class FirstOnes:
    """Which of a caller's acts have a row each: so many in a while."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._since = time.monotonic()
        self._taken: Counter[str] = Counter()

    def take(self, who: str) -> bool:
        """Whether one more has."""
        if time.monotonic() - self._since > self._seconds:
            self._taken, self._since = Counter(), time.monotonic()
        self._taken[who] += 1
        return self._taken[who] <= self._most


class OnceEach:
    """Decisions in the audit that can be asked for again and again: each is one row, and so many
    different ones of a kind are written at all. How often something was refused is added to its
    row whenever that has doubled: whoever asks without end fills no disk, and pushes no older
    decision out of the audit.
    """

    def __init__(
        self, audit: Audit, most: int, seconds: float = math.inf, *, counts_allowed: bool = False
    ) -> None:
        """After so many `seconds` the same is written down again. How often something was let is
        told as well, if asked for.
        """
        self._counts_allowed = counts_allowed
        self._audit = audit
        self._most = most
        self._seconds = seconds
        self._since = time.monotonic()
        self._rows: dict[tuple[str, AuditAct, bool], dict[str, _Row]] = {}
        self._one = anyio.Lock()

    async def note(
        self, entry: AuditEntry, key: str = "", write: WriteDecision | None = None
    ) -> None:
        """Write a decision down, if it has to be, before it is acted on. `key` tells it from others
        of its kind, if not its subject does.
        """
        async with self._one:  # a second one of the kind waits until the row is there
            if time.monotonic() - self._since > self._seconds:
                self._rows, self._since = {}, time.monotonic()
            rows = self._rows.setdefault((entry.who, entry.act, entry.allowed), {})
            key = (key or entry.subject)[:MAX_SUBJECT]
            if key not in rows and len(rows) >= self._most:
                key, why = MORE, f"after {self._most} of them, no more are written down"
                entry = entry.model_copy(update={"subject": MORE, "why": why})
            row = rows.get(key)
            if row is None:
                number = await (write or self._audit.note)(entry)
                rows[key] = _Row(number, entry.why[:MAX_WHY])
                return
            row.times += 1
            counts = self._counts_allowed or not entry.allowed
            if counts and row.times.bit_count() == 1:
                counted = f" (at least {row.times} times)"
                await self._audit.amend(row.number, row.why[: MAX_WHY - len(counted)] + counted)


@dataclass
class _Row:
    number: int
    why: str
    times: int = 1


MORE = "(more)"
"""In the place of a subject: those that are too many."""

INSERT_DECISION = (
    "INSERT INTO audit (at, project, who, window, act, subject, run_id, allowed, why) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def decision_values(entry: AuditEntry) -> tuple[object, ...]:
    """What INSERT_DECISION takes."""
    return (
        entry.at or time.time(),
        entry.project,
        entry.who,
        entry.window,
        entry.act,
        entry.subject[:MAX_SUBJECT],
        entry.run_id,
        entry.allowed,
        entry.why[:MAX_WHY],
    )


def _entry(row: sqlite3.Row) -> AuditEntry:
    """As it was written; an act that a newer orchestrator knows is told as what it is about."""
    fields = dict(row)
    if fields["act"] not in get_args(AuditAct):
        fields |= {"act": "run", "why": f"{fields['act']}: {fields['why']}"}
    return AuditEntry.model_validate(fields)
