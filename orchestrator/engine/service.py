"""The verb that every surface calls: run a task. Who may, when, and what is kept of it."""

from __future__ import annotations

import logging
import secrets as random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.access import check_caller, narrowed
from orchestrator.catalog import AgentsDir
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.audit import AuditAct, AuditEntry, stranger
from orchestrator.domain.events import Event
from orchestrator.domain.result import Reason, RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.window import TRACEPARENT, WINDOW, at_work_for
from orchestrator.engine.clock import Clock
from orchestrator.engine.desk import Desk
from orchestrator.engine.earlier import Earlier, read_earlier
from orchestrator.engine.live import Before, LiveRun, RunChild
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Listener, Record
from orchestrator.engine.run import conclude, execute, not_kept
from orchestrator.engine.sessions.sessions import Sessions
from orchestrator.engine.staging import Staging
from orchestrator.engine.tasks.lost import end_lost, family_usage, usage_of
from orchestrator.engine.tasks.news import News, wait_for_news
from orchestrator.engine.tasks.watch import Watched, Watcher
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.engine.workspaces.sent_workspaces import SentWorkspaces
from orchestrator.errors import (
    CallerError,
    OperatorError,
    OrchestratorError,
    RunNotFound,
    RunRefused,
    SessionRefused,
    StoreFailed,
)
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.plan import doubts
from orchestrator.redaction import Sought
from orchestrator.store.audit import MAX_REFUSALS, REFUSALS_SECONDS, OnceEach
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Caps, Store, SuspendedRun
from orchestrator.store.session_rows import SessionKey
from orchestrator.workspace.applying.apply import Applied

log = logging.getLogger(__name__)

GREETING_SECONDS = 0.5
"""For a server to greet its client before anything else is looked at."""

PASSED_OVER_SECONDS = 10.0
"""A run takes a slot that was free for so long and that the run before it in the line did not
take: its orchestrator may be stopped, or have lower caps.
"""

CLEAR_SECONDS = 60.0
"""For the sessions to go that a run's subagents had."""

NEW_SESSION = "new"
"""As a session's name: one that has not been used before."""

DEFAULT_SESSION = "default"
"""The session of a caller that names none."""


TOLD_IN_RUNS = ("permissions", "approval", "mcp_servers", "network", "secrets", "model")
"""Fields of agent.md that decide what an agent can do; what is doubtful in others concerns only its
author."""

