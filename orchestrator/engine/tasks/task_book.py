"""The tasks of all processes, as the store knows them: look, wait, answer, decide, order.

Nothing here needs an engine or an agent: any process of the same state directory can do it.
What status a run is shown with is decided here, by `shown_status`, for every surface.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Literal

import anyio

from orchestrator.domain import Frozen
from orchestrator.domain.audit import AuditAct, AuditEntry
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import FINAL, TRANSITIONS, RunResult, RunStatus
from orchestrator.domain.task import Task, Wish
from orchestrator.domain.window import whom
from orchestrator.engine.tasks.lost import Recall, end_lost, nothing_kept, settle_lost
from orchestrator.engine.tasks.news import News, wait_for_news
from orchestrator.errors import CallInvalid, RunNotFound, RunRefused
from orchestrator.output import fenced
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import RunRecord, Store

LOST_SECONDS = 5.0
"""How often the book looks for runs whose orchestrator has died."""

CANCEL_SECONDS = 20.0
"""For a cancelled run to end: its container goes, its changes are read. Every client waits this
long for an answer; a caller that wants to see the end waits on.
"""

TOLD_BEFORE_CHARS = 50_000
"""Of what an agent was told, and of what it answered, that it is told again when it goes on."""

CANCELLED_WAITING = "the caller cancelled the run, which had waited since its orchestrator died"

LAST = "last"
"""In the place of a run's id: the newest one."""

Until = Literal["any", "all"]

OPEN: tuple[RunStatus, ...] = tuple(status for status in TRANSITIONS if status not in FINAL)
"""What a run can be that has not ended."""


def shown_status(status: RunStatus, *, question: bool, approval: bool) -> RunStatus:
    """The status that a caller is shown of a run; the only rule for it. Pure.

    `status` is the one in the store. `question` and `approval` say whether the run, or a run that
    works for it, waits for an answer or for a tool call to be decided. A question or an answer is
    in the store a moment before the status that follows from it.
    """
    if status in FINAL:
        return status
    if question:
        return "waiting_parent_reply"
    if approval:
        return "paused"
    if status == "waiting_parent_reply":  # it has its answer
        return "parent_replied"
    return "running" if status == "paused" else status


def named_statuses(names: Iterable[str]) -> tuple[RunStatus, ...]:
    """Statuses as a caller names them, `open` for all but the ends; CallInvalid for another."""
    known: dict[str, tuple[RunStatus, ...]] = {name: (name,) for name in TRANSITIONS}
    known["open"] = OPEN
    wanted = [name.lower() for name in names]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise CallInvalid(f"there is no status {unknown[0]!r}; there are {', '.join(known)}")
    return tuple(dict.fromkeys(status for name in wanted for status in known[name]))


class TaskView(Frozen):
    """A task as its caller sees it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    """As `shown_status` decides."""
    reason: str = ""
    project: str = ""
    window: str = ""
    prompt: str = ""
    context: str = ""
    wish: Wish | None = None
    """What the caller had made of the agent, if it had."""
    created: float = 0.0
    ended: float | None = None
    parent_run_id: str = ""
    depth: int = 0
    workspace: Path | None = None
    session: str = ""
    questions: tuple[Question, ...] = ()
    """That wait for an answer: the task's own, and those of runs that work for it."""
    approvals: tuple[Approval, ...] = ()
    """Tool calls that wait for a decision; likewise."""
    result: RunResult | None = None
    unheard: tuple[str, ...] = ()
    """What the caller told the agent after it had stopped listening."""

    @property
    def settled(self) -> bool:
        """Waiting longer changes nothing: it has ended, or the caller has to answer or decide."""
        return self.status in FINAL or self.asks

    @property
    def asks(self) -> bool:
        """The caller has to answer or to decide, or the person behind it."""
        return bool(self.questions or self.approvals)

    @property
    def waits_for_a_person(self) -> bool:
        """Nothing that the caller itself could say makes it go on."""
        only = all(approval.approval_by == "user" for approval in self.approvals)
        return bool(self.approvals) and only and not self.questions


