"""Tools under the names of older subagent servers, for prompts and programs that use those.

Thin aliases, off unless ORCHESTRATOR_COMPATIBILITY is set: each takes the arguments and gives the
answer that its name has elsewhere, and does what our own tools do. delegate_task then answers with
what the agent said and nothing else, when it has said it, and list_agents and delegate_task tell
their errors as errors of the protocol.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import mcp.types as t
from mcp import MCPError
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from orchestrator.domain.exchange import Question
from orchestrator.domain.result import FINAL, WAITING, RunStatus
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.errors import CallerError, CallInvalid, RunRefused
from orchestrator.output import fenced
from orchestrator.surfaces.event_lines import plain_line
from orchestrator.surfaces.mcp.answers.answer import errors_as_answers, plain
from orchestrator.surfaces.mcp.answers.lines import shown_input
from orchestrator.surfaces.mcp.answers.steps import next_step
from orchestrator.surfaces.mcp.arguments import (
    OptionalText,
    WhoCalls,
    asked_task,
    listed_agents,
    strict,
)
from orchestrator.surfaces.mcp.notices import McpRequest
from orchestrator.surfaces.mcp.resources import LAST_EVENTS
from orchestrator.surfaces.mcp.waiting import Waiting
from orchestrator.surfaces.text import named, said_lines

if TYPE_CHECKING:
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

RUN = "run_subagent_"
"""Before the name of an agent. By itself, the tool that such calls go to; clients do not see it."""

OF_AGENT = re.compile(r"(check|get|update)_subagent_.+_(status|logs)")
"""Names of before these tools went by the run alone: `check_subagent_NAME_status`."""

DELEGATION = ("list_agents", "delegate_task")
"""Names of theirs and of ours that are answered otherwise there."""

STATUS: dict[RunStatus, str] = {
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

    def waiting(self, window_seconds: float | None) -> Waiting:
        """How delegate_task waits there: there is no second call for what is not done yet."""
        return Waiting(self._service, self._tasks, window_seconds or math.inf)

    def added_to(self, tools: Sequence[Tool]) -> list[Tool]:
        """Ours, and those besides; one name has other arguments there, and takes both."""
        functions = {
            RUN: self._run(),
            "reply_subagent": self._reply(),
            "check_subagent_status": self._status(),
            "check_status": self._status(),
            "get_subagent_logs": self._logs(),
            "check_message_status": self._message(),
            "update_subagent_status": self._update(),
            "update_status": self._update(),
        }
        aliases = [
            strict(Tool.from_function(function, name)) for name, function in functions.items()
        ]
        return [*(tool for tool in tools if tool.name not in functions), *aliases]

    async def serve(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware: a tool for each agent that this caller may run."""
        if ctx.method == "tools/list":
            result = await call_next(ctx)
            (model,) = (tool for tool in result["tools"] if tool["name"] == RUN)
            each = [
                {**model, "name": RUN + agent.name, "description": f"Start {agent.name} on a task."}
                for agent in listed_agents(self._service, self._who_calls)
            ]
            for tool in each:
                schema = tool["inputSchema"]
                shown = {k: v for k, v in schema["properties"].items() if k != "agent"}
                needed = [name for name in schema["required"] if name != "agent"]
                tool["inputSchema"] = {**schema, "properties": shown, "required": needed}
            others = [tool for tool in result["tools"] if tool["name"] != RUN]
            return {**result, "tools": [*map(_with_run_id, others), *each]}
        if ctx.method == "tools/call":
            params = _translated(ctx.params or {})
            answer = await call_next(replace(ctx, params=params))
            name = params.get("name")
            if _said(answer) == f"Unknown tool: {name}":
                raise MCPError(t.METHOD_NOT_FOUND, f"there is no tool {name}; tools/list has all")
            return _delegated(answer) if name in DELEGATION else answer
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
            await self._service.check_known(task)
            run_id = await self._tasks.start(task)
            said = f"Subagent {agent} started. Run ID: {run_id}\nUse check_subagent_status with it."
            return plain(said, {"runId": run_id})

        return run

    def _status(self) -> Any:
        @errors_as_answers
        async def check_status(runId: str) -> t.CallToolResult:  # noqa: N803 as it is called there
            """Tell the status of a run, and what it asks."""
            view = await self._tasks.book.view(runId, self._who_calls())
            found, result = await self._metadata(view), view.result
            lines = [
                f"Run ID: {view.run_id}",
                f"Agent Name: {view.agent}",
                f"Status: {found['status']}",
                f"Exit Code: {'N/A' if result is None else int(result.status != 'completed')}",
                f"Start Time: {_time(view.created)}",
                f"End Time: {_time(view.ended) or 'N/A'}",
                *_summary_lines(str(found["summary"] or ""), view),
            ]
            if found["messages"]:
                lines.append(f"Messages: {json.dumps(found['messages'], ensure_ascii=False)}")
            if view.asks:
                lines += ["", "PENDING:"]
                for asked in view.questions:
                    lines += [f"[{asked.message_id}]", *said_lines(asked.question)]
                    lines.append("Without an answer in time, it goes by this:")
                    lines += said_lines(asked.default_answer)
                for call in view.approvals:
                    lines.append(f"[{named(call.call_id)}] {named(call.tool)}")
                    lines += said_lines(json.dumps(shown_input(call), ensure_ascii=False))
            if "instructions" in found:
                lines.append(f"Instructions: {found['instructions']}")
            return plain("\n".join(lines), found)

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
            return _document(_message(question, runId))

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
            view = await self._tasks.book.view(run, caller)
            await self._tasks.book.reply(run, message, answer, caller)
            # As the run is at this moment: a little later it may have gone on, or ended.
            metadata = await self._metadata(view, replied=message)
            said = "Reply successfully recorded."
            return _document({"success": True, "message": said, "updatedMetadata": metadata})

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
            found = await self._metadata(view)
            now = found["status"]
            if now != ("success" if status == "completed" else status):
                raise RunRefused(
                    f"run {runId} is {now}: its status is what its container does, and only the "
                    "agent reports on it, from inside; cancel_task ends it"
                )
            return plain(f"Run {runId}: {now}", found)

        return update_status

    async def _metadata(self, view: TaskView, replied: str = "") -> dict[str, object]:
        """What their .meta.json has of a run; right after a reply, if a question is named."""
        asked = list(await self._service.exchanges.questions(view.run_id))
        asked += [each for each in view.questions if each.run_id != view.run_id]
        status = "parent_replied" if replied else _status(view, asked)
        messages = [_message(each, view.run_id) for each in asked]
        for message in messages:
            if message["messageId"] == replied:
                message["messageStatus"] = "parent_replied"
        found: dict[str, object] = {
            "runId": view.run_id,
            "agentName": view.agent,
            "startTime": _time(view.created),
            "status": status,
            "exitCode": None if view.result is None else int(view.status != "completed"),
            "endTime": _time(view.ended),
            "summary": await self._summary(view) or None,
            "messages": messages,
        }
        if status == "paused":
            found["pendingToolCalls"] = [
                {"toolCallId": call.call_id, "tool": call.tool, "input": shown_input(call)}
                for call in view.approvals
            ]
        if instructions := _instructions(view, status, asked):
            found["instructions"] = instructions
        return found

    async def _summary(self, view: TaskView) -> str:
        """The answer, or why there is none; until then, what the agent reported last."""
        if view.result is None:
            report = await self._service.store.last_event(view.run_id, "status")
            word = "" if report is None else report.data.get("status")
            return "" if report is None else report.text.removeprefix(f"{word}: ")
        if view.status != "completed":
            return view.result.message
        said = view.result.result
        return said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)


