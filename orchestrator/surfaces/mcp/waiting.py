"""Calls that wait for runs: not longer than their client does, and not in silence.

A call whose time is up says how to go on, and the run goes on. A question goes to the caller, or to
the person behind it if agent.md says so and the client can ask; a person who will not answer leaves
it to the caller. So does a tool call that has to be approved, but where agent.md leaves that to a
person, the caller cannot do it instead.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

import anyio
import mcp.types as t
from mcp import MCPError
from mcp.server.mcpserver import Context
from pydantic import ValidationError

from orchestrator.domain import Frozen
from orchestrator.domain.events import Event
from orchestrator.domain.task import Once, Task
from orchestrator.domain.words import CANCELLED, CONNECTION_CLOSED
from orchestrator.engine.tasks.news import wait_for_news
from orchestrator.engine.tasks.task_book import TaskView, Until
from orchestrator.errors import AskedBefore, CallInvalid, OrchestratorError, RunRefused
from orchestrator.surfaces.connect.messages import KEY_META
from orchestrator.surfaces.event_lines import event_line
from orchestrator.surfaces.mcp.answers.answer import run_answer
from orchestrator.surfaces.mcp.client_window import window_seconds
from orchestrator.surfaces.mcp.forms import (
    PersonAsked,
    asked_by,
    can_ask,
    deliver,
    form_key,
    form_of,
    form_params,
    response_to,
)
from orchestrator.surfaces.mcp.notices import is_modern
from orchestrator.surfaces.text import LINE_CHARS

if TYPE_CHECKING:
    from orchestrator.engine.record import Listener
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
"""Between two words to a client that waits; clients give up on silent servers."""

QUEUED_LINES = 1000
"""Of progress; a client that does not keep up misses some, not the answer."""

START_SECONDS = 20.0
"""For a run to be accepted: every client waits for that long."""

NOT_READY = (
    "nothing was started, since what it needs takes longer than you can wait: the agent image is "
    "being built, or a secret's command does not answer. Call again in a minute; `orchestrator "
    "images build` shows how far it is"
)

Call = Context[Any]

ToolReply = t.CallToolResult | t.InputRequiredResult

Followed = tuple[TaskView, ...] | t.InputRequiredResult
"""Runs; or what a person has to be asked before the call comes again."""

Start = Callable[["Listener"], Awaitable[list[str]]]
"""Begins runs, which tell the listener what happens."""

T = TypeVar("T")


class Round(Frozen):
    """What a call carries over to the one that follows it, with a person's answer."""

    runs: tuple[str, ...]
    run_id: str
    """Of the run that asks."""
    key: str
    """Of the form."""


@dataclass
class Wait:
    """How long one call waits, and for what."""

    ctx: Call
    caller: str
    deadline: float
    gives_up: float
    """When its client does; later than the deadline if the caller wants to wait for less."""
    runs: tuple[str, ...] = ()
    """Those that the call has started, in this round or an earlier one."""
    declined: set[str] = field(default_factory=set)
    """Forms that the person will not fill in."""
    patient: bool = False
    """Where only a person can decide, and no form can be shown, wait for that."""

    @property
    def left(self) -> float:
        return max(0.0, self.deadline - anyio.current_time())

    def at_most(self, seconds: float) -> None:
        """Wait less, if that is less."""
        self.deadline = min(self.deadline, anyio.current_time() + seconds)


