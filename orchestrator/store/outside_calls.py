"""What agents outside have asked for: a decision in the audit each, and what became of it."""

from __future__ import annotations

import sqlite3

from orchestrator.domain.audit import AuditEntry
from orchestrator.domain.outside import OutsideCall
from orchestrator.store.audit import INSERT_DECISION, Audit, AuditQuery, decision_values
from orchestrator.store.database import Database

MAX_NAME = 200
"""Of what a caller wrote as an id or a name."""

_COLUMNS = ", ".join(OutsideCall.model_fields)
_MARKS = ", ".join(f":{name}" for name in OutsideCall.model_fields)
_NAMES = ("agent_id", "claimed", "server", "tool", "rule")


class OutsideCalls:
    """Writes and reads them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, entry: AuditEntry, call: OutsideCall) -> int:
        """Write down a decision before it is acted on; its number. StoreFailed if it cannot be."""
        values = call.model_dump()
        values |= {name: values[name][:MAX_NAME] for name in _NAMES}

        def write(db: sqlite3.Connection) -> int:
            number = db.execute(INSERT_DECISION, decision_values(entry)).lastrowid or 0
            sql = f"INSERT INTO outside_calls ({_COLUMNS}) VALUES ({_MARKS})"  # noqa: S608 our own text
            db.execute(sql, {**values, "number": number})
            return number

        return await self._database.atomically(write)

    async def ended(self, number: int, latency_ms: float, code: str = "") -> None:
        """Write down how long a call took, and how it failed if it did."""
        await self._database.write(
            "UPDATE outside_calls SET latency_ms = ?, code = ? WHERE number = ?",
            latency_ms,
            code,
            number,
        )

    async def find(
        self, query: AuditQuery, *, after: int = 0, limit: int = 50
    ) -> tuple[tuple[AuditEntry, OutsideCall], ...]:
        """The last ones that fit, in the order they were written, with the decision of each."""
        only = query.model_copy(update={"act": "gateway"})
        entries = await Audit(self._database).find(only, after=after, limit=limit)
        if not entries:
            return ()
        rows = await self._database.select(
            f"SELECT {_COLUMNS} FROM outside_calls WHERE number BETWEEN ? AND ?",  # noqa: S608 the same
            entries[0].number,
            entries[-1].number,
        )
        calls = {row["number"]: OutsideCall.model_validate(dict(row)) for row in rows}
        return tuple((each, calls[each.number]) for each in entries if each.number in calls)
