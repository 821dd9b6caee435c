"""Tasks that go on by themselves: start, steer, cancel.

What is known of a task is in the store (task_book.py), so that each of these works from any process
of the same state directory; only the one that holds the run's wire acts on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Self, TypeVar

import anyio

from orchestrator.domain.exchange import Order
from orchestrator.domain.result import FINAL, RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.words import CANCELLED, STOPPED
from orchestrator.engine.conversation import CliEnded
from orchestrator.engine.live import LiveRun
from orchestrator.engine.record import Listener
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.news import STORE_LOOK_SECONDS
from orchestrator.engine.tasks.task_book import CANCEL_SECONDS, TaskBook, TaskView
from orchestrator.errors import OrchestratorError, RunRefused
from orchestrator.store.runs import SuspendedRun

log = logging.getLogger(__name__)

TAKE_UP_SECONDS = 5.0
"""Between two tries to take up the same run: the engine may be away, or the trust in its agent."""

PREPARED_SECONDS = 10.0
"""For tasks that are still to be accepted when all is over; an image takes longer."""

T = TypeVar("T")

HEARD_LATER = "{runner} reads what it is told when its turn is over, and not between two steps"


class Tasks:
    """The tasks of this process, and the way to those of others. Use it as a context manager."""

    def __init__(self, service: Service) -> None:
        recall = service.copies.kept.recall
        self.book = TaskBook(
            service.store, service.exchanges, service.news, service.alive, recall, service.project
        )
        """The tasks of all processes: to look at, wait for, answer and decide."""
        self._service = service
        self._held: dict[str, LiveRun] = {}
        """Runs whose wire is ours, by their ids."""
        self._jobs: set[asyncio.Task[Any]] = set()
        self._starting: set[asyncio.Task[str]] = set()
        """Of these, tasks that are to be accepted."""
        self._looking = anyio.CancelScope()
        self._leaving = ""
        self._serves = self._is_known = False
        """Runs of dead orchestrators are taken up here; and other processes know it."""
        self._tried: dict[str, float] = {}
        """When runs of dead orchestrators were last to be taken up."""

    async def __aenter__(self) -> Self:
        self.own(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        for live in self._held.values():
            live.cancel(self._leaving or STOPPED)
        with anyio.CancelScope(shield=True):  # each run's end is bounded
            if self._starting:
                await asyncio.wait(self._starting, timeout=PREPARED_SECONDS)
                for starting in self._starting:
                    starting.cancel()
            while self._jobs:  # one that was accepted just now has another
                await asyncio.gather(*self._jobs, return_exceptions=True)
            if self._is_known:
                await _logged(self._service.store.remove_server)
            with suppress(OrchestratorError):  # results that the store has refused: once more
                await self._service.write_down()

    # What a caller does

    async def start(self, task: Task, *listeners: Listener) -> str:
        """Begin a task and return its run's id; errors are for what the caller got wrong."""
        live = await self._accept(task, *listeners)
        self.own(self._run_alone(live))
        return live.run_id

    def starting(self, task: Task) -> asyncio.Task[str]:
        """`start`, which goes on when who asked for it has left, as long as this is open."""
        job = self.own(self.start(task))
        self._starting.add(job)
        job.add_done_callback(self._starting.discard)
        return job

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have something done to its end, whoever is cancelled; this is open until then."""
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def run(self, task: Task, *listeners: Listener) -> RunResult:
        """Run a task to its end while the caller waits; others can talk to it meanwhile."""
        live = await self._accept(task, *listeners)
        with self._forgotten_after(live), live.scope:
            return await self._finish(live)
        view = await self.book.view(live.run_id)  # `cancel` has ended it
        if view.result is None:
            raise RunRefused(f"the result of run {view.run_id} is not kept; the log says why")
        return view.result

    async def tell(self, run_id: str, text: str, caller: str | None, *, now: bool = False) -> bool:
        """Tell an agent something in the middle of its work; False if its run has ended."""
        told = await self.book.tell(run_id, text, caller, now=now)
        await self._obey_orders()
        return told

    async def say(self, run_id: str, text: str, caller: str | None, *, now: bool = False) -> str:
        """Tell an agent something: in the middle of its work, or after it, in its session.

        It hears it after the step that it is at; `now` stops that. The id of the run that hears it.
        """
        if await self.tell(run_id, text, caller, now=now):
            return run_id
        return await self.start(await self.book.follow_up(run_id, text, caller))

    async def cancel(
        self,
        run_id: str,
        caller: str | None,
        *,
        seconds: float = CANCEL_SECONDS,
        why: str = CANCELLED,
    ) -> TaskView:
        """End a task, and see it end, unless that takes longer: it ends all the same."""
        await self.book.view(run_id, caller)  # RunNotFound for a caller that may not see it
        live = self._held.get(run_id)
        if live is None:
            return await self.book.cancel(run_id, caller, seconds=seconds)
        why = self._leaving or why
        await self.book.note_cancel(run_id, caller, "" if why == CANCELLED else why)
        live.cancel(why)
        return await self.book.until_ended(run_id, caller, seconds=seconds)

    def leave(self, why: str) -> None:
        """Say why all runs of this process are about to be cancelled."""
        self._leaving = self._leaving or why

    def serve(self) -> None:
        """Take up runs of the project that waited for a word when their orchestrator was killed,
        once they have it. A server does this; the end of a shorter process would be theirs.
        """
        self._serves = True

    # What the process does

    async def _accept(self, task: Task, *listeners: Listener) -> LiveRun:
        for run_id in task.after:
            await self.book.view(run_id, task.caller)
        live = await self._service.accept(task, *listeners, run_child=self.run)
        self._held[live.run_id] = live
        if self._looking.cancel_called:
            live.cancel(self._leaving or STOPPED)
        return live

    async def _run_alone(self, live: LiveRun, *, taken_up: bool = False) -> None:
        """Run a task that no caller waits for. One that is taken up has waited for others before,
        which may be gone.
        """
        with self._forgotten_after(live), live.scope:
            try:
                await (self._service.finish(live) if taken_up else self._finish(live))
            except OrchestratorError as exc:
                log.info("run %s: %s", live.run_id, exc)  # its result says so
            except Exception:
                log.exception("run %s", live.run_id)

    @contextmanager
    def _forgotten_after(self, live: LiveRun) -> Iterator[None]:
        try:
            yield
        finally:
            del self._held[live.run_id]
            self._service.news.tell()

    async def _finish(self, live: LiveRun) -> RunResult:
        await self._wait_for_others(live)
        return await self._service.finish(live)

    async def _wait_for_others(self, live: LiveRun) -> None:
        """Wait until the runs have completed that this one follows; RunRefused if one does not."""
        after = live.prepared.task.after
        if not after:
            return
        try:
            failed = await self._not_completed(after)
        except OrchestratorError as exc:
            await self._service.give_up(live, "dependency_failed", str(exc))
            raise
        except BaseException:
            await self._service.give_up(live, "cancelled", live.cancelled_why)
            raise
        if failed:
            why = f"it was to follow {', '.join(failed)}, which did not complete"
            await self._service.give_up(live, "dependency_failed", why)
            raise RunRefused(why)

    async def _not_completed(self, run_ids: Sequence[str]) -> list[str]:
        """Wait until all have ended; those that did so badly."""
        while True:
            views = await self.book.wait(run_ids, None, seconds=inf)
            if all(view.status in FINAL for view in views):
                return [view.run_id for view in views if view.status != "completed"]
            await anyio.sleep(
                STORE_LOOK_SECONDS
            )  # one of them asks something, and its caller answers

    async def _keep_looking(self) -> None:
        with self._looking:
            while True:
                await anyio.sleep(STORE_LOOK_SECONDS)
                for duty in (
                    self._service.write_down,
                    self._obey_orders,
                    self.book.settle_now_and_then,
                    self._take_up_others,
                    self._service.sent.tidy_now_and_then,
                ):
                    await _logged(duty)

    async def _take_up_others(self) -> None:
        if not self._serves:
            return
        store, now = self._service.store, anyio.current_time()
        if not self._is_known:
            for owner in await store.servers():
                if not self._service.alive(owner):
                    await store.remove_server(owner)
            await store.add_server(self._service.project)
            self._is_known = True
        found = await store.suspended(self._service.project)
        if not found:
            return
        asking = await self._service.exchanges.asking()
        for run in found:
            run_id = run.task.run_id
            if run_id in asking.questions or run_id in asking.approvals:
                continue
            if now - self._tried.get(run_id, -inf) > TAKE_UP_SECONDS:
                self._tried[run_id] = now
                self.own(self._take_up(run))

    async def _take_up(self, run: SuspendedRun) -> None:
        try:
            live = await self._service.take_up(run, run_child=self.run)
        except OrchestratorError as exc:
            log.warning("run %s cannot go on yet: %s", run.task.run_id, exc)
            return
        self._tried.pop(run.task.run_id, None)
        if live is not None:
            self._held[live.run_id] = live
            if self._looking.cancel_called:
                live.cancel(self._leaving or STOPPED)
            await _logged(self.book.settle)  # those that worked for it end: it has others do it
            await self._run_alone(live, taken_up=True)

    async def _obey_orders(self) -> None:
        """Do what was ordered for runs that are ours, each order once."""
        if not self._held:
            return
        exchanges = self._service.exchanges
        for order in await exchanges.open_orders():
            live = self._held.get(order.run_id)
            if live is None:
                continue
            if order.kind != "cancel" and not live.can_hear:
                continue  # not yet: it will be told when it is there to hear
            if not await exchanges.take(order.order_id):
                continue
            if order.kind == "cancel":
                live.cancel()
            else:  # in a task of its own: a CLI that does not read must not delay other orders
                self.own(self._steer(live, order))

    async def _steer(self, live: LiveRun, order: Order) -> None:
        try:
            heard = await live.steer(order.text, now=order.kind == "say_now")
        except CliEnded:
            heard = False
        if heard:
            live.record.note("steered", order.text)
            if not live.prepared.runner.abilities.steers and order.kind != "say_now":
                live.record.note("warning", HEARD_LATER.format(runner=live.plan.way.runner))
        else:
            await _logged(partial(self._service.exchanges.put_back, order.order_id))


async def _logged(duty: Callable[[], Awaitable[object]]) -> None:
    """Do something that no caller waits for; what goes wrong is logged."""
    try:
        await duty()
    except OrchestratorError as exc:
        log.warning("tasks cannot be looked after: %s", exc)
    except Exception:
        log.exception("tasks cannot be looked after")
