"""Where a run meets its caller: its questions, and tool calls that have to be approved.

An answer may come from this process or from another one. It is in the store before the agent or a
listener hears of it, and it is given once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from orchestrator.domain.agent import Asking
from orchestrator.domain.exchange import Approval, ApprovalBy, Question
from orchestrator.domain.result import RunStatus
from orchestrator.engine.clock import Clock
from orchestrator.engine.record import Record
from orchestrator.engine.tasks.news import News, wait_for_news
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

MAX_QUESTION = 20_000
"""Characters of one question; the rest is cut."""

NO_ANSWER = "No answer came in time. Go on with your best judgement, and say so in your answer."
NOT_APPROVED = "No approval came in time; do without it."
ASKED_TWICE = "A call of this id has been asked about before; make a new call."
WITHDRAWN = "(the agent does not wait for an answer any more)"
"""The answer to a question whose run went on, or ended, without one."""


class Desk:
    """The open questions and approvals of one run."""

    def __init__(
        self,
        run_id: str,
        store: Store,
        exchanges: Exchanges,
        record: Record,
        clock: Clock,
        asking: Asking,
        news: News,
        approval_by: ApprovalBy = "parent",
    ) -> None:
        self._run_id = run_id
        self._store = store
        self._exchanges = exchanges
        self._record = record
        self._clock = clock
        self._asking = asking
        self._news = news
        self._approval_by = approval_by
        self._open: dict[str, str] = {}
        """What is waited for: its id -> "question" or "approval"."""
        self._replied: set[str] = set()

    async def ask(self, question: str, default: str | None = None) -> str:
        """Ask the run's caller; the answer, or the default one when none comes in time."""
        now = time.time()
        asked = Question(
            message_id="m" + secrets.token_hex(4),
            run_id=self._run_id,
            question=self._record.clean(question)[:MAX_QUESTION],
            asked=now,
            deadline=now + self._asking.answer_seconds,
            default_answer=NO_ANSWER if default is None else self._record.clean(default),
        )
        await self._exchanges.ask(asked)
        self._record.note("asked", asked.question, message_id=asked.message_id)
        try:
            async with self._waiting(asked.message_id, "question"):
                answer = await self._answer_to(asked)
                self._replied.add(asked.message_id)
            self._record.note("answered", answer, message_id=asked.message_id)
            await self._record.flush()  # first this: what is acknowledged has been told
            await self._exchanges.acknowledge(self._run_id, asked.message_id)
        except BaseException:  # the agent waits no more: an answer from now on would be lost
            with anyio.CancelScope(shield=True):
                await self._exchanges.answer(self._run_id, asked.message_id, WITHDRAWN)
            raise
        finally:
            self._replied.discard(asked.message_id)
            with anyio.CancelScope(shield=True):
                await self._set_status()
        return answer

    async def approve(self, call_id: str, tool: str, input: dict[str, object]) -> Approval:  # noqa: A002 as the CLI calls it
        """Have the caller decide about a tool call; rejected when no decision comes in time."""
        now = time.time()
        wanted = Approval(
            call_id=call_id,
            run_id=self._run_id,
            tool=tool,
            input=_object(self._record.clean_value(input)),
            asked=now,
            deadline=now + self._asking.approval_seconds,
            approval_by=self._approval_by,
        )
        if not await self._exchanges.request(wanted):
            # Or the approval of one call could be used for another, which no caller has seen.
            self._record.note("warning", f"{tool} asks for a word about {call_id} twice; refused")
            return wanted.model_copy(update={"decision": "rejected", "message": ASKED_TWICE})
        self._record.note("approval_asked", f"{tool}", call_id=call_id, tool=tool, input=input)
        try:
            async with self._waiting(call_id, "approval"):
                decided = await self._decision_on(wanted)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.withdraw(call_id)
            raise
        self._record.note("approval_decided", f"{tool}: {decided.decision}", call_id=call_id)
        return decided

    async def withdraw(self, call_id: str) -> None:
        """The agent does not want it any more."""
        await self._exchanges.decide(self._run_id, call_id, "rejected", message="it was withdrawn")
        self._news.tell()

    async def _answer_to(self, asked: Question) -> str:
        while True:
            changed = self._news.next()
            now = await self._exchanges.question(self._run_id, asked.message_id)
            if now is not None and now.answer is not None:
                return now.answer
            if time.time() >= asked.deadline:
                # Unless an answer comes at this very moment: then that one counts.
                default = asked.default_answer
                if await self._exchanges.answer(self._run_id, asked.message_id, default):
                    return default
                now = await self._exchanges.question(self._run_id, asked.message_id)
                return default if now is None or now.answer is None else now.answer
            await wait_for_news(changed, asked.deadline - time.time())

    async def _decision_on(self, wanted: Approval) -> Approval:
        while True:
            changed = self._news.next()
            now = await self._exchanges.approval(self._run_id, wanted.call_id)
            if now is not None and now.decision != "pending":
                return now
            if time.time() >= wanted.deadline:
                await self._exchanges.decide(
                    self._run_id, wanted.call_id, "timed_out", message=NOT_APPROVED
                )
                now = await self._exchanges.approval(self._run_id, wanted.call_id)
                if now is None or now.decision == "pending":  # the run has ended
                    return wanted.model_copy(
                        update={"decision": "timed_out", "message": NOT_APPROVED}
                    )
                return now
            await wait_for_news(changed, wanted.deadline - time.time())

    @asynccontextmanager
    async def _waiting(self, what: str, kind: str) -> AsyncIterator[None]:
        """The run's clock stops, and its status says why."""
        with self._clock.stopped():
            self._open[what] = kind
            try:
                await self._set_status()
                yield
            finally:
                del self._open[what]
                with anyio.CancelScope(shield=True):
                    await self._set_status()

    async def _set_status(self) -> None:
        await self._record.flush()
        await self._store.set_status(self._run_id, self._status())
        self._news.tell()

    def _status(self) -> RunStatus:
        if "question" in self._open.values():
            return "waiting_parent_reply"
        if self._open:
            return "paused"
        return "parent_replied" if self._replied else "running"


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}
