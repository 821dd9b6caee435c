"""Questions, approvals and orders in the store: how processes talk about a run.

Whoever holds the run's wire asks and acts; anybody of the same state directory answers. Each answer
is one conditional write, so that it is given once, and kept before anybody is told.
"""

from __future__ import annotations

import json
import time

from orchestrator.domain.exchange import Approval, Decision, Order, Question
from orchestrator.engine.store import Store

SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (
    message_id TEXT PRIMARY KEY, run_id TEXT NOT NULL, question TEXT NOT NULL,
    status TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL,
    default_answer TEXT NOT NULL, answer TEXT, answered REAL);
CREATE INDEX IF NOT EXISTS questions_by_run ON questions (run_id);
CREATE TABLE IF NOT EXISTS approvals (
    call_id TEXT NOT NULL, run_id TEXT NOT NULL, tool TEXT NOT NULL, input TEXT NOT NULL,
    decision TEXT NOT NULL, asked REAL NOT NULL, deadline REAL NOT NULL, new_input TEXT,
    message TEXT NOT NULL DEFAULT '', PRIMARY KEY (run_id, call_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS orders (
    order_id INTEGER PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,
    created REAL NOT NULL, taken REAL);
CREATE INDEX IF NOT EXISTS open_orders ON orders (taken, run_id);
"""

_QUESTIONS = (
    "SELECT message_id, run_id, question, status, asked, deadline, default_answer, answer, "
    "answered FROM questions"
)
_APPROVALS = (
    "SELECT call_id, run_id, tool, input, decision, asked, deadline, new_input, message "
    "FROM approvals"
)


class Exchanges:
    """Reads and writes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        store.create(SCHEMA)

    # Questions

    async def ask(self, question: Question) -> None:
        await self._store.write(
            "INSERT INTO questions (message_id, run_id, question, status, asked, deadline, "
            "default_answer) VALUES (?, ?, ?, ?, ?, ?, ?)",
            question.message_id,
            question.run_id,
            question.question,
            question.status,
            question.asked,
            question.deadline,
            question.default_answer,
        )

    async def answer(self, run_id: str, message_id: str, answer: str) -> bool:
        """False if it is not open any more."""
        return await self._changed(
            "UPDATE questions SET status = 'parent_replied', answer = ?, answered = ? "
            "WHERE run_id = ? AND message_id = ? AND status = 'pending_parent_reply'",
            answer,
            time.time(),
            run_id,
            message_id,
        )

    async def acknowledge(self, run_id: str, message_id: str) -> bool:
        """The agent has it; False if it has it already, or there is none."""
        return await self._changed(
            "UPDATE questions SET status = 'acknowledged_by_subagent' "
            "WHERE run_id = ? AND message_id = ? AND status = 'parent_replied'",
            run_id,
            message_id,
        )

    async def question(self, run_id: str, message_id: str) -> Question | None:
        rows = await self._store.select(
            f"{_QUESTIONS} WHERE run_id = ? AND message_id = ?", run_id, message_id
        )
        return _question(rows[0]) if rows else None

    async def questions(self, run_id: str = "", *, pending: bool = False) -> tuple[Question, ...]:
        """Of one run, or of all, in the order they were asked."""
        where = "status = 'pending_parent_reply'" if pending else "1"
        rows = await self._store.select(
            f"{_QUESTIONS} WHERE {where} AND (run_id = ? OR ? = '') ORDER BY asked, message_id",
            run_id,
            run_id,
        )
        return tuple(_question(row) for row in rows)

    # Approvals

    async def request(self, approval: Approval) -> None:
        await self._store.write(
            "INSERT OR REPLACE INTO approvals (call_id, run_id, tool, input, decision, asked, "
            "deadline) VALUES (?, ?, ?, ?, ?, ?, ?)",
            approval.call_id,
            approval.run_id,
            approval.tool,
            json.dumps(approval.input),
            approval.decision,
            approval.asked,
            approval.deadline,
        )

    async def decide(
        self,
        run_id: str,
        call_id: str,
        decision: Decision,
        *,
        new_input: dict[str, object] | None = None,
        message: str = "",
    ) -> bool:
        """False if it has been decided already."""
        return await self._changed(
            "UPDATE approvals SET decision = ?, new_input = ?, message = ? "
            "WHERE run_id = ? AND call_id = ? AND decision = 'pending'",
            decision,
            None if new_input is None else json.dumps(new_input),
            message,
            run_id,
            call_id,
        )

    async def approval(self, run_id: str, call_id: str) -> Approval | None:
        rows = await self._store.select(
            f"{_APPROVALS} WHERE run_id = ? AND call_id = ?", run_id, call_id
        )
        return _approval(rows[0]) if rows else None

    async def approvals(self, run_id: str = "", *, pending: bool = False) -> tuple[Approval, ...]:
        """Of one run, or of all, in the order they were asked for."""
        where = "decision = 'pending'" if pending else "1"
        rows = await self._store.select(
            f"{_APPROVALS} WHERE {where} AND (run_id = ? OR ? = '') ORDER BY asked, call_id",
            run_id,
            run_id,
        )
        return tuple(_approval(row) for row in rows)

    # Orders

    async def order(self, run_id: str, kind: str, text: str = "") -> None:
        await self._store.write(
            "INSERT INTO orders (run_id, kind, text, created) VALUES (?, ?, ?, ?)",
            run_id,
            kind,
            text,
            time.time(),
        )

    async def open_orders(self) -> tuple[Order, ...]:
        rows = await self._store.select(
            "SELECT order_id, run_id, kind, text FROM orders WHERE taken IS NULL ORDER BY order_id"
        )
        keys = ("order_id", "run_id", "kind", "text")
        return tuple(Order.model_validate(dict(zip(keys, row, strict=True))) for row in rows)

    async def take(self, order_id: int) -> bool:
        """False if somebody has it already: an order is carried out once."""
        return await self._changed(
            "UPDATE orders SET taken = ? WHERE order_id = ? AND taken IS NULL",
            time.time(),
            order_id,
        )

    async def _changed(self, sql: str, *values: object) -> bool:
        return await self._store.write(sql, *values) == 1


def _question(row: tuple[str, ...]) -> Question:
    keys = ("message_id", "run_id", "question", "status", "asked", "deadline", "default_answer")
    fields = dict(zip((*keys, "answer", "answered"), row, strict=True))
    return Question.model_validate(fields)


def _approval(row: tuple[str, ...]) -> Approval:
    keys = ("call_id", "run_id", "tool", "input", "decision", "asked", "deadline", "new_input")
    fields: dict[str, object] = dict(zip((*keys, "message"), row, strict=True))
    fields["input"] = json.loads(row[3])
    fields["new_input"] = json.loads(row[7]) if row[7] else None
    return Approval.model_validate(fields)
