"""The verb that every surface calls: run a task. Who may, when, and what is kept of it."""

from __future__ import annotations

import logging
import secrets as random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from orchestrator.access import Wish, check_caller, narrowed
from orchestrator.catalog import AgentsDir
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import Reason, RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.clock import Clock
from orchestrator.engine.copies import Copies
from orchestrator.engine.desk import Desk
from orchestrator.engine.live import LiveRun, RunChild
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Listener, Record
from orchestrator.engine.run import conclude, execute, not_kept
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.staging import Staging
from orchestrator.engine.tasks.news import News
from orchestrator.errors import (
    CallerError,
    OrchestratorError,
    RunNotFound,
    SessionRefused,
    StoreFailed,
)
from orchestrator.redaction import Sought
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey
from orchestrator.workspace.applying.apply import Applied

log = logging.getLogger(__name__)

GREETING_SECONDS = 0.5
"""For a server to greet its client before anything else is looked at."""

CLEAR_SECONDS = 60.0
"""For the sessions to go that a run's subagents had."""

NEW_SESSION = "new"
"""As a session's name: one that has not been used before."""

DEFAULT_SESSION = "default"
"""The session of a caller that names none."""


@dataclass(frozen=True)
class _Unkept:
    """The end of a run that is not in the store."""

    result: RunResult
    events: tuple[Event, ...]
    tell: Callable[[], None]