class Waiting:
    """For the tools: run, wait, and be asked meanwhile."""

    def __init__(self, service: Service, tasks: Tasks, override: float | None) -> None:
        self._service = service
        self._tasks = tasks
        self._override = override

    async def begin(self, ctx: Call, caller: str) -> Wait:
        """A call has come; if it comes again with a person's answer, that is delivered."""
        client = ctx.session.client_params
        name = client.client_info.name if client is not None else ""
        version = client.client_info.version if client is not None else ""
        seconds = window_seconds(name, self._override, version)
        now = anyio.current_time()
        wait = Wait(ctx, caller, now + seconds, gives_up=now + max(seconds, START_SECONDS))
        if ctx.request_state is not None:
            last = Round.model_validate_json(ctx.request_state)
            wait.runs = last.runs
            response = (ctx.input_responses or {}).get(last.key)
            view = await self._tasks.book.view(last.run_id, caller)
            for asked in asked_by(view):
                if form_key(asked) == last.key:
                    await self._deliver(wait, asked, response)
        return wait

    async def run(self, ctx: Call, task: Task, *, background: bool = False) -> ToolReply:
        """Run a task: to its end if that comes soon enough."""
        wait = await self.begin(ctx, task.caller)
        if background:
            wait.at_most(0)

        async def start(listener: Listener) -> list[str]:
            return [await self.started(ctx, task, listener)]

        found = await self.start_and_follow(wait, start)
        return found if isinstance(found, t.InputRequiredResult) else run_answer(found[0])

    async def started(self, ctx: Call, task: Task, listener: Listener, part: str = "") -> str:
        """Begin a task; or, of a call that comes again under its key, the run that it began then.

        `part` is which of the tasks of one call it is.
        """
        once = asked_once(ctx, task, part)
        if once is None:
            return await self._tasks.start(task, listener)
        kept = await self._service.store.request_keys.find(self._service.project, once)
        if kept is not None:
            return kept.run_id
        try:
            return await self._tasks.start(task.model_copy(update={"once": once}), listener)
        except AskedBefore as exc:  # at the same moment
            return exc.run_id

    async def start_and_follow(self, wait: Wait, start: Start) -> Followed:
        """Start runs, unless an earlier round of the call has, and follow them."""
        with ProgressLines("it is being prepared") as progress:
            try:
                views = await progress.during(wait.ctx, self._started(wait, start, progress.add))
                return await self._with_answers(wait, views, "all", progress)
            except anyio.get_cancelled_exc_class():  # a client that takes back a call ends its runs
                await self.end(wait.runs, wait.caller, _taken_back(wait.ctx))
                raise

    async def follow(self, wait: Wait, runs: Sequence[str], *, until: Until = "all") -> Followed:
        """What has become of runs: when they are settled, or when the time is up."""
        with ProgressLines(f"waiting for {' '.join(runs)}") as progress:
            views = await progress.during(wait.ctx, self._settled(wait, runs, until))
            return await self._with_answers(wait, views, until, progress)

    async def _started(self, wait: Wait, start: Start, listener: Listener) -> tuple[TaskView, ...]:
        """Have the runs of a call, and wait for them; RunRefused if they cannot begin before its
        client gives up.
        """
        if not wait.runs:
            with anyio.move_on_after(wait.gives_up - anyio.current_time()):
                wait.runs = tuple(await start(listener))
        if not wait.runs:
            raise RunRefused(NOT_READY)
        return await self._settled(wait, wait.runs, "all")

    async def _settled(self, wait: Wait, runs: Sequence[str], until: Until) -> tuple[TaskView, ...]:
        return await self._tasks.book.wait(
            runs, wait.caller, seconds=wait.left, until=until, patient=self._is_patient(wait)
        )

    def _is_patient(self, wait: Wait) -> bool:
        return wait.patient and not can_ask(wait.ctx.client_capabilities)

    async def _with_answers(
        self, wait: Wait, views: tuple[TaskView, ...], until: Until, progress: ProgressLines
    ) -> Followed:
        """The runs once nothing that they ask is for a person; until then, the person is asked."""
        while asked := await self._for_a_person(wait, views):
            runs = [view.run_id for view in views]
            if is_modern(wait.ctx.request_context):
                return _to_be_asked(asked, runs)
            await progress.during(wait.ctx, self._ask(wait, asked))
            views = await progress.during(wait.ctx, self._settled(wait, runs, until))
        return views

    async def end(self, runs: Sequence[str], caller: str, why: str = CANCELLED) -> None:
        """Cancel runs, all at once, even if we are cancelled ourselves."""

        async def cancel(run_id: str) -> None:
            try:
                await self._tasks.cancel(run_id, caller, why=why)
            except OrchestratorError as exc:
                log.warning("run %s is not cancelled: %s", run_id, exc)

        with anyio.CancelScope(shield=True):  # each cancellation is bounded
            async with anyio.create_task_group() as group:
                for run_id in runs:
                    group.start_soon(cancel, run_id)

    # What a person is asked

    async def _for_a_person(self, wait: Wait, views: Sequence[TaskView]) -> PersonAsked | None:
        """A tool call or a question that the author of the agent that asks, maybe for another one,
        wants a person to decide or to answer.
        """
        if not (wait.left and can_ask(wait.ctx.client_capabilities)):
            return None
        for approval in (each for view in views for each in view.approvals):
            if approval.approval_by == "user" and form_key(approval) not in wait.declined:
                return approval
        agents = self._service.agents.current().agents
        for question in (each for view in views for each in view.questions):
            asker = await self._service.store.run(question.run_id)
            agent = agents.get(asker.agent) if asker is not None else None
            wanted = agent is not None and agent.ask.whom == "user"
            if wanted and question.message_id not in wait.declined:
                return question
        return None

    async def _ask(self, wait: Wait, asked: PersonAsked) -> None:
        """Ask in the middle of the call, until it must end or the run waits for it no more."""
        response: t.ElicitResult | None = None
        form = form_params(asked)
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_answered, asked, group.cancel_scope)
            with anyio.move_on_after(wait.left), suppress(MCPError):
                response = await wait.ctx.session.elicit_form(
                    form.message, form.requested_schema, related_request_id=wait.ctx.request_id
                )
            group.cancel_scope.cancel()
        await self._deliver(wait, asked, response)

    async def _until_answered(self, asked: PersonAsked, scope: anyio.CancelScope) -> None:
        with suppress(OrchestratorError):
            while True:
                changed = self._service.news.next()
                view = await self._tasks.book.view(asked.run_id)
                if form_key(asked) not in map(form_key, asked_by(view)):
                    break
                await wait_for_news(changed)
        scope.cancel()

    async def _deliver(self, wait: Wait, asked: PersonAsked, given: object) -> None:
        try:
            response = response_to(asked, given)
        except ValidationError as exc:  # no answer at all, or none that fits
            log.info("a person's answer is not used: %s", exc)
            response = None
        if response is None:
            wait.declined.add(form_key(asked))
            return
        try:
            await deliver(self._tasks, asked, response, wait.caller)
        except OrchestratorError as exc:  # answered elsewhere, or the run has ended
            log.info("a person's answer is not used: %s", exc)


