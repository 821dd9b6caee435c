"""Where a run meets its caller: its questions, and tool calls that have to be approved.

An answer may come from this process or from another one. It is in the store before the agent or a
listener hears of it, and it is given once.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from orchestrator.domain.agent import Asking
from orchestrator.domain.container import MIB
from orchestrator.domain.exchange import AnsweredBy, Approval, ApprovalBy, Question
from orchestrator.domain.result import RunStatus
from orchestrator.engine.clock import Clock
from orchestrator.engine.earlier import Earlier
from orchestrator.engine.record import Record
from orchestrator.engine.tasks.news import News, wait_for_news
from orchestrator.errors import CallerRefused
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

MAX_QUESTION = 20_000
"""Characters of one question; the rest is cut."""

MAX_QUESTIONS = 100
"""Of one run: no caller reads more."""

MAX_APPROVALS = 1000
"""Calls of one run that the caller is asked about, or that would have been the second of their id:
any process in the container can make them up."""

APPROVAL_BYTES = 8 * MIB
"""Of the inputs of all of them together."""

NO_ANSWER = "No answer came in time. Go on with your best judgement, and say so in your answer."
BY_DEFAULT = "(by default: no answer came in time) "
ANSWERED_BEFORE = "(as before the orchestrator was killed) "
NOT_APPROVED = "No approval came in time; do without it."
ASKED_TWICE = "A call of this id has been asked about before; make a new call."
ASKED_TOO_OFTEN = (
    f"that were {MAX_QUESTIONS} questions, and no more are passed on; go on with your best "
    "judgement, and say so in your answer"
)
NO_MORE_APPROVALS = "the caller has been asked about too many calls already; do without this one"


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
        agent: str = "",
        earlier: Earlier | None = None,
    ) -> None:
        """`earlier` is what the run, or the one that it works for, was told before its orchestrator
        was killed; the name of the agent tells whose words are whose.
        """
        self._run_id = run_id
        self._store = store
        self._exchanges = exchanges
        self._record = record
        self._clock = clock
        self._asking = asking
        self._news = news
        self._approval_by = approval_by
        self._agent = agent
        self.earlier = earlier or Earlier()
        self._open: dict[str, str] = {}
        """What is waited for: its id -> "question" or "approval"."""
        self._replied: set[str] = set()
        self._questions = self._approvals = self._approval_bytes = 0
        self._told = False
        """That no more calls are asked about."""

    async def ask(self, question: str, default: str | None = None) -> str:
        """Ask the run's caller; the answer, or the default one when none comes in time.

        CallerRefused when there were too many questions.
        """
        self._questions += 1
        if self._questions > MAX_QUESTIONS:
            if self._questions == MAX_QUESTIONS + 1:
                self._record.note("warning", f"{MAX_QUESTIONS} questions; no more are passed on")
            raise CallerRefused(ASKED_TOO_OFTEN)
        known = self.earlier.answer(self._agent, self._record.clean(question)[:MAX_QUESTION])
        if known is not None and known.answer is not None:
            said = f"{ANSWERED_BEFORE}{known.answer}"
            self._record.note("answered", said, message_id=known.message_id, by=known.answered_by)
            return known.answer
        now = time.time()
        asked = Question(
            message_id="m" + secrets.token_hex(4),
            run_id=self._run_id,
            question=self._record.clean(question)[:MAX_QUESTION],
            asked=now,
            deadline=now + self._asking.answer_seconds,
            default_answer=NO_ANSWER
            if default is None
            else self._record.clean(default)[:MAX_QUESTION],
        )
        await self._exchanges.ask(asked)
        self._record.note(
            "asked",
            asked.question,
            message_id=asked.message_id,
            default_answer=asked.default_answer,
        )
        try:
            async with self._waiting(asked.message_id, "question"):
                answer, by = await self._answer_to(asked)
                self._replied.add(asked.message_id)
            said = f"{BY_DEFAULT}{answer}" if by == "default" else answer
            self._record.note("answered", said, message_id=asked.message_id, by=by)
            await self._record.flush()  # first this: what is acknowledged has been told
            await self._exchanges.acknowledge(self._run_id, asked.message_id)
        except BaseException:  # the agent waits no more: an answer from now on would be lost
            with anyio.CancelScope(shield=True):
                await self._exchanges.expire(self._run_id, asked.message_id, "withdrawn")
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
            input=_object(await self._record.cleaned(input)),
            asked=now,
            deadline=now + self._asking.approval_seconds,
            approval_by=self._approval_by,
        )
        known = self.earlier.decision(self._agent, tool, wanted.input, self._approval_by)
        if known is not None and await self._may_use(known):
            said = f"{tool}: {ANSWERED_BEFORE}{known.decision}"
            self._record.note(
                "approval_decided", said, call_id=known.call_id, decision=known.decision
            )
            await self._record.flush()
            return known
        if not self._may_ask_about(wanted):
            return wanted.model_copy(update={"decision": "rejected", "message": NO_MORE_APPROVALS})
        if not await self._exchanges.request(wanted):
            # Or the approval of one call could be used for another, which no caller has seen.
            self._record.note(
                "warning", f"{tool} asks a second time to be approved, as {call_id}; refused"
            )
            return wanted.model_copy(update={"decision": "rejected", "message": ASKED_TWICE})
        size = len(json.dumps(wanted.input, ensure_ascii=False))
        self._record.note(
            "approval_asked", tool, call_id=call_id, tool=tool, input=input, input_chars=size
        )
        try:
            async with self._waiting(call_id, "approval"):
                decided = await self._decision_on(wanted)
            await self._exchanges.tell(self._run_id, call_id)  # first this: it is good for one call
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.withdraw(call_id)
            raise
        self._record.note(
            "approval_decided",
            f"{tool}: {decided.decision}",
            call_id=call_id,
            decision=decided.decision,
        )
        return decided

    async def tell_earlier(self) -> None:
        """Note that the agent has been told the answers of its earlier life."""
        for asked in self.earlier.unheard():
            message_id, by = asked.message_id, asked.answered_by
            self._record.note("answered", asked.answer or "", message_id=message_id, by=by)
            await self._record.flush()  # first this: what is acknowledged has been told
            await self._exchanges.acknowledge(asked.run_id, message_id)

    async def _may_use(self, earlier: Approval) -> bool:
        """Whether an earlier decision still counts; an approval is for one call."""
        told = await self._exchanges.tell(earlier.run_id, earlier.call_id)
        return told or not earlier.approved

    def _may_ask_about(self, wanted: Approval) -> bool:
        self._approvals += 1
        self._approval_bytes += len(json.dumps(wanted.input))
        may = self._approvals <= MAX_APPROVALS and self._approval_bytes <= APPROVAL_BYTES
        if not may and not self._told:
            self._told = True
            self._record.note("warning", "too many calls to be approved; no more are asked about")
        return may

    async def withdraw(self, call_id: str) -> None:
        """The agent does not want it any more."""
        await self._exchanges.decide(self._run_id, call_id, "rejected", message="it was withdrawn")
        self._news.tell()

    async def _answer_to(self, asked: Question) -> tuple[str, AnsweredBy]:
        """The answer, and whose it is."""
        while True:
            changed = self._news.next()
            now = await self._exchanges.question(self._run_id, asked.message_id)
            if now is not None and now.answer is not None:
                return now.answer, now.answered_by
            if time.time() >= asked.deadline:
                # Unless an answer comes at this very moment: then that one counts.
                default = asked.default_answer
                expired = await self._exchanges.expire(self._run_id, asked.message_id, "default")
                now = await self._exchanges.question(self._run_id, asked.message_id)
                if expired or now is None or now.answer is None:
                    return default, "default"
                return now.answer, now.answered_by
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
