"""Tasks that go on by themselves: start, wait, answer, approve, steer, cancel.

What is known of a task is in the store, so that each of these works from any process of the same
state directory; only the one that holds the run's wire acts on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Self

import anyio

from orchestrator.access import Wish
from orchestrator.domain.exchange import Order
from orchestrator.domain.result import FINAL, RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.conversation import CliEnded
from orchestrator.engine.live import LiveRun
from orchestrator.engine.record import Listener
from orchestrator.engine.service import Begun, Service
from orchestrator.engine.tasks.news import LOOK_SECONDS
from orchestrator.engine.tasks.task_book import TaskBook, TaskView, Until
from orchestrator.errors import OrchestratorError, RunRefused

__all__ = ["TaskView", "Tasks", "Until"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Held:
    """A run whose wire is ours, and what ends it.

    A scope, not asyncio's own cancel: that would go through the shields that keep the end of a run.
    """

    live: LiveRun
    scope: anyio.CancelScope


class Tasks(TaskBook):
    """The tasks of this process, and the way to those of others. Use it as a context manager."""

    def __init__(self, service: Service) -> None:
        recall = service.copies.kept.recall
        super().__init__(service.store, service.exchanges, service.news, service.alive, recall)
        self._service = service
        self._held: dict[str, _Held] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._looking = anyio.CancelScope()

    async def __aenter__(self) -> Self:
        self._service.run_child = self.run
        self._go(self._keep_looking())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        for held in self._held.values():
            held.scope.cancel()
        with anyio.CancelScope(shield=True):  # each run's end is bounded
            await asyncio.gather(*self._jobs, return_exceptions=True)
            with suppress(OrchestratorError):  # what could not be kept before: once more
                await self._service.write_down()

    # What a caller does

    async def start(self, task: Task, *listeners: Listener, wish: Wish | None = None) -> str:
        """Begin a task and return its run's id; errors are for what the caller got wrong."""
        begun, held = await self._begin(task, *listeners, wish=wish)
        self._go(self._job(begun, held))
        return held.live.run_id

    async def run(self, task: Task, *listeners: Listener) -> RunResult:
        """Run a task to its end while the caller waits; others can talk to it meanwhile."""
        begun, held = await self._begin(task, *listeners)
        with self._forgotten_after(held), held.scope:
            return await self._carry(begun)
        view = await self.view(held.live.run_id)  # somebody has cancelled it
        if view.result is None:
            raise RunRefused(f"the result of run {view.run_id} is not kept; the log says why")
        return view.result

    async def say(self, run_id: str, text: str, caller: str | None) -> str:
        """Tell an agent something: in the middle of its work, or after it, in its session.

        The id of the run that hears it.
        """
        if await self.tell(run_id, text, caller):
            return run_id
        return await self.start(await self.follow_up(run_id, text, caller))

    # What the process does

    async def _begin(
        self, task: Task, *listeners: Listener, wish: Wish | None = None
    ) -> tuple[Begun, _Held]:
        for run_id in task.after:
            await self._record(run_id, task.caller)
        begun = await self._service.begin(task, *listeners, wish=wish)
        held = _Held(begun.live, anyio.CancelScope())
        self._held[begun.live.run_id] = held
        return begun, held

    def _go(self, work: Coroutine[None, None, None]) -> None:
        job = asyncio.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _job(self, begun: Begun, held: _Held) -> None:
        run_id = begun.live.run_id
        with self._forgotten_after(held), held.scope:
            try:
                await self._carry(begun)
            except OrchestratorError as exc:
                log.info("run %s: %s", run_id, exc)  # its result says so
            except Exception:
                log.exception("run %s", run_id)

    @contextmanager
    def _forgotten_after(self, held: _Held) -> Iterator[None]:
        try:
            yield
        finally:
            del self._held[held.live.run_id]
            self._news.tell()

    async def _carry(self, begun: Begun) -> RunResult:
        await self._wait_for_others(begun)
        return await self._service.carry(begun)

    async def _wait_for_others(self, begun: Begun) -> None:
        after = begun.live.plan.task.after
        if not after:
            return
        try:
            failed = await self._not_completed(after, begun.live.plan.timeout_seconds)
        except OrchestratorError as exc:
            await self._service.give_up(begun, "dependency_failed", str(exc))
            raise
        except BaseException:
            await self._service.give_up(begun, "cancelled", "the caller cancelled the run")
            raise
        if failed:
            why = f"it was to follow {', '.join(failed)}, which did not complete"
            await self._service.give_up(begun, "dependency_failed", why)
            raise RunRefused(why)

    async def _not_completed(self, run_ids: Sequence[str], seconds: float) -> list[str]:
        """Wait until all have ended; those that did so badly."""
        views = await self.wait(run_ids, None, seconds=seconds * 100)
        while not all(view.status in FINAL for view in views):
            await anyio.sleep(LOOK_SECONDS)
            views = await self.wait(run_ids, None, seconds=LOOK_SECONDS)
        return [view.run_id for view in views if view.status != "completed"]

    async def _keep_looking(self) -> None:
        with self._looking:
            while True:
                await anyio.sleep(LOOK_SECONDS)
                for duty in (
                    self._service.write_down,
                    self._carry_out_orders,
                    self.settle_now_and_then,
                ):
                    await _done(duty)

    def _end(self, run_id: str) -> bool:
        held = self._held.get(run_id)
        if held is not None:
            held.scope.cancel()
        return held is not None

    async def _carry_out_orders(self) -> None:
        """Do what was ordered for runs that are ours, each order once."""
        if not self._held:
            return
        for order in await self._exchanges.open_orders():
            held = self._held.get(order.run_id)
            if held is None:
                continue
            if order.kind == "say" and not held.live.can_hear:
                continue  # not yet: it will be told when it is there to hear
            if not await self._exchanges.take(order.order_id):
                continue
            if order.kind == "cancel":
                held.scope.cancel()
            else:  # by itself: a CLI that does not read must keep nobody else waiting
                self._go(self._tell_it(held.live, order))

    async def _tell_it(self, live: LiveRun, order: Order) -> None:
        if await _heard(live, order.text):
            live.record.note("steered", order.text)
        else:
            await _done(partial(self._exchanges.put_back, order.order_id))


async def _done(duty: Callable[[], Awaitable[object]]) -> None:
    """Do something that nobody waits for; what goes wrong is logged."""
    try:
        await duty()
    except OrchestratorError as exc:
        log.warning("tasks cannot be looked after: %s", exc)
    except Exception:
        log.exception("tasks cannot be looked after")


async def _heard(live: LiveRun, text: str) -> bool:
    try:
        return await live.steer(text)
    except CliEnded:
        return False