def _with_run_id(tool: dict[str, Any]) -> dict[str, Any]:
    """get_logs is a name of theirs and of ours: it takes the argument of both."""
    if tool["name"] != "get_logs":
        return tool
    schema = tool["inputSchema"]
    either = {"runId": schema["properties"]["run_id"], **schema["properties"]}
    return {**tool, "inputSchema": {**schema, "properties": either, "required": []}}


def _translated(params: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a name that is theirs alone -> the tool that answers it."""
    name, arguments = str(params.get("name", "")), params.get("arguments") or {}
    if name.startswith(RUN):
        return {**params, "name": RUN, "arguments": {**arguments, "agent": name.removeprefix(RUN)}}
    if called := OF_AGENT.fullmatch(name):
        return {**params, "name": f"{called[1]}_subagent_{called[2]}"}
    if name == "get_logs" and "runId" in arguments and "run_id" not in arguments:
        ours = {"run_id" if key == "runId" else key: value for key, value in arguments.items()}
        return {**params, "arguments": ours}
    return dict(params)


def _delegated(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer of one of DELEGATION as it is there; MCPError for one that is an error."""
    said = answer.get("structuredContent") or {}
    if answer.get("isError"):
        wrong = said.get("error", {}).get("code") in _caller_codes(CallerError)
        raise MCPError(t.INVALID_PARAMS if wrong else t.INTERNAL_ERROR, _said(answer))
    if "result" not in said:
        return answer
    result = said["result"]
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return {**answer, "content": [{"type": "text", "text": text}]}


def _said(answer: dict[str, Any]) -> str:
    return "\n".join(part.get("text", "") for part in answer.get("content", ()))


def _caller_codes(error: type[CallerError]) -> set[str]:
    """What the caller has to mend, by the codes of errors."""
    return {error.code}.union(*map(_caller_codes, error.__subclasses__()))


def _status(view: TaskView, asked: Sequence[Question]) -> str:
    """What they call it. The questions were read after the view, and may have gone on since."""
    if view.status in FINAL or view.status == "pending":
        return STATUS.get(view.status, view.status)
    states = {question.status for question in asked}
    if "pending_parent_reply" in states:
        return "waiting_parent_reply"
    if view.approvals:
        return "paused"
    return "parent_replied" if "parent_replied" in states else "running"


def _instructions(view: TaskView, status: str, asked: Sequence[Question]) -> str:
    """What the parent has to do, in the words of these tools."""
    if status == "parent_replied":
        return "The reply is on its way to the subagent. Call check_status again to see it go on."
    if status not in WAITING:
        return ""
    steps = [
        f"Answer with reply_subagent(runId={json.dumps(each.run_id)}, "
        f'messageId={json.dumps(each.message_id)}, answer="...").'
        for each in asked
        if each.status == "pending_parent_reply"
    ]
    if view.approvals:
        calls = next_step(view.model_copy(update={"questions": ()}))
        steps.append(f"{calls[0].upper()}{calls[1:]}.")
    return " ".join(steps)


def _summary_lines(said: str, view: TaskView) -> list[str]:
    return ["Summary:", fenced(said, view.agent, view.run_id)] if said else ["Summary: N/A"]


def _message(question: Question, of_run: str) -> dict[str, object]:
    message: dict[str, object] = {
        "messageId": question.message_id,
        "questionContent": question.question,
        "questionTimestamp": _time(question.asked),
        "defaultAnswer": question.default_answer,
        "answerContent": question.answer,
        "answerTimestamp": _time(question.answered),
        "answeredBy": question.answered_by or None,
        "messageStatus": question.status,
    }
    # A subagent of the run's own asks: the reply goes to that one.
    return message if question.run_id == of_run else {**message, "runId": question.run_id}


def _document(document: dict[str, object]) -> t.CallToolResult:
    """An object, for clients that read structured content, and for those that read text."""
    return plain(json.dumps(document, ensure_ascii=False, indent=1), document)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat()
