"""Results, tasks and errors -> what a call answers: structured content, and text for the model."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import ParamSpec, TypeVar

import mcp.types as t
from pydantic import BaseModel, ConfigDict

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import FINAL, RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.errors import OrchestratorError
from orchestrator.output import fenced
from orchestrator.surfaces.mcp.shown_changes import PATCH_URI, RUN_URI, shown_changes
from orchestrator.surfaces.text import (
    LINE_CHARS,
    command,
    costs,
    cut_json,
    named,
    one_line,
    said_lines,
    shortened,
)

NAMED_FILES = 20
"""Of what an agent changed, in the text of its result."""

NAMED_REFUSALS = 20
"""Of the tools, hosts and servers that it could not use."""

NAMED_WARNINGS = 5
"""Of all that was warned of; the document has the rest."""

MODEL_INPUT_CHARS = 8000
"""Of the input of a tool call that waits to be approved; what is longer is said to be cut."""

PROMPT_CHARS = 60
"""Of a prompt in a table."""

ASKED_FIELDS = {"run_id", "message_id", "question", "asked", "deadline", "default_answer"}
"""Of a question that waits."""

ORCHESTRATOR_KILLED = "Its orchestrator was killed; it goes on when it has the answer."

TASK_HEADINGS = ("Task", "Status", "Agent", "Started", "Seconds", "Prompt")


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
    return plain("\n".join(_standing(view)), document(view))


def result_answer(result: RunResult, unheard: Sequence[str] = ()) -> t.CallToolResult:
    """The envelope as structured content; the text is for clients that show only that."""
    envelope = _envelope(result, unheard)
    late = [f"It ended before it heard this; tell it again: {text}" for text in unheard]
    if result.status == "completed":
        content = [_text(said) for said in (_said(result), *_notes(result), *late)]
        return t.CallToolResult(content=content, structured_content=envelope)
    content = [_text("\n".join((*_failure(result), *late)))]
    return t.CallToolResult(content=content, structured_content=envelope, is_error=True)


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


def without_empty(document: dict[str, object]) -> dict[str, object]:
    """The same without fields that say nothing. A number and a flag always say something."""
    return {key: value for key, value in document.items() if value not in _EMPTY}


_EMPTY: tuple[object, ...] = ("", None, [], (), {})


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
    more: dict[str, object] = {"unheard": list(unheard), "next": _after(result, unheard)}
    return {**ended, **without_empty(more), **changes}


def _usual_money(result: RunResult) -> dict[str, object]:
    """What these fields are for most runs, where they tell nothing."""
    return {
        "scripted": False,
        "estimated_usd": 0,
        "family_usd": result.cost_usd,
        "family_estimated_usd": result.estimated_usd,
    }


def _after(result: RunResult, unheard: Sequence[str]) -> str:
    """What the caller can do with a run that has ended, in the words of our tools."""
    steps = []
    if result.changed_files:
        steps.append(
            "the agent worked on a copy, and nothing is applied yet: look at what it changed, then "
            f"call apply_changes with run_id {_json(result.run_id)}"
        )
        if any(file.acts for file in result.changed_files):
            steps.append(
                "files with `acts` do something on this machine: show them to the person first, "
                "and give allow_acting true only if the person agrees"
            )
    if result.session:
        steps.append(
            f"to go on in the same conversation, call run_subagent with agent_name "
            f"{_json(result.agent)} and session {_json(result.session)}"
        )
    if unheard:
        steps.append("the agent ended before it heard what is in unheard: tell it again")
    return "; ".join(steps)


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


def next_step(view: TaskView) -> str:
    """What the caller has to do, in the words of our tools."""
    steps = [
        f"answer with reply_subagent(run_id={_json(question.run_id)}, "
        f'message_id={_json(question.message_id)}, answer="...")'
        for question in view.questions
    ]
    mine = [call for call in view.approvals if call.approval_by == "parent"]
    for run_id in dict.fromkeys(call.run_id for call in mine):
        calls = _json([call.call_id for call in mine if call.run_id == run_id])
        steps.append(
            f"decide with resume_subagent_task(task_id={_json(run_id)}, approve={calls}), or "
            f"reject={calls}, or approve with edited_input={{call_id: input}}"
        )
    wait = f"call wait_for_tasks with task_ids {_json([view.run_id])}"
    persons = [call for call in view.approvals if call.approval_by == "user"]
    if persons:
        typed = " or ".join(f"`{command('approve', c.run_id, c.call_id)}`" for c in persons)
        steps.append(
            f"a person has to decide, you cannot: tell your user what it wants to do, and that "
            f"{typed} in a terminal allows it (`reject` refuses it); then {wait}"
        )
    if steps:
        return "; ".join(steps)
    return f"{wait}; it goes on meanwhile"


def _standing(view: TaskView) -> Iterator[str]:
    """What is to be said of a run that has not ended."""
    yield f"{view.agent} is {view.status}, run_id {view.run_id}."
    for question in view.questions:
        yield f"It asks ({question.message_id}):"
        yield from said_lines(question.question)
        if question.deadline:
            yield "Without an answer in time, it goes by this:"
            yield from said_lines(question.default_answer)
        else:
            yield ORCHESTRATOR_KILLED
    for call in view.approvals:
        yield f"It wants to use {named(call.tool)} ({named(call.call_id)}):"
        yield from said_lines(_json(shown_input(call)))
    yield f"Next: {next_step(view)}."


def shown_input(call: Approval) -> dict[str, object]:
    """What an agent wants to do. A caller should approve nothing unseen: it is told of a cut."""
    beginning, more = cut_json(call.input, MODEL_INPUT_CHARS)
    if not more:
        return call.input
    where = "get_task_details shows all of it"
    return {"beginning": beginning, "characters": len(beginning) + more, "cut": where}


def _said(result: RunResult) -> str:
    return fenced(result.result, result.agent, result.run_id)


def _failure(result: RunResult) -> Iterator[str]:
    """Clients show a model only the text of an error: all that can help goes into it."""
    yield f"{result.agent} {result.status} ({result.reason}):"
    yield from said_lines(result.message)
    if result.schema_errors:
        yield "schema errors:"
        yield from (f"> {one_line(error)}" for error in result.schema_errors)
    if result.denied_tools:
        yield f"tools it was denied: {_names(result.denied_tools)}"
    if result.denied_hosts:
        yield f"hosts it was denied: {_names(result.denied_hosts)}"
    if result.changed_files:
        yield _of_changes(result)
    if result.failed_mcp_servers:
        yield f"MCP servers that were not there: {_names(result.failed_mcp_servers)}"
    if result.partial_text:
        yield "what it had said last:"
        yield from said_lines(result.partial_text)
    if result.log_tail:
        yield "what happened last:"
        yield from (f"> {shortened(one_line(line))}" for line in result.log_tail)
    yield f"run_id {result.run_id}, cost {costs(result)}"


def _notes(result: RunResult) -> Iterator[str]:
    """What the caller should know besides the answer."""
    if result.changed_files:
        yield _of_changes(result)
    if result.denied_hosts:
        yield f"It was refused: {_names(result.denied_hosts)}."
    if result.denied_tools:
        yield f"Tools it was denied: {_names(result.denied_tools)}."
    if result.failed_mcp_servers:
        yield f"MCP servers that were not there: {_names(result.failed_mcp_servers)}."
    if result.warnings:
        yield "Warnings:"
    for warning in result.warnings[:NAMED_WARNINGS]:
        yield f"> {shortened(one_line(warning), LINE_CHARS)}"
    if result.session:
        yield f"Session {result.session}. {result.session_note}".strip()


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_REFUSALS
    said = ", ".join(map(named, names[:NAMED_REFUSALS]))
    return f"{said}{f' and {more} more' * (more > 0)}"


def _of_changes(result: RunResult) -> str:
    changed = ", ".join(named(file.path, LINE_CHARS) for file in result.changed_files[:NAMED_FILES])
    more = len(result.changed_files) - NAMED_FILES
    acting = [file for file in result.changed_files if file.acts]
    act = ", ".join(f"{named(f.path, LINE_CHARS)} ({f.acts})" for f in acting[:NAMED_FILES])
    left = len(acting) - NAMED_FILES
    look = (
        f" Of these, some act on this machine when the directory is used: {act}"
        f"{f' and {left} more' * (left > 0)}; show them to the person, and pass allow_acting true "
        "only if the person agrees."
    ) * bool(acting)
    return (
        f"The agent worked on a copy and changed {changed}{f' and {more} more' * (more > 0)}. "
        f"Nothing is applied yet: call apply_changes with run_id {result.run_id}.{look}"
    )


# Several


def tasks_answer(views: Sequence[TaskView], **more: object) -> t.CallToolResult:
    """What has become of them, which of them still run, and which have not begun."""
    left = [view for view in views if not view.settled]
    pending = [view.run_id for view in left if view.status == "pending"]
    running = [view.run_id for view in left if view.status != "pending"]
    lines = [line for view in views for line in _in_short(view)]
    step = ""
    if left:
        step = f"call wait_for_tasks with task_ids {_json([view.run_id for view in left])}"
        said = (f"Still running: {' '.join(running)}.", f"Not begun yet: {' '.join(pending)}.")
        lines += [line for line, ids in zip(said, (running, pending), strict=True) if ids]
        lines.append(f"Next: {step}.")
    found = without_empty({"running": running, "pending": pending, **more, "next": step})
    return plain(
        "\n".join(lines), {"tasks": [document(view, brief=True) for view in views], **found}
    )


def tasks_table(views: Sequence[TaskView]) -> str:
    """Tasks as a table in Markdown, for people."""
    rows = [TASK_HEADINGS, ("---",) * len(TASK_HEADINGS), *(_row(view) for view in views)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def listed(view: TaskView) -> dict[str, object]:
    """A line of the table, for programs."""
    fields = {"run_id", "agent", "status", "reason", "window", "prompt", "created", "ended"}
    fields |= {"parent_run_id"} if view.parent_run_id else set()
    said = view.model_dump(mode="json", include=fields)
    return without_empty({**said, "prompt": shortened(view.prompt, LINE_CHARS)})


def _in_short(view: TaskView) -> Iterator[str]:
    if view.result is None:
        yield from _standing(view) if view.asks else (f"{view.agent} {view.run_id}: {view.status}",)
    elif view.status == "completed":
        yield f"{view.agent} {view.run_id}: completed"
        yield from (_said(view.result), *_notes(view.result))
    else:
        yield from _failure(view.result)


def _row(view: TaskView) -> tuple[str, ...]:
    started = datetime.fromtimestamp(view.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
    seconds = (view.ended or time.time()) - view.created
    wished = "" if view.wish is None else view.wish.description
    prompt = one_line(wished or view.prompt).replace("|", "\\|")
    cells = (view.run_id, view.status, view.agent, started, f"{seconds:.0f}")
    return (*cells, shortened(prompt, PROMPT_CHARS))


def _text(text: str) -> t.TextContent:
    return t.TextContent(type="text", text=text)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
