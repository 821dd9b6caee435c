"""What a call answers as text. Some clients show their model nothing else: what the structured
content tells is here too, or where the rest is.

What agents and their authors wrote stands in a fence or after "> ", so that it cannot be taken for
words of ours.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from orchestrator.domain.exchange import Approval
from orchestrator.domain.result import RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.output import fenced
from orchestrator.surfaces.mcp.answers.shown_changes import shown_changes
from orchestrator.surfaces.mcp.answers.steps import in_session, next_step, spelt
from orchestrator.surfaces.text import (
    LINE_CHARS,
    SAID_NAME_CHARS,
    costs,
    cut_json,
    named,
    one_line,
    said_lines,
    shortened,
    tried,
    visible,
)

NAMED_FILES = 20
"""Of what an agent changed, in the text of its result."""

NAMED_REFUSALS = 20
"""Of the tools, hosts and servers that it could not use."""

NAMED_WARNINGS = 5
"""Of all that was warned of; get_task_details has the rest."""

MODEL_INPUT_CHARS = 8000
"""Of the input of a tool call that waits to be approved; what is longer is said to be cut."""

PROMPT_CHARS = 60
"""Of a prompt in a table."""

ORCHESTRATOR_KILLED = "Its orchestrator was killed; it goes on when it has the answer."

TOLD_WHOLE = frozenset(("result", "patch", "message", "usage", "questions", "next"))
"""Fields of a document that the text about its run tells whole."""

TASK_HEADINGS = ("Task", "Status", "Agent", "Started", "Seconds", "Prompt")


# A run under way


def standing_lines(view: TaskView) -> Iterator[str]:
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
        yield from said_lines(spelt(shown_input(call)))
    yield f"Next: {next_step(view)}."


def shown_input(call: Approval) -> dict[str, object]:
    """What an agent wants to do. A caller should approve nothing unseen: it is told of a cut."""
    beginning, more = cut_json(call.input, MODEL_INPUT_CHARS)
    if not more:
        return call.input
    where = "get_task_details shows all of it"
    return {"beginning": beginning, "characters": len(beginning) + more, "cut": where}


# A run that ended


def ended_texts(result: RunResult, unheard: Sequence[str]) -> Iterator[str]:
    """A text for each thing that a caller should know of a run that completed."""
    yield fenced(result.result, result.agent, result.run_id)
    yield from _notes(result)
    yield from _late(unheard)
    yield _closing(result)


def failure_lines(result: RunResult, unheard: Sequence[str] = ()) -> Iterator[str]:
    """Clients show a model only the text of an error: all that can help goes into it."""
    yield f"{result.agent} {result.status} ({result.reason}):"
    yield from said_lines(result.message)
    if result.schema_errors:
        yield "schema errors:"
        yield from (f"> {one_line(error)}" for error in result.schema_errors)
    yield from _notes(result)
    if result.partial_text:
        yield "what it had said last:"
        yield from said_lines(result.partial_text)
    if result.log_tail:
        yield "what happened last:"
        yield from (f"> {shortened(one_line(line))}" for line in result.log_tail)
    yield from _late(unheard)
    yield f"run_id {result.run_id}, {_spent(result)}"


def _late(unheard: Sequence[str]) -> list[str]:
    return [f"It ended before it heard this; tell it again: {text}" for text in unheard]


def _closing(result: RunResult) -> str:
    return f"({result.status}, run_id {result.run_id}, {_spent(result)})"


def _spent(result: RunResult) -> str:
    """Time, turns, tokens and money."""
    usage = result.usage
    parts = [
        f"{result.duration_ms / 1000:.1f} s",
        f"{result.attempts} turn{'s' * (result.attempts != 1)}",
        f"{usage.requests} request{'s' * (usage.requests != 1)}",
        f"{usage.input_tokens} tokens in and {usage.output_tokens} out",
    ]
    if usage.cache_read_tokens or usage.cache_write_tokens:
        parts.append(
            f"{usage.cache_read_tokens} read from and {usage.cache_write_tokens} written to the "
            "cache"
        )
    if result.model:
        parts.append(f"model {named(result.model)}")
    return ", ".join([*parts, f"cost {costs(result)}"])


def _notes(result: RunResult) -> Iterator[str]:
    """What the caller should know besides the answer."""
    if gone_on := tried(result):
        yield f"{gone_on}."
    if result.changed_files:
        yield _of_changes(result)
        yield from _patch_lines(result)
    if result.denied_hosts:
        yield f"Hosts it was denied: {_names(result.denied_hosts)}."
    if result.denied_tools:
        yield f"Tools it was denied: {_names(result.denied_tools)}."
    if result.failed_mcp_servers:
        yield f"MCP servers that were not there: {_names(result.failed_mcp_servers)}."
    if result.warnings:
        more = len(result.warnings) - NAMED_WARNINGS
        said = [f"> {shortened(one_line(each), LINE_CHARS)}" for each in result.warnings]
        rest = f" ({more} more: get_task_details)" * (more > 0)
        yield "\n".join((f"Warnings{rest}:", *said[:NAMED_WARNINGS]))
    if result.session:
        yield f"Session {result.session}. {result.session_note}".strip()
        yield f"Next: {in_session(result)}."


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED_REFUSALS
    said = ", ".join(map(named, names[:NAMED_REFUSALS]))
    return f"{said}{f' and {more} more (get_task_details)' * (more > 0)}"


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


def _patch_lines(result: RunResult) -> Iterator[str]:
    """The patch if an answer shows it, and where all of it is."""
    shown = shown_changes(result)
    if "patch" in shown:
        yield "\n".join(("The patch:", *said_lines(str(shown["patch"]))))
    if "patch_uri" in shown:
        yield (
            f"All of the patch is at {shown['patch_uri']}; `orchestrator show {result.run_id} "
            "--patch` prints it, and apply_changes with dry_run true names every file."
        )


# Several runs, and all that is known of one


def short_lines(view: TaskView) -> Iterator[str]:
    """A run among others."""
    if view.result is None:
        if view.asks:
            yield from standing_lines(view)
        else:
            yield f"{view.agent} {view.run_id}: {view.status}"
    elif view.status == "completed":
        yield f"{view.agent} {view.run_id}: completed"
        yield from ended_texts(view.result, view.unheard)
    else:
        yield from failure_lines(view.result, view.unheard)


def tasks_table(views: Sequence[TaskView]) -> str:
    """Tasks as a table in Markdown, for people."""
    rows = [TASK_HEADINGS, ("---",) * len(TASK_HEADINGS), *(_row(view) for view in views)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(view: TaskView) -> tuple[str, ...]:
    started = datetime.fromtimestamp(view.created, UTC).strftime("%Y-%m-%d %H:%M:%S")
    seconds = (view.ended or time.time()) - view.created
    wished = "" if view.wish is None else view.wish.description
    prompt = one_line(wished or view.prompt).replace("|", "\\|")
    status = view.status if view.reason in ("", "ok") else f"{view.status} ({view.reason})"
    cells = (view.run_id, status, view.agent, started, f"{seconds:.0f}")
    return (*cells, shortened(prompt, PROMPT_CHARS))


def detail_lines(document: Mapping[str, object]) -> Iterator[str]:
    """Fields of a document, each with all that it holds; free text as what somebody said."""
    for name, value in document.items():
        if name in TOLD_WHOLE:
            continue
        if isinstance(value, str) and ("\n" in value or len(value) > SAID_NAME_CHARS):
            yield f"{name}:"
            yield from said_lines(value)
        elif isinstance(value, str):
            yield f"{name}: {named(value)}"
        elif isinstance(value, list | tuple):
            yield f"{name}:"
            for item in value:
                yield f"> {visible(item if isinstance(item, str) else spelt(item))}"
        else:
            yield f"{name}: {spelt(value)}"
