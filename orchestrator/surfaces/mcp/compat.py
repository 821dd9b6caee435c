"""Tools under the names of older subagent servers, for prompts and programs that use those.

Thin aliases, off unless ORCHESTRATOR_COMPATIBILITY is set: each takes the arguments and gives the
answer that its name has elsewhere, and does what our own tools do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import mcp.types as t
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from orchestrator.domain.exchange import Question
from orchestrator.domain.result import RunStatus
from orchestrator.engine.service import Service
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.errors import CallInvalid, RunRefused
from orchestrator.output import fenced
from orchestrator.surfaces.event_lines import plain_line
from orchestrator.surfaces.mcp.answers import errors_as_answers, next_step, plain, shown_input
from orchestrator.surfaces.mcp.arguments import (
    OptionalText,
    WhoCalls,
    agents_for,
    asked_task,
    check_known,
    strict,
)
from orchestrator.surfaces.mcp.notices import McpRequest
from orchestrator.surfaces.mcp.resources import LAST_EVENTS
from orchestrator.surfaces.text import named, said_lines

RUN = "run_subagent_"
"""Before the name of an agent. By itself, the tool that such calls go to; clients do not see it."""

STATUS: dict[RunStatus, str] = {
    "paused": "running",
    "completed": "success",
    "failed": "error",
    "cancelled": "error",
    "timed_out": "error",
}
"""What states are called there; the others have the same name."""


class Compatibility:
    """The tools, and what makes one of each agent."""

    def __init__(self, service: Service, tasks: Tasks, who_calls: WhoCalls) -> None:
        self._service = service
        self._tasks = tasks
        self._who_calls = who_calls

    def added_to(self, tools: Sequence[Tool]) -> list[Tool]:
        """Ours, and those besides; one name has other arguments there, and takes both."""
        looks = t.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        acts = t.ToolAnnotations(destructive_hint=False, open_world_hint=True)
        functions: dict[str, tuple[Any, t.ToolAnnotations]] = {
            RUN: (self._run(), acts),
            "reply_subagent": (self._reply(), acts),
            "check_subagent_status": (self._status(), looks),
            "check_status": (self._status(), looks),
            "get_subagent_logs": (self._logs(), looks),
            "check_message_status": (self._message(), looks),
            "update_subagent_status": (self._update(), acts),
            "update_status": (self._update(), acts),
        }
        aliases = [
            strict(Tool.from_function(function, name, annotations=annotations))
            for name, (function, annotations) in functions.items()
        ]
        return [*(tool for tool in tools if tool.name not in functions), *aliases]

    async def serve(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware: a tool for each agent that this caller may run."""
        if ctx.method == "tools/list":
            result = await call_next(ctx)
            (model,) = (tool for tool in result["tools"] if tool["name"] == RUN)
            each = [
                {**model, "name": RUN + agent.name, "description": f"Start {agent.name} on a task."}
                for agent in agents_for(self._service, self._who_calls())
            ]
            for tool in each:
                schema = tool["inputSchema"]
                shown = {k: v for k, v in schema["properties"].items() if k != "agent"}
                needed = [name for name in schema["required"] if name != "agent"]
                tool["inputSchema"] = {**schema, "properties": shown, "required": needed}
            others = [tool for tool in result["tools"] if tool["name"] != RUN]
            return {**result, "tools": [*others, *each]}
        params = ctx.params or {}
        name = str(params.get("name", ""))
        if ctx.method == "tools/call" and name.startswith(RUN):
            arguments = {**(params.get("arguments") or {}), "agent": name.removeprefix(RUN)}
            ctx = replace(ctx, params={**params, "name": RUN, "arguments": arguments})
        return await call_next(ctx)

    def _run(self) -> Any:
        @errors_as_answers
        async def run(
            agent: str,
            input: str,  # noqa: A002 as it is called there
            cwd: Annotated[OptionalText, Field(description="An absolute path")] = "",
        ) -> t.CallToolResult:
            """Start an agent on a task."""
            task = asked_task(self._who_calls(), agent, input, workspace=cwd)
            check_known(self._service, task)
            run_id = await self._tasks.start(task)
            said = f"Subagent {agent} started. Run ID: {run_id}\nUse check_subagent_status with it."
            return plain(said, {"runId": run_id})

        return run

    def _status(self) -> Any:
        @errors_as_answers
        async def check_status(runId: str) -> t.CallToolResult:  # noqa: N803 as it is called there
            """Tell the status of a run, and what it asks."""
            view = await self._tasks.book.view(runId, self._who_calls())
            result = view.result
            lines = [
                f"Run ID: {view.run_id}",
                f"Agent Name: {view.agent}",
                f"Status: {_status(view)}",
                f"Exit Code: {'N/A' if result is None else int(result.status != 'completed')}",
                f"Start Time: {_time(view.created)}",
                f"End Time: {_time(view.ended) or 'N/A'}",
                *_summary_lines(view),
            ]
            if view.asks:
                lines += ["", "PENDING:"]
                for asked in view.questions:
                    lines += [f"[{asked.message_id}]", *said_lines(asked.question)]
                    lines.append("Without an answer in time, it goes by this:")
                    lines += said_lines(asked.default_answer)
                for call in view.approvals:
                    lines.append(f"[{named(call.call_id)}] {named(call.tool)}")
                    lines += said_lines(json.dumps(shown_input(call), ensure_ascii=False))
                lines.append(f"To go on: {next_step(view)}")
            return plain("\n".join(lines), await self._metadata(view))

        return check_status

    def _logs(self) -> Any:
        @errors_as_answers
        async def get_subagent_logs(runId: str) -> t.CallToolResult:  # noqa: N803 the same
            """Tell what happened in a run."""
            view = await self._tasks.book.view(runId, self._who_calls())
            events = await self._service.store.events(runId, limit=LAST_EVENTS, last=True)
            lines = [plain_line(each.at - view.created, each.kind, each.text) for each in events]
            return plain("\n".join(lines))

        return get_subagent_logs

    def _message(self) -> Any:
        @errors_as_answers
        async def check_message_status(runId: str, messageId: str) -> t.CallToolResult:  # noqa: N803 the same
            """Tell what has become of a question."""
            await self._tasks.book.view(runId, self._who_calls())
            question = await self._service.exchanges.question(runId, messageId)
            if question is None:
                raise RunRefused(f"run {runId} has asked no question {messageId!r}")
            message = _message(question)
            by = " (by default)" * (question.answered_by == "default")
            return plain(f"{messageId}: {question.status}{by}", message)

        return check_message_status

    def _reply(self) -> Any:
        @errors_as_answers
        async def reply_subagent(
            answer: str,
            runId: OptionalText = "",  # noqa: N803 the same
            messageId: OptionalText = "",  # noqa: N803 the same
            run_id: OptionalText = "",
            message_id: OptionalText = "",
        ) -> t.CallToolResult:
            """Answer a question of a subagent."""
            run, message, caller = runId or run_id, messageId or message_id, self._who_calls()
            if not (run and message):
                raise CallInvalid("runId and messageId are needed: which question is it?")
            await self._tasks.book.reply(run, message, answer, caller)
            view = await self._tasks.book.view(run, caller)
            said = "Reply successfully recorded."
            metadata = await self._metadata(view)
            return plain(said, {"success": True, "message": said, "updatedMetadata": metadata})

        return reply_subagent

    def _update(self) -> Any:
        @errors_as_answers
        async def update_status(
            runId: str,  # noqa: N803 the same
            status: Literal["success", "error", "running", "completed"],
            summary: OptionalText = "",  # noqa: ARG001 there is no place for it
        ) -> t.CallToolResult:
            """Tell the status of a run that is what it is told to be; refuse any other."""
            view = await self._tasks.book.view(runId, self._who_calls())
            now = _status(view)
            if now != ("success" if status == "completed" else status):
                raise RunRefused(
                    f"run {runId} is {now}: its status is what its container does, and only the "
                    "agent reports on it, from inside; cancel_task ends it"
                )
            return plain(f"Run {runId}: {now}", await self._metadata(view))

        return update_status

    async def _metadata(self, view: TaskView) -> dict[str, object]:
        asked = await self._service.exchanges.questions(view.run_id)
        return {
            "runId": view.run_id,
            "agentName": view.agent,
            "startTime": _time(view.created),
            "status": _status(view),
            "exitCode": None if view.result is None else int(view.status != "completed"),
            "endTime": _time(view.ended),
            "summary": _summary(view) or None,
            "messages": [_message(question) for question in asked],
        }


def _status(view: TaskView) -> str:
    return STATUS.get(view.status, view.status)


def _summary(view: TaskView) -> str:
    if view.result is None:
        return ""
    return str(view.result.result) if view.status == "completed" else view.result.message


def _summary_lines(view: TaskView) -> list[str]:
    said = _summary(view)
    return ["Summary:", fenced(said, view.agent, view.run_id)] if said else ["Summary: N/A"]


def _message(question: Question) -> dict[str, object]:
    return {
        "messageId": question.message_id,
        "questionContent": question.question,
        "questionTimestamp": _time(question.asked),
        "defaultAnswer": question.default_answer,
        "answerContent": question.answer,
        "answerTimestamp": _time(question.answered),
        "answeredBy": question.answered_by or None,
        "messageStatus": question.status,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
