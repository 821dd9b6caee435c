"""Runs and their logs as MCP resources: listed, read and watched by their caller."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mcp.types as t
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

from orchestrator.domain.events import said_so_far
from orchestrator.domain.result import FINAL
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.errors import CallInvalid, OrchestratorError, RunNotFound
from orchestrator.surfaces.event_lines import event_line
from orchestrator.surfaces.mcp.answers.answer import details
from orchestrator.surfaces.mcp.answers.shown_changes import PATCH_URI, RUN_URI
from orchestrator.surfaces.mcp.arguments import WhoCalls
from orchestrator.surfaces.mcp.notices import MAX_WATCHED, McpRequest, RunNotices
from orchestrator.surfaces.text import one_line, shortened

if TYPE_CHECKING:
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

LOGS_URI = "/logs"

LISTED = 20
"""Of the newest runs."""

TITLE_CHARS = 60

LAST_EVENTS = 1000
"""Of a run, in an answer that has no cursor; get_logs tells all of them."""

TOLD_EVENTS = 20
"""The last ones of a run under way, among its details."""


class RunResources:
    """What it takes to have them at a server."""

    def __init__(
        self, service: Service, tasks: Tasks, who_calls: WhoCalls, notices: RunNotices
    ) -> None:
        self._service = service
        self._tasks = tasks
        self._who_calls = who_calls
        self._notices = notices

    def add_to(self, server: MCPServer[Any]) -> None:
        """Register what can be read and subscribed to."""

        @server.resource(RUN_URI + "{run_id}", mime_type="application/json")
        async def run(run_id: str) -> str:
            """A run: its status, what it waits for, its result."""
            try:
                view = await self._tasks.book.view(run_id, self._who_calls())
            except RunNotFound as exc:
                raise ResourceNotFoundError(str(exc)) from exc
            found = await all_details(self._service, view)
            return json.dumps(found, ensure_ascii=False)

        @server.resource(RUN_URI + "{run_id}" + LOGS_URI, mime_type="application/jsonl")
        async def run_logs(run_id: str) -> str:
            """What happened in a run, an event on each line."""
            try:
                await self._tasks.book.view(run_id, self._who_calls())
            except RunNotFound as exc:
                raise ResourceNotFoundError(str(exc)) from exc
            events = await self._service.store.events(run_id, limit=LAST_EVENTS, last=True)
            return "\n".join(event.model_dump_json(exclude={"run_id"}) for event in events)

        @server.resource(RUN_URI + "{run_id}" + PATCH_URI, mime_type="text/x-diff")
        async def run_patch(run_id: str) -> str:
            """What a run changed in its copy, as `git apply` takes it."""
            try:
                view = await self._tasks.book.view(run_id, self._who_calls())
            except RunNotFound as exc:
                raise ResourceNotFoundError(str(exc)) from exc
            if view.result is None or not view.result.patch:
                raise ResourceNotFoundError(
                    f"run {run_id} has no patch, or one that is too long to be read here; "
                    f"`orchestrator show {run_id} --patch` prints what there is"
                )
            return view.result.patch

        low = server._lowlevel_server  # noqa: SLF001 its public face has no way for older clients
        low.add_request_handler(
            "resources/subscribe", t.SubscribeRequestParams, self._notices.subscribe
        )
        low.add_request_handler(
            "resources/unsubscribe", t.UnsubscribeRequestParams, self._notices.unsubscribe
        )

    async def serve(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware: list the caller's runs, and refuse to watch those of another."""
        if ctx.method == "resources/list":
            result = await call_next(ctx)
            return {**result, "resources": [*result["resources"], *(await self._listed())]}
        params = ctx.params or {}
        if ctx.method == "resources/subscribe":
            await self._check([str(params.get("uri"))])
        if ctx.method == "subscriptions/listen":
            uris = _wanted(params)
            await self._check(uris)
            return await self._notices.listening(uris, ctx, call_next)
        return await call_next(ctx)

    async def watch(self) -> None:
        """Tell those who subscribed, for ever."""
        await self._notices.watch(run_of)

    async def _listed(self) -> list[dict[str, object]]:
        found = await self._tasks.book.list(self._who_calls(), limit=LISTED)
        resources: list[dict[str, object]] = []
        for view in found:
            title = shortened(one_line(view.prompt), TITLE_CHARS)
            said = f"{view.agent}, {view.status}: {title}"
            uri = f"{RUN_URI}{view.run_id}"
            resources += [
                {"uri": uri, "name": view.run_id, "title": said, "mimeType": "application/json"},
                {
                    "uri": uri + LOGS_URI,
                    "name": f"{view.run_id} logs",
                    "title": f"What happened in {view.run_id}",
                    "mimeType": "application/jsonl",
                },
            ]
        return resources

    async def _check(self, uris: list[str]) -> None:
        try:
            if len(uris) > MAX_WATCHED:
                raise CallInvalid(f"not more than {MAX_WATCHED} resources can be watched at once")
            for uri in uris:
                await self._tasks.book.view(run_of(uri), self._who_calls())
        except OrchestratorError as exc:
            raise MCPError(code=t.INVALID_PARAMS, message=str(exc)) from exc


async def all_details(service: Service, view: TaskView) -> dict[str, object]:
    """All that is known of a run; of one under way, what it has said and done so far."""
    asked = await service.exchanges.questions(view.run_id)
    if view.status in FINAL:
        return details(view, asked)
    events = await service.store.events(view.run_id, limit=LAST_EVENTS, last=True)
    last = [event_line(event.kind, event.text) for event in events if event.kind != "saying"]
    tail = [f"{line.label}: {line.text}".removesuffix(": ") for line in last[-TOLD_EVENTS:]]
    return details(view, asked, partial_text=said_so_far(events), log_tail=[*map(shortened, tail)])


def run_of(uri: str) -> str:
    """The run that a resource is about."""
    return uri.removeprefix(RUN_URI).removesuffix(LOGS_URI).removesuffix(PATCH_URI)


def _wanted(params: Mapping[str, object]) -> list[str]:
    """The resources that a client wants to hear of."""
    asked = params.get("notifications")
    found = asked.get("resourceSubscriptions") if isinstance(asked, Mapping) else None
    if (asked is not None and not isinstance(asked, Mapping)) or not isinstance(found, list | None):
        raise MCPError(
            code=t.INVALID_PARAMS, message="notifications.resourceSubscriptions must be a list"
        )
    return [str(uri) for uri in found or ()]