def asked_once(ctx: Call, task: Task, part: str) -> Once | None:
    """Under which key a call asks for a task, if it has one; CallInvalid if that is no key."""
    key = (ctx.request_context.meta or {}).get(KEY_META)
    if key is None:
        return None
    if not isinstance(key, str) or not re.fullmatch(r"[!-~]{1,200}", key):
        raise CallInvalid(f"{KEY_META} in _meta has 1 to 200 printable ASCII characters")
    asked = task.model_dump_json(exclude={"run_id", "once", "after", "window", "project"})
    return Once(
        asker=task.caller,
        method="tools/call",
        path=part,
        key=key,
        sha256=hashlib.sha256(asked.encode()).hexdigest(),
    )


def _taken_back(ctx: Call) -> str:
    """Why a call is cancelled: over HTTP, clients of the newer era say so by hanging up."""
    request = ctx.request_context
    over_http = getattr(request.request, "headers", None) is not None
    return CONNECTION_CLOSED if over_http and is_modern(request) else CANCELLED


def _to_be_asked(asked: PersonAsked, runs: Sequence[str]) -> t.InputRequiredResult:
    state = Round(runs=tuple(runs), run_id=asked.run_id, key=form_key(asked))
    return t.InputRequiredResult(
        input_requests={form_key(asked): form_of(asked)}, request_state=state.model_dump_json()
    )


class ProgressLines:
    """What a client is told while its call lasts: the last line again if nothing happens."""

    def __init__(self, first: str = "") -> None:
        self._send, self._receive = anyio.create_memory_object_stream[str](QUEUED_LINES)
        self._last = first[:LINE_CHARS]
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send.close()
        self._receive.close()

    def add(self, event: Event) -> None:
        """Take note of an event of a run, which may outlast the call."""
        line = event_line(event.kind, event.text)
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            self._send.send_nowait(f"{line.label}: {line.text}"[:LINE_CHARS])

    async def during(self, ctx: Call, work: Awaitable[T]) -> T:
        """Wait for something, and tell the client a line at least every few seconds."""
        found: list[T] = []
        failed: OrchestratorError | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(self._report, ctx)
            try:
                found.append(await work)
            except OrchestratorError as exc:  # raised in here, it would come out in a group
                failed = exc
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return found[0]

    async def _report(self, ctx: Call) -> None:
        while True:
            with anyio.move_on_after(HEARTBEAT_SECONDS):
                self._last = await self._receive.receive()
            self._count += 1
            await ctx.report_progress(self._count, None, self._last)
