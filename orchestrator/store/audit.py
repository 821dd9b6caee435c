"""Decisions in the store. A row is written before the act: what is not written is not done."""

from __future__ import annotations

import sqlite3
import time
from typing import get_args

from orchestrator.domain import Frozen
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.store.database import Database

MAX_SUBJECT = 300
MAX_WHY = 500

_AUDIT_COLUMNS = ", ".join(AuditEntry.model_fields)


class AuditQuery(Frozen):
    """Which decisions are wanted; what is left empty does not matter."""

    projects: tuple[str, ...] | None = None
    who: str = ""
    act: str = ""
    run_id: str = ""
    allowed: bool | None = None
    since: float = 0.0


class Audit:
    """Writes and reads decisions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def note(self, entry: AuditEntry) -> None:
        """Write a decision down; StoreFailed if it cannot be, and then it must not be acted on."""
        await self._database.write(INSERT_DECISION, *decision_values(entry))

    async def find(
        self, query: AuditQuery, *, after: int = 0, limit: int = 50
    ) -> tuple[AuditEntry, ...]:
        """The last ones that fit, in the order they were written."""
        conditions = ["number > ?", "at >= ?"]
        values: list[object] = [after, query.since]
        for column in ("who", "act", "run_id"):
            if value := getattr(query, column):
                conditions.append(f"{column} = ?")
                values.append(value)
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