class TaskBook:
    """Reads and changes tasks in the store, whichever process runs them."""

    def __init__(
        self,
        store: Store,
        exchanges: Exchanges,
        news: News,
        alive: Callable[[str], bool],
        recall: Recall = nothing_kept,
        project: str | None = None,
    ) -> None:
        """`project` is the one whose runs callers see; None for a book that only operators use."""
        self.store = store
        self._project = project
        self._exchanges = exchanges
        self._news = news
        self._alive = alive
        self._recall = recall
        self._settled = -inf

    async def wait(
        self,
        run_ids: Sequence[str],
        caller: str | None,
        *,
        seconds: float,
        until: Until = "all",
        patient: bool = False,
    ) -> tuple[TaskView, ...]:
        """The tasks, as soon as they are settled, or one of them, or when the time is over.

        A question or a tool call that has to be approved is told at once, whatever is waited for;
        who is patient waits on where only a person can decide.
        """
        deadline = anyio.current_time() + seconds
        ended: dict[str, TaskView] = {}
        while True:
            changed = self._news.next()
            await self.settle_now_and_then()
            views = [ended.get(run_id) or await self.view(run_id, caller) for run_id in run_ids]
            ended = {view.run_id: view for view in views if view.status in FINAL}
            idle = [patient and view.waits_for_a_person for view in views]
            done = [view.settled and not idles for view, idles in zip(views, idle, strict=True)]
            asks = any(view.asks and not idles for view, idles in zip(views, idle, strict=True))
            left = deadline - anyio.current_time()
            if all(done) or asks or (until == "any" and any(done)) or left <= 0:
                return tuple(views)
            await wait_for_news(changed, left)

    async def view(
        self, run_id: str, caller: str | None = None, *, fresh: bool = False
    ) -> TaskView:
        """One task; None as the caller is the operator, who sees all. Of a fresh one, which has
        just been accepted, it is not looked up what it asks.
        """
        record = await self._record(run_id, caller)
        if fresh and record.status in ("pending", "running"):
            return _view(record)
        if record.status in FINAL:
            return _view(record, unheard=await self._exchanges.unheard(run_id))
        questions: list[Question] = []
        approvals: list[Approval] = []
        for each in (run_id, *await self.store.descendants(run_id)):
            questions += await self._exchanges.questions(each, pending=True)
            approvals += await self._exchanges.approvals(each, pending=True)
        shown = _shown(record, question=bool(questions), approval=bool(approvals))
        return _view(shown, questions=tuple(questions), approvals=tuple(approvals))

    async def check(self, run_id: str, caller: str | None) -> None:
        """RunNotFound if there is no such run, or none that this caller may see."""
        await self._record(run_id, caller)

    async def record(self, run_id: str) -> RunRecord:
        """One run as the store has it, but with the status that is shown; for the operator."""
        (shown,) = await self._with_shown_statuses([await self._record(run_id, None)])
        return shown

    async def list(
        self,
        caller: str | None = None,
        *,
        statuses: Iterable[RunStatus] = (),
        agent: str = "",
        limit: int = 50,
    ) -> tuple[TaskView, ...]:
        """The newest ones first, of the book's project; without their results, and without what
        they ask.
        """
        projects = None if self._project is None else (self._project,)
        found = await self.records(
            caller, statuses=statuses, agent=agent, limit=limit, projects=projects
        )
        return tuple(_view(record) for record in found)

    async def records(
        self,
        caller: str | None = None,
        *,
        statuses: Iterable[RunStatus] = (),
        agent: str = "",
        limit: int = 50,
        projects: Sequence[str] | None = None,
        results: bool = False,
        asked_for: bool = False,
        parent: str = "",
        before: tuple[float, str] | None = None,
    ) -> tuple[RunRecord, ...]:
        """Runs of some projects or of all, the newest first, with the statuses that are shown; two
        or three queries in all. The last three are as `find_runs` has them.
        """
        wanted = frozenset(statuses)
        ends = tuple(wanted & FINAL)
        find = partial(
            self.store.find_runs,
            caller,
            agent=agent,
            projects=projects,
            asked_for=asked_for,
            parent=parent,
            before=before,
        )
        found: tuple[RunRecord, ...] = ()
        if ends or not wanted:
            found = await find(ends, limit=limit, results=results)
        if wanted - FINAL:  # what is shown of these is not what is stored: look at all of them
            found += await find(OPEN, limit=-1)
        shown = await self._with_shown_statuses(found)
        chosen = [record for record in shown if not wanted or record.status in wanted]
        newest = sorted(chosen, key=lambda run: (run.created, run.run_id), reverse=True)
        return tuple(newest[:limit])

    async def families(
        self, *, limit: int, projects: Sequence[str] | None = None
    ) -> tuple[RunRecord, ...]:
        """The newest runs that callers asked for, with their results, and then those of all agents
        that worked for them; for the operator.
        """
        asked = await self.store.find_runs(
            limit=limit, projects=projects, results=True, asked_for=True
        )
        others = await self.store.errands([record.run_id for record in asked])
        return await self._with_shown_statuses((*asked, *others))

    async def named(self, text: str, project: str) -> str:
        """The id of the run that the operator means: `last` is the newest of the project, and the
        beginning of an id is enough where only one begins so.
        """
        if text == LAST:
            newest = await self.store.find_runs(limit=1, projects=(project,), asked_for=True)
            if not newest:
                raise RunNotFound(f"nothing has run in {project} yet")
            return newest[0].run_id
        if await self.store.run(text) is not None:
            return text
        found = await self.store.reports.run_ids(text) if text else ()
        if len(found) == 1:
            return found[0]
        if found:
            raise CallInvalid(
                f"{text!r} is the beginning of several runs: {', '.join(found)}; write more of it"
            )
        raise RunNotFound(f"there is no run {text!r}; `orchestrator runs` lists them")

    async def _with_shown_statuses(self, records: Sequence[RunRecord]) -> tuple[RunRecord, ...]:
        if all(record.status in FINAL for record in records):
            return tuple(records)
        asking = await self._exchanges.asking()
        return tuple(
            _shown(
                record,
                question=record.run_id in asking.questions,
                approval=record.run_id in asking.approvals,
            )
            for record in records
        )

    async def versions(self, run_ids: Iterable[str]) -> dict[str, object]:
        """For each run that is there, a value that is another one when a view of it would be."""
        versions = await self.store.versions(run_ids)
        asking = await self._exchanges.asking()
        return {
            run_id: (*version, run_id in asking.questions, run_id in asking.approvals)
            for run_id, version in versions.items()
        }

    async def asking(self) -> tuple[tuple[Question, ...], tuple[Approval, ...]]:
        """What waits for an answer or a decision, of all runs."""
        return (
            await self._exchanges.questions(pending=True),
            await self._exchanges.approvals(pending=True),
        )

    async def reply(self, run_id: str, message_id: str, answer: str, caller: str | None) -> None:
        """Answer a question of a run, or of one that works for it; RunRefused if it is not open, or
        the answer says nothing.
        """
        if not answer.strip():
            raise RunRefused("the answer is empty; say something, if only that you do not know")
        record = await self._record(run_id, caller)
        for below in await self.store.descendants(run_id):
            if await self._exchanges.question(below, message_id) is not None:
                run_id = below
        if await self._exchanges.question(run_id, message_id) is not None:
            await self._note(record, caller, "answer", message_id)
        if await self._exchanges.answer(run_id, message_id, answer, whom=whom(caller)):
            self._news.tell()
            return
        known = await self._exchanges.question(run_id, message_id)
        if known is None:
            raise RunRefused(f"run {run_id} has asked no question {message_id!r}")
        if (await self._record(run_id, caller)).status in FINAL:
            raise RunRefused(f"run {run_id} has ended, so no agent is there to hear the answer")
        if known.status == "unanswered":
            raise RunRefused(f"question {message_id} waits no more: its agent went on without you")
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
        messages: Mapping[str, str] | None = None,
        person: bool = False,
    ) -> tuple[Approval, ...]:
        """Decide tool calls that wait; RunRefused if one of those named does not, or not any more,
        or if one is to be allowed that only a person may allow. That is the operator, and whoever
        answered a client's form (`person`); a caller may be a model. It may refuse any of them.

        `message` is why not, for the agent, and `messages` the same by call. What was decided, in
        the order it was asked for.
        """
        record = await self._record(run_id, caller)
        asked = await self._exchanges.approvals(run_id, pending=True)
        pending = {each.call_id for each in asked}
        unknown = [call for call in (*approve, *reject) if call not in pending]
        if unknown:
            raise RunRefused(
                f"run {run_id} has no tool call {', '.join(unknown)} that waits to be approved; "
                f"waiting: {', '.join(sorted(pending)) or 'none'}"
            )
        approved = set(approve) | (pending - set(reject) if approve_all else set())
        rejected = set(reject) | (pending - approved if reject_all else set())
        persons = [
            each for each in asked if each.approval_by == "user" and each.call_id in approved
        ]
        if persons and not (person or caller is None):
            for each in persons:
                why = "approval_by: user, and no person has allowed it"
                await self._note(record, caller, "approve", _call(each), why, allowed=False)
            raise RunRefused(_for_a_person(persons))
        usual = message or "the caller has rejected this; do without it"
        late = []
        for call in sorted(approved | rejected):
            refused = call in rejected
            why = (messages or {}).get(call) or usual
            about = next(_call(each) for each in asked if each.call_id == call)
            await self._note(record, caller, "approve", about, why * refused, allowed=not refused)
            if refused:
                done = await self._exchanges.decide(
                    run_id, call, "rejected", message=why, whom=whom(caller)
                )
            else:
                edited = (inputs or {}).get(call)
                done = await self._exchanges.decide(
                    run_id, call, "approved", new_input=edited, whom=whom(caller)
                )
            if not done:
                late.append(call)
        self._news.tell()
        if late:
            raise RunRefused(f"too late: {', '.join(late)} of run {run_id} waits no more")
        known = await self._exchanges.approvals(run_id)
        return tuple(each for each in known if each.call_id in approved | rejected)

    async def tell(self, run_id: str, text: str, caller: str | None, *, now: bool = False) -> bool:
        """Tell an agent something in the middle of its work; False if its run has ended.

        It hears it after the step that it is at; `now` stops that.
        """
        record = await self._record(run_id, caller)
        await self._note(record, caller, "tell")
        kind = "say_now" if now else "say"
        return await self._exchanges.order(run_id, kind, text, whom(caller))

    async def follow_up(self, run_id: str, text: str, caller: str | None) -> Task:
        """The task that goes on where an ended run stopped; RunRefused if that is nowhere."""
        record = await self._record(run_id, caller)
        if caller not in (None, record.caller):
            raise RunRefused(f"run {run_id} worked for {record.caller}, who alone can go on")
        session = record.result.session if record.result is not None else ""
        made = record.wish is not None and record.status == "completed"
        if not (session or made):
            raise RunRefused(
                f"run {run_id} has ended and its container is gone; start a new task, or give the "
                "agent sessions (`session: true`)"
            )
        return Task(
            agent=record.agent,
            prompt=text,
            context="" if session else _told_before(record),
            caller=record.caller,
            project=record.project,
            workspace=record.workspace,
            session=session,
            wish=record.wish,
            parent_run_id=run_id,
        )

    async def newest(self, run_id: str, caller: str | None) -> str:
        """The run that an id stands for: of an agent made at call time, the last that went on from
        it, since such a task keeps its id.
        """
        record = await self._record(run_id, caller)
        return run_id if record.wish is None else await self.store.last_follow_up(run_id)

    async def cancel(
        self, run_id: str, caller: str | None, *, seconds: float = CANCEL_SECONDS
    ) -> TaskView:
        """End a task, and see it end, unless that takes longer: it ends all the same."""
        await self.note_cancel(run_id, caller)
        record = await self._record(run_id, caller)
        if record.suspended is not None:  # no process would obey
            await end_lost(
                *(self.store, record, self._recall),
                status="cancelled",
                reason="cancelled",
                message=CANCELLED_WAITING,
            )
            await self.settle()
            self._news.tell()
        await self._exchanges.order(run_id, "cancel", whom=whom(caller))
        return await self.until_ended(run_id, caller, seconds=seconds)

    async def until_ended(self, run_id: str, caller: str | None, *, seconds: float) -> TaskView:
        """The task as soon as it has ended, or when the time is over."""
        deadline = anyio.current_time() + seconds
        while True:
            changed = self._news.next()
            view = await self.view(run_id, caller)
            left = deadline - anyio.current_time()
            if view.status in FINAL or left <= 0:
                return view
            await self.settle()
            await wait_for_news(changed, left)

    async def goes_on_by_itself(self, run_id: str) -> bool:
        """Whether a process has a run, or would take it up when it has its answers."""
        record = await self._record(run_id, None)
        if record.suspended is None:
            return True
        return any(map(self._alive, await self.store.servers(record.project)))

    async def settle(self) -> None:
        """End the runs whose orchestrator has died, but for those that wait for a word."""
        self._settled = anyio.current_time()
        if await settle_lost(self.store, self._alive, self._recall):
            self._news.tell()

    async def settle_now_and_then(self) -> None:
        """The same, unless it was done a moment ago."""
        if anyio.current_time() - self._settled > LOST_SECONDS:
            await self.settle()

    async def _record(self, run_id: str, caller: str | None) -> RunRecord:
        record = await self.store.run(run_id)
        if record is None or not await self._may_see(record, caller):
            lists = "`orchestrator runs` lists them"
            if caller is not None:
                lists = "get_all_tasks lists yours"
            if record is not None:
                why = "it is another caller's, or another project's"
                await self._note(record, caller, "see", why=why, allowed=False)
            raise RunNotFound(f"there is no run {run_id!r}; {lists}")
        return record

    async def note_cancel(self, run_id: str, caller: str | None, why: str = "") -> None:
        """Write down that a run is ended, before it is; not for one that has ended already. Why, if
        the caller has not said so.
        """
        record = await self._record(run_id, caller)
        if record.status not in FINAL:
            await self._note(record, caller, "cancel", why=why)

    async def _note(
        self,
        record: RunRecord,
        caller: str | None,
        act: AuditAct,
        subject: str = "",
        why: str = "",
        *,
        allowed: bool = True,
    ) -> None:
        """Write a decision about a run down, before it is acted on."""
        entry = AuditEntry.by(
            caller,
            act,
            project=record.project,
            allowed=allowed,
            subject=subject,
            run_id=record.run_id,
            why=why,
        )
        await self.store.audit.note(entry)

    async def _may_see(self, record: RunRecord, caller: str | None) -> bool:
        """Who started it, or what it works for, in the same project; the operator sees all."""
        if caller is None:
            return True
        if self._project is not None and record.project != self._project:
            return False
        if record.caller == caller:
            return True
        above = await self.store.run(record.parent_run_id) if record.parent_run_id else None
        return above is not None and await self._may_see(above, caller)


