"""Questions, approvals and orders in the store: how processes talk about a run.

The process that holds the run's wire asks and acts; any process of the same state directory
answers. Each answer is one conditional write: of two answers the first counts, and it is in the
store before the agent is told.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import NamedTuple

from orchestrator.domain.exchange import AnsweredBy, Approval, Decision, Order, Question
from orchestrator.store.runs import Store

_QUESTIONS = f"SELECT {', '.join(Question.model_fields)} FROM questions"  # noqa: S608 our own text
_APPROVALS = f"SELECT {', '.join(Approval.model_fields)} FROM approvals"  # noqa: S608 the same
_ORDERS = f"SELECT {', '.join(Order.model_fields)} FROM orders"  # noqa: S608 the same

_UNDER_WAY = "ended IS NULL"
_OF_RUN_UNDER_WAY = f"run_id IN (SELECT run_id FROM runs WHERE {_UNDER_WAY})"  # noqa: S608 our own text
_OPEN_QUESTION = f"status = 'pending_parent_reply' AND {_OF_RUN_UNDER_WAY}"
_OPEN_APPROVAL = f"decision = 'pending' AND {_OF_RUN_UNDER_WAY}"


class OpenExchanges(NamedTuple):
    """Ids of runs that wait for an answer or a decision, for themselves or for a run that works
    for them.
    """

    questions: frozenset[str]
    approvals: frozenset[str]


class Exchanges:
    """Reads and writes questions, approvals and orders."""

    def __init__(self, store: Store) -> None:
        self._database = store.database

    # Questions

    async def ask(self, question: Question) -> None:
        await self._database.write(
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

    async def answer(
        self,
        run_id: str,
        message_id: str,
        answer: str,
        by: AnsweredBy = "caller",
        whom: str = "",
    ) -> bool:
        """False if it is not open any more: answered, or asked by a run that has ended."""
        return await self._changed(
            "UPDATE questions SET status = 'parent_replied', answer = ?, answered = ?, "  # noqa: S608 our own text
            f"answered_by = ?, whom = ? WHERE run_id = ? AND message_id = ? AND {_OPEN_QUESTION}",
            answer,
            time.time(),
            by,
            whom,
            run_id,
            message_id,
        )

    async def expire(self, run_id: str, message_id: str, by: AnsweredBy) -> bool:
        """Close a question that nobody has answered; False if it is not open any more."""
        return await self._changed(
            "UPDATE questions SET status = 'unanswered', answered_by = ? "  # noqa: S608 our own text
            f"WHERE run_id = ? AND message_id = ? AND {_OPEN_QUESTION}",
            by,
            run_id,
            message_id,
        )

    async def acknowledge(self, run_id: str, message_id: str) -> bool:
        """Note that the agent has the answer; False if it had it already, or there is none."""
        return await self._changed(
            "UPDATE questions SET status = 'acknowledged_by_subagent' "
            "WHERE run_id = ? AND message_id = ? AND status = 'parent_replied'",
            run_id,
            message_id,
        )

    async def question(self, run_id: str, message_id: str) -> Question | None:
        rows = await self._database.select(
            f"{_QUESTIONS} WHERE run_id = ? AND message_id = ?", run_id, message_id
        )
        return Question(**rows[0]) if rows else None

    async def questions(self, run_id: str = "", *, pending: bool = False) -> tuple[Question, ...]:
        """Of one run, or of all, in the order they were asked.

        Those that wait for an answer are of runs that have not ended.
        """
        where = _OPEN_QUESTION if pending else "1"
        rows = await self._database.select(
            f"{_QUESTIONS} WHERE {where} AND (run_id = ? OR ? = '') ORDER BY asked, message_id",
            run_id,
            run_id,
        )
        return tuple(Question(**row) for row in rows)

    # Approvals

    async def request(self, approval: Approval) -> bool:
        """False if the run has asked about a call of this id before."""
        return await self._changed(
            "INSERT OR IGNORE INTO approvals (call_id, run_id, tool, input, decision, asked, "
            "deadline, approval_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            approval.call_id,
            approval.run_id,
            approval.tool,
            json.dumps(approval.input),
            approval.decision,
            approval.asked,
            approval.deadline,
            approval.approval_by,
        )

    async def decide(
        self,
        run_id: str,
        call_id: str,
        decision: Decision,
        *,
        new_input: dict[str, object] | None = None,
        message: str = "",
        whom: str = "",
    ) -> bool:
        """False if it has been decided already, or its run has ended."""
        return await self._changed(
            "UPDATE approvals SET decision = ?, new_input = ?, message = ?, whom = ? "  # noqa: S608 our own text
            f"WHERE run_id = ? AND call_id = ? AND {_OPEN_APPROVAL}",
            decision,
            None if new_input is None else json.dumps(new_input),
            message,
            whom,
            run_id,
            call_id,
        )

    async def approval(self, run_id: str, call_id: str) -> Approval | None:
        rows = await self._database.select(
            f"{_APPROVALS} WHERE run_id = ? AND call_id = ?", run_id, call_id
        )
        return _approval(rows[0]) if rows else None

    async def approvals(self, run_id: str = "", *, pending: bool = False) -> tuple[Approval, ...]:
        """Of one run, or of all, in the order they were asked for; see `questions`."""
        where = _OPEN_APPROVAL if pending else "1"
        rows = await self._database.select(
            f"{_APPROVALS} WHERE {where} AND (run_id = ? OR ? = '') ORDER BY asked, call_id",
            run_id,
            run_id,
        )
        return tuple(map(_approval, rows))

    async def tell(self, run_id: str, call_id: str) -> bool:
        """Note that the agent gets the decision; False if it has had it."""
        return await self._changed(
            "UPDATE approvals SET told = ? WHERE run_id = ? AND call_id = ? AND told IS NULL",
            time.time(),
            run_id,
            call_id,
        )

    async def untold(self, run_id: str) -> frozenset[str]:
        """Calls of a run of whose decision the agent does not know."""
        sql = "SELECT call_id FROM approvals WHERE run_id = ? AND told IS NULL"
        return frozenset(row["call_id"] for row in await self._database.select(sql, run_id))

    # Both

    async def waiting(self) -> frozenset[str]:
        """The runs under way that wait for a word, or have not heard one that was given."""
        rows = await self._database.select(
            "SELECT run_id FROM questions WHERE "  # noqa: S608 our own text
            f"status IN ('pending_parent_reply', 'parent_replied') AND {_OF_RUN_UNDER_WAY} "
            "UNION SELECT run_id FROM approvals WHERE told IS NULL "
            "AND (decision = 'pending' OR (decision IN ('approved', 'rejected') AND whom != '')) "
            f"AND {_OF_RUN_UNDER_WAY}"
        )
        return frozenset(row["run_id"] for row in rows)

    async def asking(self) -> OpenExchanges:
        """The runs that wait, with those that they work for, however far up; one query."""
        rows = await self._database.select(
            "WITH RECURSIVE asking (run_id, what) AS ("  # noqa: S608 our own text
            f"SELECT run_id, 'question' FROM questions WHERE {_OPEN_QUESTION} "
            f"UNION SELECT run_id, 'approval' FROM approvals WHERE {_OPEN_APPROVAL} "
            "UNION SELECT json_extract(runs.task, '$.parent_run_id'), what "
            "FROM asking JOIN runs USING (run_id)) SELECT run_id, what FROM asking"
        )
        return OpenExchanges(
            questions=frozenset(run_id for run_id, what in rows if what == "question"),
            approvals=frozenset(run_id for run_id, what in rows if what == "approval"),
        )

    # Orders

    async def order(self, run_id: str, kind: str, text: str = "", whom: str = "") -> bool:
        """False if the run has ended: no process would carry it out."""
        return await self._changed(
            "INSERT INTO orders (run_id, kind, text, whom, created) "  # noqa: S608 our own text
            f"SELECT run_id, ?, ?, ?, ? FROM runs WHERE run_id = ? AND {_UNDER_WAY}",
            kind,
            text,
            whom,
            time.time(),
            run_id,
        )

    async def open_orders(self) -> tuple[Order, ...]:
        """Those of runs under way that no process has taken, the oldest first."""
        rows = await self._database.select(
            f"{_ORDERS} WHERE taken IS NULL AND {_OF_RUN_UNDER_WAY} ORDER BY order_id"
        )
        return tuple(Order(**row) for row in rows)

    async def take(self, order_id: int) -> bool:
        """False if another process has taken it: an order is carried out once."""
        return await self._changed(
            "UPDATE orders SET taken = ? WHERE order_id = ? AND taken IS NULL",
            time.time(),
            order_id,
        )

    async def put_back(self, order_id: int) -> None:
        """Leave an order to the next process that looks: it could not be carried out after all."""
        await self._database.write("UPDATE orders SET taken = NULL WHERE order_id = ?", order_id)

    async def unheard(self, run_id: str) -> tuple[str, ...]:
        """What callers said and the agent has not heard; final when its run has ended."""
        rows = await self._database.select(
            "SELECT text FROM orders WHERE run_id = ? AND kind != 'cancel' AND taken IS NULL "
            "ORDER BY order_id",
            run_id,
        )
        return tuple(row["text"] for row in rows)

    async def _changed(self, sql: str, *values: object) -> bool:
        return await self._database.write(sql, *values) == 1


def _approval(row: sqlite3.Row) -> Approval:
    new_input = json.loads(row["new_input"]) if row["new_input"] else None
    return Approval(**{**row, "input": json.loads(row["input"]), "new_input": new_input})
