"""Tasks that go on by themselves: start, wait, answer, approve, steer, cancel.

What is known of a task is in the store, so that each of these works from any process of the same
state directory; only the one that holds the run's wire acts on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, Self

import anyio

from orchestrator.access import Wish
from orchestrator.domain import Frozen
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import FINAL, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.engine.conversation import CliEnded
from orchestrator.engine.live import LiveRun
from orchestrator.engine.lost import settle_lost
from orchestrator.engine.record import Listener
from orchestrator.engine.service import Begun, Service
from orchestrator.engine.store import RunRecord
from orchestrator.errors import OrchestratorError, RunNotFound, RunRefused

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.3
"""How often the store is looked at for what other processes have done, or want done."""

LOST_SECONDS = 5.0
"""How often runs are looked for whose orchestrator has died."""

CANCEL_SECONDS = 30.0
"""For a cancelled run to end: its container goes, its changes are read."""

Until = Literal["any", "all"]


class TaskView(Frozen):
    """A task as somebody sees it who waits for it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: str = ""
    prompt: str = ""
    created: float = 0.0
    ended: float | None = None
    parent_run_id: str = ""
    questions: tuple[Question, ...] = ()
    """That wait for an answer."""
    approvals: tuple[Approval, ...] = ()
    """Tool calls that wait for a decision."""
    result: RunResult | None = None

    @property
    def settled(self) -> bool:
        """Waiting longer changes nothing: it has ended, or somebody has to do something."""
        return self.status in FINAL or self.asks

    @property
    def asks(self) -> bool:
        """Somebody has to answer or to decide; the status follows a moment later."""
        return bool(self.questions or self.approvals)


