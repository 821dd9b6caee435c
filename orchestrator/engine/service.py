"""The verb that everybody calls: run a task. Who may, when, and what is kept of it."""

from __future__ import annotations

import json
import logging
import secrets as random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from orchestrator.access import Wish, check_caller, narrowed
from orchestrator.catalog import AgentsDir
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.events import Event
from orchestrator.domain.result import Reason, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.engine.clock import Clock
from orchestrator.engine.copies import Copies
from orchestrator.engine.desk import Desk
from orchestrator.engine.live import LiveRun
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Listener, Record
from orchestrator.engine.run import carry_out, conclude, not_kept
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.staging import Staging
from orchestrator.engine.tasks.news import News
from orchestrator.errors import (
    CallerError,
    CallerRefused,
    OrchestratorError,
    RunNotFound,
    RunRefused,
    SessionRefused,
    StoreFailed,
)
from orchestrator.plan import Plan
from orchestrator.redaction import Sought
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey
from orchestrator.workspace.applying.apply import Applied

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.5
"""For a server to greet its client before anything else is looked at."""

MAX_ERRANDS = 32
"""Tasks that one run may hand to others."""

CLEAR_SECONDS = 60.0
"""For what was made for a run's sake to go."""

MAX_DEPTH = 3
"""Agents that run agents that run agents."""

NEW_SESSION = "new"
"""As a session's name: one that has not been used before."""

DEFAULT_SESSION = "default"
"""The one that is used when nobody names one."""


