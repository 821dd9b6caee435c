"""Runs as MCP tasks, for clients that declare `io.modelcontextprotocol/tasks`; never required.

Such a client gets a task where others get `{"status": "running", "next": ...}`: when a call that
starts a run outlasts its window. The task is the run, by the same id, so it is known after a
restart too, and our own tools work on it as well. The client asks for it until it has ended, and
has its person answer what the agent asks meanwhile.

With `background: true` the answer stays what it is: many clients wait for a task inside the call,
and a caller that said `background` wants to go on at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import mcp.types as t
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.mcpserver import Extension, MethodBinding, require_client_extension
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from pydantic import BaseModel, TypeAdapter, ValidationError

from orchestrator.domain.result import FINAL, WAITING
from orchestrator.domain.words import ended_as, requirement
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.errors import OrchestratorError, RunNotFound, RunRefused
from orchestrator.surfaces.event_lines import event_line
from orchestrator.surfaces.mcp.answers.answer import run_answer
from orchestrator.surfaces.mcp.arguments import OptionalFlag, WhoCalls
from orchestrator.surfaces.mcp.forms import (
    PersonAsked,
    Response,
    asked_by,
    can_ask,
    deliver,
    form_key,
    form_of,
    response_to,
)
from orchestrator.surfaces.mcp.notices import McpRequest
from orchestrator.surfaces.text import shortened

if TYPE_CHECKING:
    from orchestrator.engine.tasks.tasks import Tasks

log = logging.getLogger(__name__)

STARTS = frozenset(("run_subagent", "delegate_task"))
"""Tools that start one run and wait for it. Those that wait for what is there already make no task
of it again; dynamic_subagent_task answers a task id of its own at once."""

TASK_VERSIONS = frozenset(("2026-07-28",))
"""Of the protocol: earlier ones have no way to answer a call with a task."""

POLL_MS = 1000
"""How often a client should ask."""

DAY_MS = 86_400_000

WireDocument = dict[str, Any]
"""As it is sent."""

FLAG: TypeAdapter[bool] = TypeAdapter(OptionalFlag)


class TaskParams(t.RequestParams):
    """Of tasks/get and tasks/cancel."""

    task_id: str


class UpdateParams(TaskParams):
    """Of tasks/update."""

    input_responses: dict[str, Any]


class TaskExtension(Extension):
    """Makes tasks of calls, and serves the three methods about them."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, tasks: Tasks, who_calls: WhoCalls, keep_days: int) -> None:
        self._tasks = tasks
        self._who_calls = who_calls
        self._ttl_ms = keep_days * DAY_MS

    def methods(self) -> Sequence[MethodBinding]:
        return [
            MethodBinding("tasks/get", TaskParams, self._served(self._get), TASK_VERSIONS),
            MethodBinding("tasks/update", UpdateParams, self._served(self._update), TASK_VERSIONS),
            MethodBinding("tasks/cancel", TaskParams, self._served(self._cancel), TASK_VERSIONS),
        ]

    async def intercept_tool_call(
        self, params: t.CallToolRequestParams, ctx: McpRequest, call_next: CallNext
    ) -> HandlerResult:
        """The answer that a run goes on -> a task. Any other answer stays what it is."""
        result = await call_next(ctx)
        if params.name not in STARTS or not self._declared_by(ctx):
            return result
        run_id = _goes_on(result)
        if run_id is None or FLAG.validate_python((params.arguments or {}).get("background")):
            return result
        view = await self._view(run_id)
        return {"resultType": "task", **await self._task(view, _status(view, ctx))}

    async def serve(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware: refuse to notify a client of tasks that does not declare them."""
        wanted = (ctx.params or {}).get("notifications")
        asked = isinstance(wanted, Mapping) and wanted.get("taskIds")
        if ctx.method == "subscriptions/listen" and asked:
            require_client_extension(ctx, self.identifier)
        return await call_next(ctx)

    # The methods

    def _served(
        self, method: Callable[[McpRequest, Any], Awaitable[WireDocument]]
    ) -> Callable[[McpRequest, Any], Awaitable[WireDocument]]:
        async def served(ctx: McpRequest, params: TaskParams) -> WireDocument:
            require_client_extension(ctx, self.identifier)
            _check_header(ctx, params.task_id)
            try:
                return await method(ctx, params)
            except RunNotFound as exc:
                raise MCPError(code=t.INVALID_PARAMS, message=str(exc)) from exc
            except OrchestratorError as exc:
                raise MCPError(code=t.INTERNAL_ERROR, message=str(exc)) from exc

        return served

    async def _get(self, ctx: McpRequest, params: TaskParams) -> WireDocument:
        view = await self._view(params.task_id)
        status = _status(view, ctx)
        task = await self._task(view, status)
        if status == "completed":
            task["result"] = _wire(run_answer(view))
        if status == "input_required":
            forms = {form_key(each): form_of(each) for each in asked_by(view)}
            task["inputRequests"] = {key: _wire(form) for key, form in forms.items()}
        return task

    async def _update(self, ctx: McpRequest, params: UpdateParams) -> WireDocument:
        """Answers to what is not open any more, or never was, are nothing to complain about."""
        view = await self._view(params.task_id)
        if not can_ask(ctx.session.client_capabilities):
            return {}  # it has shown no form, so no person has said anything
        given = [
            (each, _response(each, params.input_responses[form_key(each)]))
            for each in asked_by(view)
            if form_key(each) in params.input_responses
        ]
        for each, response in given:
            if response is None:
                continue
            try:
                await deliver(self._tasks, each, response, self._who_calls())
            except RunRefused as exc:  # answered elsewhere, or the run has ended
                log.info("a person's answer is not used: %s", exc)
        return {}

    async def _cancel(self, _: McpRequest, params: TaskParams) -> WireDocument:
        await self._tasks.cancel(params.task_id, self._who_calls())
        return {}

    # What a task looks like

    def _declared_by(self, ctx: McpRequest) -> bool:
        """By this very request: in the newer era each says what its client can do."""
        capabilities = ctx.session.client_capabilities
        declared = capabilities.extensions if capabilities is not None else None
        return ctx.protocol_version in TASK_VERSIONS and self.identifier in (declared or {})

    async def _view(self, run_id: str) -> TaskView:
        """As it is now: also if the orchestrator that had it has died."""
        (view,) = await self._tasks.book.wait([run_id], self._who_calls(), seconds=0)
        return view

    async def _task(self, view: TaskView, status: str) -> WireDocument:
        at, last = await self._last_event(view)
        if view.asks:
            said = _text(run_answer(view))
        elif view.status in FINAL:
            said = f"{view.agent} {ended_as(view.status, view.reason)}"
        else:
            said = last or f"{view.agent} is {view.status}"
        if status == "cancelled":
            said += f"; get_task_details of {view.run_id} tells what it had done"
        return {
            "taskId": view.run_id,
            "status": status,
            "statusMessage": said,
            "createdAt": _iso(view.created),
            "lastUpdatedAt": _iso(view.ended or at),
            "ttlMs": self._ttl_ms,
            "pollIntervalMs": POLL_MS,
        }

    async def _last_event(self, view: TaskView) -> tuple[float, str]:
        """When something happened last, and what."""
        for event in await self._tasks.book.store.events(view.run_id, limit=1, last=True):
            line = event_line(event.kind, event.text)
            return event.at, shortened(f"{view.agent} {line.label}: {line.text}")
        return view.created, ""


def _status(view: TaskView, ctx: McpRequest) -> str:
    """What the protocol calls it.

    A run that failed is a task that completed, with a result that is an error. A client that cannot
    show a form is not asked for input: its model reads in the message which tools take the answer.
    """
    if view.status == "cancelled":
        return "cancelled"
    if view.status in FINAL:
        return "completed"
    asked = view.asks and can_ask(ctx.session.client_capabilities)
    return "input_required" if asked else "working"


def _goes_on(result: HandlerResult) -> str | None:
    """The run that an answer says to go on, if it says so."""
    found = result.structured_content if isinstance(result, t.CallToolResult) else None
    if not isinstance(found, dict) or "run_id" not in found:
        return None
    return None if found["status"] in FINAL | WAITING else str(found["run_id"])


def _response(asked: PersonAsked, given: object) -> Response | None:
    """What a person has said; None leaves it to the caller's tools."""
    try:
        return response_to(asked, given)
    except ValidationError as exc:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc']))} {requirement(e['type'], e['msg'])}"
            for e in exc.errors()
        )
        said = f"the response to {form_key(asked)!r} does not fit what was asked: {wrong}"
        raise MCPError(code=t.INVALID_PARAMS, message=said) from exc


def _check_header(ctx: McpRequest, task_id: str) -> None:
    """Over HTTP, what is between us and the client may have gone by the header."""
    headers = getattr(ctx.request, "headers", None) or {}
    named = headers.get(MCP_NAME_HEADER)
    if named is not None and decode_header_value(named) != task_id:
        raise MCPError(
            code=t.HEADER_MISMATCH, message=f"{MCP_NAME_HEADER} names another task than taskId does"
        )


def _wire(model: BaseModel) -> WireDocument:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


def _text(answer: t.CallToolResult) -> str:
    return "\n".join(part.text for part in answer.content if isinstance(part, t.TextContent))


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