def _told_before(record: RunRecord) -> str:
    """For an agent without a session that goes on: what it was told, and what it answered."""
    answered = None if record.result is None else record.result.result
    told = "\n\n".join(filter(None, (record.context, record.prompt)))
    return (
        f"You have done this task before:\n{told[-TOLD_BEFORE_CHARS:]}\n\n"
        f"You answered:\n{fenced(_end_of(answered), record.agent, record.run_id)}\n\n"
        "The container of then is gone; the workspace is as your caller has it now."
    )


def _end_of(answer: object) -> object:
    """The last part of a long answer; what is not text as it would be written."""
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    return text[-TOLD_BEFORE_CHARS:] if len(text) > TOLD_BEFORE_CHARS else answer


def _call(approval: Approval) -> str:
    return f"{approval.call_id} {approval.tool}"


def _for_a_person(calls: Sequence[Approval]) -> str:
    commands = ", ".join(f"`orchestrator approve {each.run_id} {each.call_id}`" for each in calls)
    return (
        "only a person may allow this, as agent.md says (approval_by: user), so nothing was "
        f"decided. Tell your user: {commands} in a terminal allows it, `orchestrator reject` "
        "refuses it, and a client that can show forms shows one; wait_for_tasks waits for it"
    )


def _shown(record: RunRecord, *, question: bool, approval: bool) -> RunRecord:
    status = shown_status(record.status, question=question, approval=approval)
    return record if status == record.status else record.model_copy(update={"status": status})


def _view(
    record: RunRecord,
    *,
    questions: tuple[Question, ...] = (),
    approvals: tuple[Approval, ...] = (),
    unheard: tuple[str, ...] = (),
) -> TaskView:
    return TaskView(
        run_id=record.run_id,
        agent=record.agent,
        caller=record.caller,
        status=record.status,
        reason=record.reason,
        project=record.project,
        window=record.window,
        prompt=record.prompt,
        context=record.context,
        wish=record.wish,
        created=record.created,
        ended=record.ended,
        parent_run_id=record.parent_run_id,
        depth=record.depth,
        workspace=record.workspace,
        session=record.session,
        questions=questions,
        approvals=approvals,
        result=record.result,
        unheard=unheard,
    )