@dataclass(frozen=True)
class Begun:
    """A task that was accepted."""

    prepared: Prepared
    live: LiveRun


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
        self._turns = anyio.CapacityLimiter(max_runs)
        self._agent_turns: dict[str, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_runs_per_agent)
        )
        self._errand_turns: dict[int, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(max_runs)
        )
        self._working: dict[str, LiveRun] = {}
        """Runs that may have others work for them now."""
        self._unkept: list[_Unkept] = []
        self.run_child: Callable[[Task], Awaitable[RunResult]] = self.run
        """How agents run agents: as a task that can be watched, where there are tasks."""

    async def plan(self, task: Task) -> Plan:
        """What a run of this task could touch. Nothing is made."""
        prepared = await self._staging.prepare(self._agent(task), task, really=False)
        return prepared.plan

    async def run(self, task: Task, *listeners: Listener) -> RunResult:
        """Run a task to its end. Errors are for what the caller got wrong; the rest is a result."""
        return await self.carry(await self.begin(task, *listeners))

    async def begin(self, task: Task, *listeners: Listener, wish: Wish | None = None) -> Begun:
        """Accept a task: from now on it is in the store, and has to be carried to its end.

        With a wish, the agent is the task's, made as small as the wish says.
        """
        agent = self._agent(task)
        check_caller(agent, task.caller)
        if wish is not None:
            agent = narrowed(agent, wish)
        task = _in_session(agent, task)
        fastest = agent.resources.events_per_second
        record = Record(task.run_id, self.store, listeners, self._secrets, fastest)
        prepared = await self._staging.prepare(agent, task)
        record.add_secrets(prepared.secrets)
        record.add_secrets(self._staging.variables(prepared))
        above = self._working.get(task.parent_run_id) if task.depth else None
        outer = None if above is None else above.clock
        clock = Clock(prepared.plan.timeout_seconds, agent.ask.patience_seconds, outer)
        desk = Desk(task.run_id, self.store, self.exchanges, record, clock, agent.ask, self.news)
        await self.store.add_run(task)
        record.note("queued", f"{task.agent} for {task.caller}")
        live = LiveRun(prepared.plan, record, clock, desk, works_for=above)
        if above is not None:
            above.errands.append(live)
        if agent.subagents:
            live.delegate = partial(self._delegate, live)
        return Begun(prepared, live)

    async def carry(self, begun: Begun) -> RunResult:
        """Carry a task to its end."""
        live, outcome = begun.live, begun.live.outcome
        async with AsyncExitStack() as turns:  # the next one's turn comes when this end is known
            try:
                await self._carry_out(begun, turns)
            except CallerError as exc:
                outcome.fail("start_failed", str(exc))
                raise
            except Exception as exc:
                if not outcome.decided:
                    outcome.fail("machinery", str(exc))
                raise
            except BaseException:
                if not outcome.decided:
                    outcome.fail("cancelled", "the caller cancelled the run", "cancelled")
                raise
            finally:
                result = await self._end(live)  # whatever happened, it is kept
        return result

    async def give_up(self, begun: Begun, reason: Reason, message: str) -> RunResult:
        """End a task that was accepted and never begun."""
        status: RunStatus = "cancelled" if reason == "cancelled" else "failed"
        begun.live.outcome.fail(reason, message, status)
        return await self._end(begun.live)

    async def keep_warm(self) -> None:
        """Remove what a crash left, have the image, and spares for the agents that ask for them,
        for ever: for those who serve.
        """
        await anyio.sleep(SETTLE_SECONDS)
        await self._staging.clear_up()
        await self._staging.stock.keep_warm(self.agents)

    async def apply(self, run_id: str, caller: str, *, dry_run: bool = False) -> Applied:
        """Do to a workspace what a run of this caller did to its copy."""
        record = await self.store.run(run_id)
        if record is None or record.caller != caller:
            raise RunNotFound(f"there is no run {run_id!r} of yours")
        return await anyio.to_thread.run_sync(partial(self.copies.apply, run_id, dry_run=dry_run))

    async def _carry_out(self, begun: Begun, turns: AsyncExitStack) -> None:
        prepared, live = begun.prepared, begun.live
        await turns.enter_async_context(self._staging.turn(prepared))
        await turns.enter_async_context(self._place(prepared))
        prepared = await self._staging.as_of_now(prepared)
        live.plan = prepared.plan
        live.record.add_secrets(prepared.secrets)
        await self.store.set_status(live.run_id, "running")
        async with self._at_work(live):
            await carry_out(live, self._staging.stage(prepared, live), self.copies)

    @asynccontextmanager
    async def _at_work(self, live: LiveRun) -> AsyncIterator[None]:
        """Others may work for it; the sessions that they had for its sake go with it."""
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
    async def _place(self, prepared: Prepared) -> AsyncIterator[None]:
        """One of the places for runs. There are as many for those that work for others, at each
        depth by itself: who waits for a place must not hold one that it needs.
        """
        depth = prepared.task.depth
        if depth:
            async with self._errand_turns[depth]:
                yield
            return
        async with self._agent_turns[prepared.agent.name], self._turns:
            yield

    async def _delegate(self, live: LiveRun, agent: str, prompt: str, context: str) -> str:
        """Run an agent for another one, in what is left of its time."""
        mine, task = live.plan.agent, live.plan.task
        if agent not in mine.subagents:
            raise CallerRefused(f"you may run {', '.join(mine.subagents)}, and not {agent!r}")
        if task.depth >= MAX_DEPTH:
            raise CallerRefused(f"agents run agents {MAX_DEPTH} deep at most; do it yourself")
        live.delegations += 1
        if live.delegations > MAX_ERRANDS:
            raise CallerRefused(f"that were {MAX_ERRANDS} tasks for others; do the rest yourself")
        if live.budget_left is not None and live.budget_left <= 0:
            raise CallerRefused("the budget is spent; answer with what you have")
        child = Task(
            agent=agent,
            prompt=live.record.clean(prompt),
            context=live.record.clean(context),
            session=task.run_id if self.agents.current().agent(agent).session.keep else "",
            caller=mine.name,
            budget_usd=live.budget_left,
            timeout_seconds=max(1.0, live.clock.seconds - live.clock.spent),
            parent_run_id=task.run_id,
            depth=task.depth + 1,
        )
        live.record.note("delegated", f"{agent}: {prompt}", run_id=child.run_id)
        result = await self.run_child(child)
        if result.status != "completed":
            raise RunRefused(f"{agent} {result.status} ({result.reason}): {result.message}")
        return result.result if isinstance(result.result, str) else json.dumps(result.result)

    async def _end(self, live: LiveRun) -> RunResult:
        """Have the run end in the store, cancelled or not. One that is there for ever would be
        worse than one whose answer is lost: whatever is wrong with its envelope, it gets one.
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
    if not agent.session.keep:
        if task.session:
            raise SessionRefused(
                f"agent {agent.name!r} has no sessions; call it without one, or write "
                "`session: true` in its agent.md"
            )
        return task
    name = f"s{random.token_hex(4)}" if task.session == NEW_SESSION else task.session
    return task.model_copy(update={"session": name or DEFAULT_SESSION})
