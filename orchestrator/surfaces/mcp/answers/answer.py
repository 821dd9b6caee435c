"""Results, tasks and errors -> what a call answers: structured content, and text for the model.

Clients show their model one of the two, so each is complete by itself (lines.py has the
text).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import mcp.types as t
from pydantic import BaseModel, ConfigDict

from orchestrator.domain.exchange import Question
from orchestrator.domain.result import FINAL, RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.errors import OrchestratorError
from orchestrator.surfaces.mcp.answers.lines import (
    detail_lines,
    ended_texts,
    failure_lines,
    short_lines,
    shown_input,
    standing_lines,
)
from orchestrator.surfaces.mcp.answers.shown_changes import PATCH_URI, RUN_URI, shown_changes
from orchestrator.surfaces.mcp.answers.steps import after_end, next_step, spelt, without_empty
from orchestrator.surfaces.text import LINE_CHARS, named, shortened

ASKED_FIELDS = {"run_id", "message_id", "question", "asked", "deadline", "default_answer"}
"""Of a question that waits."""


class RunAnswer(BaseModel):
    """Of every call about one run: all of its result, or where it stands and what to do next."""

    model_config = ConfigDict(extra="allow")

    run_id: str
    status: str


class TasksAnswer(BaseModel):
    """Of a call about several."""

    model_config = ConfigDict(extra="allow")

    tasks: list[RunAnswer]


class AppliedAnswer(BaseModel):
    """Of apply_changes."""

    model_config = ConfigDict(extra="allow")

    files: list[dict[str, str]]
    already: bool
    dry_run: bool


class ListedAgent(BaseModel):
    """An agent that the caller may run."""

    name: str
    description: str


class AgentsAnswer(BaseModel):
    """Of list_agents."""

    agents: list[ListedAgent]


def plain(text: str, document: dict[str, object] | None = None) -> t.CallToolResult:
    """A text, and the same for programs."""
    return t.CallToolResult(content=[_text(text)], structured_content=document)


def refusal(exc: OrchestratorError) -> t.CallToolResult:
    error = {"error": {"code": exc.code, "message": str(exc)}}
    return t.CallToolResult(content=[_text(str(exc))], structured_content=error, is_error=True)


def refused(exc: OrchestratorError) -> dict[str, Any]:
    """The same as it is sent, for middleware."""
    answer = refusal(exc)
    sent: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return sent


P = ParamSpec("P")
R = TypeVar("R")


def errors_as_answers(
    tool: Callable[P, Awaitable[R]],
) -> Callable[P, Awaitable[R | t.CallToolResult]]:
    """Have a tool answer with its errors: one sentence, and a code for programs."""

    @wraps(tool)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> R | t.CallToolResult:
        try:
            return await tool(*args, **kwargs)
        except OrchestratorError as exc:
            return refusal(exc)

    return answered


# One run


def run_answer(view: TaskView) -> t.CallToolResult:
    """The answer of the agent if there is one; otherwise where the run stands."""
    if view.result is not None:
        return result_answer(view.result, view.unheard)
    return plain("\n".join(standing_lines(view)), document(view))


def result_answer(result: RunResult, unheard: Sequence[str] = ()) -> t.CallToolResult:
    """The envelope as structured content; the text is for clients that show only that."""
    envelope = _envelope(result, unheard)
    if result.status == "completed":
        content = [_text(said) for said in ended_texts(result, unheard)]
        return t.CallToolResult(content=content, structured_content=envelope)
    content = [_text("\n".join(failure_lines(result, unheard)))]
    return t.CallToolResult(content=content, structured_content=envelope, is_error=True)


def details_answer(view: TaskView, found: dict[str, object], *, head: str = "") -> t.CallToolResult:
    """All that is known of a run. That the run failed is no error of a call that asks about it."""
    known = _text("\n".join(("All that is known of it:", *detail_lines(found))))
    content = [*([_text(head)] if head else []), *run_answer(view).content, known]
    return t.CallToolResult(content=content, structured_content=found)


def document(view: TaskView, *, brief: bool = False, whole: bool = False) -> dict[str, object]:
    """A run for programs; a brief one has no patch and no log, a whole one is nowhere cut."""
    if view.result is not None:
        return _envelope(view.result, view.unheard, brief=brief, whole=whole)
    said: dict[str, object] = {
        "run_id": view.run_id,
        "agent": view.agent,
        "caller": view.caller,
        "status": view.status,
        "questions": [_timed(each.model_dump(include=ASKED_FIELDS)) for each in view.questions],
        "pending_tool_calls": [
            _timed(
                {
                    "run_id": each.run_id,
                    "call_id": each.call_id,
                    "tool": each.tool,
                    "input": each.input if whole else shown_input(each),
                    "approval_by": each.approval_by,
                    "deadline": each.deadline,
                }
            )
            for each in view.approvals
        ],
    }
    if view.status not in FINAL:
        said["next"] = next_step(view)
    return without_empty(said)


def _timed(asked: dict[str, object]) -> dict[str, object]:
    """The same without a deadline, if nobody counts the time: no orchestrator has the run."""
    return {key: value for key, value in asked.items() if key != "deadline" or value}


def _envelope(
    result: RunResult, unheard: Sequence[str], *, brief: bool = False, whole: bool = False
) -> dict[str, object]:
    """A result for programs and models: what is to be done stands before what is long."""
    changes = shown_changes(result, whole=whole)
    ended = without_empty(result.model_dump(mode="json", exclude={"changed_files", "patch"}))
    if result.status == "completed":
        ended["result"] = result.result  # an empty answer is one
    for name, usual in _usual_money(result).items():
        if ended[name] == usual:
            del ended[name]
    if brief:
        ended.pop("log_tail", None)
        if changes.pop("patch", None) is not None:
            changes["patch_uri"] = f"{RUN_URI}{result.run_id}{PATCH_URI}"
    more: dict[str, object] = {"unheard": list(unheard), "next": after_end(result, unheard)}
    return {**ended, **without_empty(more), **changes}


def _usual_money(result: RunResult) -> dict[str, object]:
    """What these fields are for most runs, where they tell nothing."""
    return {
        "scripted": False,
        "estimated_usd": 0,
        "family_usd": result.cost_usd,
        "family_estimated_usd": result.estimated_usd,
    }


def details(
    view: TaskView,
    asked: Sequence[Question] = (),
    *,
    partial_text: str = "",
    log_tail: Sequence[str] = (),
) -> dict[str, object]:
    """All that is known of a run, with all that it has asked and what it was told; of one under
    way, what it has said and done so far.
    """
    answered = [each for each in asked if each.status != "pending_parent_reply"]
    fields = {"message_id", "question", "asked", "status", "answer", "answered"}
    more = {
        "asked_before": [each.model_dump(include=fields) for each in answered],
        "prompt": view.prompt,
        "project": view.project,
        "window": view.window,
        **_made(view),
        "created": view.created,
        "ended": view.ended,
        "parent_run_id": view.parent_run_id,
        "partial_text": partial_text,
        "log_tail": list(log_tail),
    }
    return {**without_empty(more), **document(view, whole=True)}


def _made(view: TaskView) -> dict[str, object]:
    """What an agent that was made at call time was told, and may use."""
    wish = view.wish
    if wish is None:
        return {}
    return {
        "context": view.context,
        "description": wish.description,
        "instructions": view.prompt,
        "tools": list(wish.tools),
        "max_steps": wish.max_steps,
        "enable_sandbox": wish.sandboxed,
    }


# Several


def tasks_answer(
    views: Sequence[TaskView], ids: Mapping[str, str] | None = None
) -> t.CallToolResult:
    """What has become of them, which of them still run, and which have not begun; with the ids that
    a batch was given, by the caller's names for its tasks.
    """
    left = [view for view in views if not view.settled]
    pending = [view.run_id for view in left if view.status == "pending"]
    running = [view.run_id for view in left if view.status != "pending"]
    lines = [line for view in views for line in short_lines(view)]
    step = ""
    if ids:
        lines.append(f"Ids: {', '.join(f'{named(name)} is {run}' for name, run in ids.items())}.")
    if left:
        step = f"call wait_for_tasks with task_ids {spelt([view.run_id for view in left])}"
        said = (f"Still running: {' '.join(running)}.", f"Not begun yet: {' '.join(pending)}.")
        lines += [line for line, runs in zip(said, (running, pending), strict=True) if runs]
        lines.append(f"Next: {step}.")
    more: dict[str, object] = {"running": running, "pending": pending}
    more |= {"ids": dict(ids or {}), "next": step}
    documents = [document(view, brief=True) for view in views]
    return plain("\n".join(lines), {"tasks": documents, **without_empty(more)})


def listed(view: TaskView) -> dict[str, object]:
    """A line of the table, for programs."""
    fields = {"run_id", "agent", "status", "reason", "window", "prompt", "created", "ended"}
    fields |= {"parent_run_id"} if view.parent_run_id else set()
    said = view.model_dump(mode="json", include=fields)
    return without_empty({**said, "prompt": shortened(view.prompt, LINE_CHARS)})


def _text(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)