TAKEN_UP_WHY = "taken up: its orchestrator was killed while it waited"


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
        caps: Caps | None = None,
        project: str = "",
        scripted: bool = False,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.agents = agents
        self.project = project
        """Whose runs these are, as Settings has it."""
        self.store = store
        self._strangers = OnceEach(store.audit, MAX_REFUSALS, REFUSALS_SECONDS)
        self.exchanges = Exchanges(store)
        self.news = News()
        self.sessions = sessions
        self.copies = copies
        self.sent = SentWorkspaces(copies, store, project)
        self.alive = alive
        """Whether an orchestrator of the same state directory lives."""
        self._staging = staging
        self._secrets = tuple(map(Sought, secrets))
        self._scripted = scripted
        """Scripts play the model, for all agents."""
        self._watchers = tuple(watchers)
        self._caps = caps or Caps()
        self._slots: dict[int, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(self._caps.runs)
        )
        self._agent_slots: dict[str, anyio.CapacityLimiter] = defaultdict(
            lambda: anyio.CapacityLimiter(self._caps.runs_per_agent)
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
        run_child: RunChild | None = None,
    ) -> LiveRun:
        """Accept a task: from now on it is in the store, and has to be finished or given up.

        `run_child` runs what the agent hands to others; as a rule that is `run`.
        """
        if task.project not in ("", self.project):
            raise RunRefused(
                f"run {task.parent_run_id} belongs to the project {task.project}; go on with it "
                "there"
            )
        ours = {"project": self.project, "window": WINDOW.get()}
        above = task.traceparent or TRACEPARENT.get()
        watched = Watched(self._watchers, task.model_copy(update={**ours, "traceparent": above}))
        with _told_of_refusal(watched):
            task = watched.task
            try:
                task = await self.sent.placed(task)
                agent, task, prepared = await self._prepared(task, listeners)
            except OrchestratorError as exc:
                await self._decided("run", task.caller, task.run_id, exc, subject=task.agent)
                raise
            live = self._live(agent, prepared, listeners, run_child, watched)
            await self.store.add_run(task)
        scripted = {"scripted": True} if self._scripted else {}
        live.record.note("queued", f"{task.agent} for {task.caller}", **scripted)
        for doubt in (*self._doubts(agent.name), *doubts(agent, task), *prepared.passed_over):
            live.record.note("warning", doubt)
        return live

    async def take_up(
        self, run: SuspendedRun, *, run_child: RunChild | None = None
    ) -> LiveRun | None:
        """Take up a run that its dead orchestrator left, as `accept` does with a new one; None if
        another process has it. It is told what was asked before, and what was answered.

        OperatorError if it cannot be now; for any other reason why it may not run, it is ended.
        """
        run_id = run.task.run_id
        earlier = await read_earlier(self.store, self.exchanges, run_id)
        context = earlier.context(run.task.context)
        try:
            task = run.task.model_copy(update={"context": context})
            agent, task, prepared = await self._prepared(task)
        except OperatorError:
            raise
        except OrchestratorError as exc:
            await self._refuse(run, exc)
            return None
        events = await self.store.events(run_id)
        others = await family_usage(self.store, run_id, events)
        if not await self.store.take_up(run, TAKEN_UP_WHY):
            return None
        # From here on nothing may fail: no other process would end the run.
        before = Before(usage_of(events), others, await self._set_aside(run_id))
        watched = Watched(self._watchers, task)
        live = self._live(agent, prepared, (), run_child, watched, earlier, before, events)
        live.record.note("queued", f"{task.agent} for {task.caller}, again")
        if not agent.session.keep:
            live.taken_up(goes_on=False)
        return live

    async def _refuse(self, run: SuspendedRun, refusal: OrchestratorError) -> None:
        """End a run that may not go on."""
        task = run.task
        await self._decided("run", task.caller, task.run_id, refusal, subject=task.agent)
        record = await self.store.run(task.run_id)
        if record is not None and record.suspended == run.since:
            message = f"the orchestrator was killed while it waited, and it cannot go on: {refusal}"
            recall = self.copies.kept.recall
            await end_lost(self.store, record, recall, reason="start_failed", message=message)
            self.news.tell()

    async def _set_aside(self, run_id: str) -> str:
        """Put aside what a run has saved of its changes; when that was, or "" if there is none."""
        try:
            saved = await anyio.to_thread.run_sync(self.copies.kept.set_aside, run_id)
        except (OSError, OrchestratorError) as exc:
            log.warning("what %s has saved cannot be put aside: %s", run_id, exc)
            return ""
        return saved.when if saved is not None else ""

    def _live(
        self,
        agent: AgentSpec,
        prepared: Prepared,
        listeners: Sequence[Listener],
        run_child: RunChild | None,
        watched: Watched,
        earlier: Earlier | None = None,
        before: Before | None = None,
        events: Sequence[Event] = (),
    ) -> LiveRun:
        """A run that is about to be in the store; or is there, with its earlier life."""
        task, fastest = prepared.task, agent.resources.events_per_second
        record = Record(
            *(task.run_id, self.store, listeners, self._secrets, fastest), task=task, before=events
        )
        record.add_secrets(prepared.secrets)
        record.add_secrets(prepared.variables_inside)
        if watched.is_watched:
            provider = FORMATS[prepared.way.wire_format].provider
            watched.planned(agent, prepared.way.runner, provider, record.clean)
            record.listen(watched.saw)
        above = self._working.get(task.parent_run_id) if task.depth else None
        outer = None if above is None else above.clock
        clock = Clock(prepared.plan.timeout_seconds, agent.ask.patience_seconds, outer)
        desk = Desk(
            *(task.run_id, self.store, self.exchanges, record, clock, agent.ask, self.news),
            approval_by=agent.approval_by,
            agent=agent.name,
            earlier=earlier if above is None else above.desk.earlier,
        )
        return LiveRun(
            prepared,
            record,
            clock,
            desk,
            run_child or self.run,
            watched,
            works_for=above,
            scripted=self._scripted,
            before=before,
        )

    def _doubts(self, name: str) -> tuple[str, ...]:
        """What is probably not meant in an agent's file and may explain what a run does, in one
        line.
        """
        told = self.agents.current().warnings.get(name, ())
        found = [doubt for doubt in told if doubt.field.startswith(TOLD_IN_RUNS)]
        if not found:
            return ()
        first = found[0].model_copy(update={"path": Path(found[0].path.name)})
        more = f" (and {len(found) - 1} more; see: orchestrator agents check)" * (len(found) > 1)
        return (f"{first}{more}",)

    async def _prepared(
        self, task: Task, listeners: Sequence[Listener] = ()
    ) -> tuple[AgentSpec, Task, Prepared]:
        """The agent, the task as it runs, and all that it needs; an error if it may not run.

        The first run waits for the agent image to be made: `listeners` hear of that.
        """

        def progress(line: str) -> None:
            event = Event(run_id=task.run_id, seq=0, at=time.time(), kind="image", text=line)
            for listener in listeners:
                listener(event)

        agent = self._agent(task)
        check_caller(agent, task.caller)
        if task.wish is not None:
            agent = narrowed(agent, task.wish)
        agent = self.copies.shown_to(agent, task)
        task = _in_session(agent, task)
        return agent, task, await self._staging.planner.prepare(agent, task, progress)

    async def _decided(
        self,
        act: AuditAct,
        caller: str | None,
        run_id: str,
        refusal: OrchestratorError | None = None,
        subject: str = "",
    ) -> None:
        """Write a decision down, before it is acted on."""
        entry = AuditEntry.by(
            caller,
            act,
            project=self.project,
            allowed=refusal is None,
            subject=subject,
            run_id=run_id,
            why="" if refusal is None else f"{refusal.code}: {refusal}",
        )
        await self.store.audit.note(entry)

    async def check_known(self, task: Task) -> None:
        """AgentNotFound, with the names that this caller may know; then that is written down."""
        catalog = self.agents.current()
        if task.agent in catalog.agents:
            return
        mine = {
            n: each for n, each in catalog.agents.items() if task.caller in each.allowed_callers
        }
        try:
            catalog.model_copy(update={"agents": mine}).agent(task.agent)
        except OrchestratorError as exc:
            await self._decided("run", task.caller, task.run_id, exc, subject=task.agent)
            raise

    async def note_stranger(self, where: str, why: str) -> None:
        """Write down that a request was refused before it was known who calls."""
        await self._strangers.note(stranger(self.project, where, why), f"{where} {why}")

    async def note_call(self, what: str, caller: str, refusal: OrchestratorError) -> None:
        """Write down that a call is refused for who calls, or says to: "" if that is not known."""
        await self._decided("call", caller or "unknown", "", refusal, subject=what)

    async def finish(self, live: LiveRun) -> RunResult:
        """Bring an accepted task to its end: wait for a slot, run it, and keep its result."""
        async with AsyncExitStack() as held:  # until the end is kept: then the next run may begin
            held.enter_context(at_work_for(live.run_id, live.prepared.task.trace_id))
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

    def spares(self) -> Counter[tuple[str, str]]:
        """Containers that wait for a run, by their agent and by what they do."""
        return self._staging.stock.counts()

    async def apply(
        self, run_id: str, caller: str | None, *, dry_run: bool = False, allow_acting: bool = False
    ) -> Applied:
        """Do to a workspace what a run of this caller, or for the operator any of the project, did
        to its copy; of an agent made at call time, what the last did that went on under its id.
        """
        record = await self.store.run(run_id)
        if record is not None and record.wish is not None:
            run_id = await self.store.last_follow_up(run_id)
            record = await self.store.run(run_id)
        whose = record and (record.caller if caller else None, record.project)
        if record is None or whose != (caller, self.project):
            refused = RunNotFound(f"there is no run {run_id!r} of yours")
            await self._decided("apply", caller, run_id, refused)
            raise refused
        where = str(record.workspace or "")
        if not dry_run:
            await self._decided("apply", caller, run_id, subject=where)
        try:
            return await anyio.to_thread.run_sync(
                partial(self.copies.apply, run_id, dry_run=dry_run, allow_acting=allow_acting)
            )
        except OrchestratorError as exc:
            await self._decided("apply", caller, run_id, exc, subject=where)
            raise

    async def _run_when_free(self, live: LiveRun, held: AsyncExitStack) -> None:
        """Run a task once its session and a slot are free; `held` keeps both."""
        await held.enter_async_context(self._staging.session_lock(live.prepared))
        await held.enter_async_context(self._slot(live.prepared))
        prepared = await self._staging.planner.as_of_now(live.prepared)
        live.record.add_secrets(prepared.secrets)
        async with self._at_work(live):
            await execute(live, self._staging.stage(prepared, live), self.copies)
            while live.may_fall_back and (other := await self._next_runner(live)):
                await execute(live, self._staging.stage(other, live), self.copies)

    async def _next_runner(self, live: LiveRun) -> Prepared | None:
        """What the run needs on its next runner; None if none of them can be had: then it has ended
        as it did on this one.
        """
        now, record = live.prepared, live.record
        ways, passed_over = live.next_ways()
        for each in passed_over:
            record.note("warning", f"{each.runner} is {each.message}")
        for at, way in enumerate(ways):
            try:
                prepared = await self._staging.planner.prepare(
                    now.agent, now.task, partial(record.note, "image"), ways=ways[at:]
                )
            except OrchestratorError as exc:
                record.note("warning", f"{way.runner} cannot go on with the run: {exc}")
                continue
            record.add_secrets(prepared.secrets)
            live.fall_back(prepared, passed_over)
            return prepared
        live.tried += passed_over
        return None

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
        """One of the slots for runs, of those that all processes share. Errands have slots of their
        own, at each depth: a run that waits for its errand must not hold the slot that the errand
        needs. The run has begun when it has its slot, and holds it until its end is kept.
        """
        run_id, depth = prepared.task.run_id, prepared.task.depth
        own = nullcontext() if depth else self._agent_slots[prepared.agent.name]
        if not _has_room(own) or not _has_room(self._slots[depth]):
            await self.store.stand_in_line(run_id)
        # Through these at most as many runs come as may begin: the others need not look for a slot.
        async with own, self._slots[depth]:
            if not await self.store.begin(run_id, self._caps):
                await self.store.stand_in_line(run_id)
                await self._begun(run_id)
            yield

    async def _begun(self, run_id: str) -> None:
        """Wait until a run is the first in the line and a slot is free, and have it begin."""
        passed_over = inf
        while True:
            changed = self.news.next()
            dead = [owner for owner in await self.store.owners() if not self.alive(owner)]
            now = anyio.current_time()
            in_line = now - passed_over < PASSED_OVER_SECONDS
            if await self.store.begin(run_id, self._caps, dead, in_line=in_line):
                return
            free = await self.store.slot_is_free(run_id, self._caps, dead)
            passed_over = min(passed_over, now) if free else inf
            await wait_for_news(changed)

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
        live.watched.ended(result)
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

    @property
    def unkept(self) -> tuple[str, ...]:
        """The runs whose ends the store would not take."""
        return tuple(each.result.run_id for each in self._unkept)

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


@contextmanager
def _told_of_refusal(watched: Watched) -> Iterator[None]:
    """Whoever watches the task hears why it did not become a run."""
    try:
        yield
    except BaseException as exc:
        watched.refused(exc.code if isinstance(exc, OrchestratorError) else "cancelled")
        raise


def _has_room(slots: anyio.CapacityLimiter | AbstractAsyncContextManager[None]) -> bool:
    return not isinstance(slots, anyio.CapacityLimiter) or slots.available_tokens > 0


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
    if task.wish is not None:  # an agent of its own, and a conversation of its own
        usual = task.run_id
    return task.model_copy(update={"session": name or usual})