class Service:
    """Runs tasks: at most so many at once, in the order they came, each one recorded."""

    def __init__(
        self,
        *,
        agents: AgentsDir,
        store: Store,
        staging: Staging,
        sessions: Sessions,
        copies: Copies,
        alive: Callable[[str], bool] = lambda _: True,
        secrets: Sequence[str] = (),
        max_runs: int = 8,
        max_runs_per_agent: int = 8,
    ) -> None:
        self.agents = agents
        self.store = store
        self.exchanges = Exchanges(store)
        self.news = News()
        self.sessions = sessions
        self.copies = copies
        self.alive = alive
        """Whether an orchestrator of the same state directory lives."""
        self._staging = staging
        self._secrets = tuple(map(Sought, secrets))
        self._slots = anyio.CapacityLimiter(max_runs)
        self._agent_slots: dict[str, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_runs_per_agent)
        )
        self._errand_slots: dict[int, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_runs)
        )
        self._working: dict[str, LiveRun] = {}
        """Runs that may have others work for them now."""
        self._unkept: list[_Unkept] = []

    async def run(self, task: Task, *listeners: Listener) -> RunResult:
        """Run a task to its end. Errors are for what the caller got wrong; the rest is a result."""
        return await self.finish(await self.accept(task, *listeners))

    async def accept(
        self,
        task: Task,
        *listeners: Listener,
        wish: Wish | None = None,
        run_child: RunChild | None = None,
    ) -> LiveRun:
        """Accept a task: from now on it is in the store, and has to be finished or given up.

        With a wish, the agent is the task's, made as small as the wish says. `run_child` runs what
        the agent hands to others; as a rule that is `run`.
        """
        agent = self._agent(task)
        check_caller(agent, task.caller)
        if wish is not None:
            agent = narrowed(agent, wish)
        task = _in_session(agent, task)
        fastest = agent.resources.events_per_second
        record = Record(task.run_id, self.store, listeners, self._secrets, fastest)
        prepared = await self._staging.planner.prepare(agent, task)
        record.add_secrets(prepared.secrets)
        record.add_secrets(prepared.variables_inside)
        above = self._working.get(task.parent_run_id) if task.depth else None
        outer = None if above is None else above.clock
        clock = Clock(prepared.plan.timeout_seconds, agent.ask.patience_seconds, outer)
        desk = Desk(
            *(task.run_id, self.store, self.exchanges, record, clock, agent.ask, self.news),
            approval_by=agent.approval_by,
        )
        await self.store.add_run(task)
        record.note("queued", f"{task.agent} for {task.caller}")
        return LiveRun(prepared, record, clock, desk, run_child or self.run, works_for=above)

    async def finish(self, live: LiveRun) -> RunResult:
        """Bring an accepted task to its end: wait for a slot, run it, and keep its result."""
        async with AsyncExitStack() as held:  # until the end is kept: then the next run may begin
            try:
                await self._run_when_free(live, held)
            except CallerError as exc:
                live.fail("start_failed", str(exc))
                raise
            except Exception as exc:
                if not live.decided:
                    live.fail("machinery", str(exc))
                raise
            except BaseException:
                if not live.decided:
                    live.fail("cancelled", live.cancelled_why, "cancelled")
                raise
            finally:
                result = await self._end(live)  # whatever happened, it is kept
        return result

    async def give_up(self, live: LiveRun, reason: Reason, message: str) -> RunResult:
        """End a task that was accepted and never begun."""
        live.fail(reason, message, "cancelled" if reason == "cancelled" else "failed")
        return await self._end(live)

    async def keep_warm(self) -> None:
        """Remove what a crash left, have the image, and keep spares for the agents that ask for
        them, for ever. A server does this.
        """
        await anyio.sleep(GREETING_SECONDS)
        await self._staging.clear_up()
        await self._staging.stock.keep_warm(self.agents)

    async def apply(self, run_id: str, caller: str, *, dry_run: bool = False) -> Applied:
        """Do to a workspace what a run of this caller did to its copy."""
        record = await self.store.run(run_id)
        if record is None or record.caller != caller:
            raise RunNotFound(f"there is no run {run_id!r} of yours")
        return await anyio.to_thread.run_sync(partial(self.copies.apply, run_id, dry_run=dry_run))

    async def _run_when_free(self, live: LiveRun, held: AsyncExitStack) -> None:
        """Run a task once its session and a slot are free; `held` keeps both."""
        await held.enter_async_context(self._staging.session_lock(live.prepared))
        await held.enter_async_context(self._slot(live.prepared))
        prepared = await self._staging.planner.as_of_now(live.prepared)
        live.record.add_secrets(prepared.secrets)
        await self.store.set_status(live.run_id, "running")
        async with self._at_work(live):
            await execute(live, self._staging.stage(prepared, live), self.copies)

    @asynccontextmanager
    async def _at_work(self, live: LiveRun) -> AsyncIterator[None]:
        """In this block other agents may work for the run; their sessions are removed after it."""
        self._working[live.run_id] = live
        try:
            yield
        finally:
            del self._working[live.run_id]
            with anyio.move_on_after(CLEAR_SECONDS, shield=True):
                for session in {errand.session for errand in live.errands if errand.session}:
                    await self._remove(session)

    async def _remove(self, session: SessionKey) -> None:
        try:
            await self.sessions.remove(session)
        except OrchestratorError as exc:
            log.warning("session %s is not removed: %s", session.text, exc)

    @asynccontextmanager
    async def _slot(self, prepared: Prepared) -> AsyncIterator[None]:
        """One of the slots for runs. Errands have slots of their own, at each depth: a run that
        waits for its errand must not hold the slot that the errand needs.
        """
        depth = prepared.task.depth
        if depth:
            async with self._errand_slots[depth]:
                yield
            return
        async with self._agent_slots[prepared.agent.name], self._slots:
            yield

    async def _end(self, live: LiveRun) -> RunResult:
        """Have the run end in the store, cancelled or not; with an envelope that says nothing, if
        its own cannot be made or kept: a run that never ends would be worse.
        """
        with anyio.CancelScope(shield=True):
            try:
                result = await conclude(live)
                await self._finish(result, live)
            except Exception:
                log.exception("how run %s ended cannot be written down", live.run_id)
                result = not_kept(live)
                await self._finish(result, live)
            finally:
                self.news.tell()
        return result

    async def _finish(self, result: RunResult, live: LiveRun) -> None:
        unkept = _Unkept(result, live.record.take(), live.record.tell_end)
        try:
            await self._keep(unkept)
        except StoreFailed:  # the caller gets the answer all the same
            log.exception("the result of %s is not kept yet", result.run_id)
            self._unkept.append(unkept)

    async def _keep(self, unkept: _Unkept) -> None:
        await self.store.finish(unkept.result, unkept.events)
        unkept.tell()

    async def write_down(self) -> None:
        """Try again to keep the ends of runs that the store would not take; StoreFailed if it still
        does not.
        """
        while self._unkept:
            await self._keep(self._unkept[0])
            del self._unkept[0]
            self.news.tell()

    def _agent(self, task: Task) -> AgentSpec:
        return self.agents.current().agent(task.agent)


def _in_session(agent: AgentSpec, task: Task) -> Task:
    """The task with the session that it runs in; SessionRefused if the agent has none."""
    if not agent.session.keep:
        if task.session:
            raise SessionRefused(
                f"agent {agent.name!r} has no sessions; call it without one, or write "
                "`session: true` in its agent.md"
            )
        return task
    name = f"s{random.token_hex(4)}" if task.session == NEW_SESSION else task.session
    # What one run hands to an agent is one session, which is removed with that run.
    usual = task.parent_run_id if task.depth else DEFAULT_SESSION
    return task.model_copy(update={"session": name or usual})