class Tasks:
    """The tasks of this process, and the way to those of others. Use it as a context manager."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store
        self._exchanges = service.exchanges
        self._news = service.news
        self._alive = service.alive
        self._jobs: dict[str, asyncio.Task[None]] = {}
        self._live: dict[str, LiveRun] = {}
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        jobs = [*self._jobs.values(), *filter(None, (self._looking,))]
        for job in jobs:
            job.cancel()
        with anyio.CancelScope(shield=True):  # each run's end is bounded
            await asyncio.gather(*jobs, return_exceptions=True)

    # What a caller does

    async def start(self, task: Task, *listeners: Listener, wish: Wish | None = None) -> str:
        """Begin a task and return its run's id; errors are for what the caller got wrong."""
        for run_id in task.after:
            await self._record(run_id, task.caller)
        begun = await self._service.begin(task, *listeners, wish=wish)
        run_id = begun.live.run_id
        self._live[run_id] = begun.live
        self._jobs[run_id] = asyncio.create_task(self._job(begun))
        return run_id

    async def wait(
        self, run_ids: Sequence[str], caller: str | None, *, seconds: float, until: Until = "all"
    ) -> tuple[TaskView, ...]:
        """The tasks, as soon as they are settled, or one of them, or when the time is over.

        A question or a tool call that has to be approved is told at once, whatever is waited for.
        """
        deadline = anyio.current_time() + seconds
        while True:
            changed = self._news.next()
            views = [await self.view(run_id, caller) for run_id in run_ids]
            done = [view.settled for view in views]
            asks = any(view.asks for view in views)
            left = deadline - anyio.current_time()
            if all(done) or asks or (until == "any" and any(done)) or left <= 0:
                return tuple(views)
            with anyio.move_on_after(min(left, LOOK_SECONDS)):
                await changed.wait()

    async def view(self, run_id: str, caller: str | None = None) -> TaskView:
        """One task; None as the caller is whoever runs the orchestrator, who sees all."""
        record = await self._record(run_id, caller)
        if record.status in FINAL:
            return _view(record)
        return _view(
            record,
            questions=await self._exchanges.questions(run_id, pending=True),
            approvals=await self._exchanges.approvals(run_id, pending=True),
        )

    async def list(
        self,
        caller: str | None = None,
        *,
        statuses: Iterable[RunStatus] = (),
        agent: str = "",
        limit: int = 50,
    ) -> tuple[TaskView, ...]:
        """The newest ones first; without their results."""
        found = await self._store.find_runs(caller, tuple(statuses), agent, limit)
        return tuple(_view(record) for record in found)

    async def reply(self, run_id: str, message_id: str, answer: str, caller: str | None) -> None:
        """Answer a question; RunRefused if it is not open."""
        record = await self._record(run_id, caller)
        if await self._exchanges.answer(run_id, message_id, answer):
            self._news.tell()
            return
        known = await self._exchanges.question(run_id, message_id)
        if known is None:
            raise RunRefused(f"run {run_id} has asked no question {message_id!r}")
        if record.status in FINAL:
            raise RunRefused(f"run {run_id} has ended; nobody is there to hear the answer")
        raise RunRefused(f"question {message_id} has been answered already: {known.answer!r}")

    async def decide(
        self,
        run_id: str,
        caller: str | None,
        *,
        approve: Sequence[str] = (),
        reject: Sequence[str] = (),
        approve_all: bool = False,
        reject_all: bool = False,
        inputs: dict[str, dict[str, object]] | None = None,
        message: str = "",
    ) -> None:
        """Decide tool calls that wait; RunRefused if one of those named does not."""
        await self._record(run_id, caller)
        pending = {each.call_id for each in await self._exchanges.approvals(run_id, pending=True)}
        unknown = [call for call in (*approve, *reject) if call not in pending]
        if unknown:
            raise RunRefused(
                f"run {run_id} has no tool call {', '.join(unknown)} that waits to be approved; "
                f"waiting: {', '.join(sorted(pending)) or 'none'}"
            )
        approved = set(approve) | (pending - set(reject) if approve_all else set())
        rejected = set(reject) | (pending - approved if reject_all else set())
        why = message or "the caller has rejected this; do without it"
        for call in approved - rejected:
            edited = (inputs or {}).get(call)
            await self._exchanges.decide(run_id, call, "approved", new_input=edited)
        for call in rejected:
            await self._exchanges.decide(run_id, call, "rejected", message=why)
        self._news.tell()

    async def say(self, run_id: str, text: str, caller: str | None) -> str:
        """Tell an agent something: in the middle of its work, or after it, in its session.

        The id of the run that hears it.
        """
        record = await self._record(run_id, caller)
        if record.status not in FINAL:
            await self._exchanges.order(run_id, "say", text)
            await self._carry_out_orders()
            return run_id
        session = record.result.session if record.result is not None else ""
        if not session:
            raise RunRefused(
                f"run {run_id} has ended and its container is gone; start a new task, or give the "
                "agent sessions (`session: true`)"
            )
        task = Task(
            agent=record.agent,
            prompt=text,
            caller=record.caller,
            session=session,
            parent_run_id=run_id,
        )
        return await self.start(task)

    async def cancel(self, run_id: str, caller: str | None) -> TaskView:
        """End a task, and see it end."""
        record = await self._record(run_id, caller)
        if record.status in FINAL:
            return _view(record)
        await self._exchanges.order(run_id, "cancel")
        await self._carry_out_orders()
        with anyio.move_on_after(CANCEL_SECONDS):
            while (view := await self.view(run_id, caller)).status not in FINAL:
                changed = self._news.next()
                await settle_lost(self._store, self._alive)
                with anyio.move_on_after(LOOK_SECONDS):
                    await changed.wait()
            return view
        raise RunRefused(f"run {run_id} does not end; is the orchestrator that holds it stuck?")

    # What the process does

    async def _job(self, begun: Begun) -> None:
        run_id = begun.live.run_id
        try:
            await self._wait_for_others(begun)
            await self._service.carry(begun)
        except OrchestratorError as exc:
            log.info("run %s: %s", run_id, exc)  # its result says so
        except Exception:
            log.exception("run %s", run_id)
        finally:
            self._jobs.pop(run_id, None)
            self._live.pop(run_id, None)
            self._news.tell()

    async def _wait_for_others(self, begun: Begun) -> None:
        after = begun.live.plan.task.after
        if not after:
            return
        try:
            views = await self.wait(after, None, seconds=begun.live.plan.timeout_seconds * 100)
            while not all(view.status in FINAL for view in views):
                await anyio.sleep(LOOK_SECONDS)
                views = await self.wait(after, None, seconds=LOOK_SECONDS)
        except BaseException:
            await self._service.give_up(begun, "cancelled", "the caller cancelled the run")
            raise
        failed = [view.run_id for view in views if view.status != "completed"]
        if failed:
            why = f"it was to follow {', '.join(failed)}, which did not complete"
            await self._service.give_up(begun, "dependency_failed", why)
            raise RunRefused(why)

    async def _keep_looking(self) -> None:
        settled = 0.0
        while True:
            await anyio.sleep(LOOK_SECONDS)
            try:
                await self._carry_out_orders()
                if time.monotonic() - settled > LOST_SECONDS:
                    settled = time.monotonic()
                    if await settle_lost(self._store, self._alive):
                        self._news.tell()
            except OrchestratorError as exc:
                log.warning("orders cannot be read: %s", exc)
            except Exception:
                log.exception("orders cannot be carried out")

    async def _carry_out_orders(self) -> None:
        """Do what was ordered for runs that are ours, each order once."""
        if not self._live:
            return
        for order in await self._exchanges.open_orders():
            live = self._live.get(order.run_id)
            if live is None:
                continue
            if order.kind == "say" and live.conversation is None:
                continue  # not yet: it will be told when it is there to hear
            if not await self._exchanges.take(order.order_id):
                continue
            if order.kind == "cancel":
                self._jobs[order.run_id].cancel()
                continue
            live.record.note("steered", order.text)
            with suppress(CliEnded):
                await live.steer(order.text)

    async def _record(self, run_id: str, caller: str | None) -> RunRecord:
        record = await self._store.run(run_id)
        if record is None or (caller is not None and record.caller != caller):
            raise RunNotFound(f"there is no run {run_id!r}; get_all_tasks lists yours")
        return record


def _view(
    record: RunRecord,
    *,
    questions: tuple[Question, ...] = (),
    approvals: tuple[Approval, ...] = (),
) -> TaskView:
    return TaskView(
        run_id=record.run_id,
        agent=record.agent,
        caller=record.caller,
        status=record.status,
        reason=record.reason,
        prompt=record.prompt,
        created=record.created,
        ended=record.ended,
        parent_run_id=record.parent_run_id,
        questions=questions,
        approvals=approvals,
        result=record.result,
    )
