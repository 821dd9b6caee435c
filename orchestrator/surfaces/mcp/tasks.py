"""The tools of tasks: start several, wait, look, answer, approve, steer, cancel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import mcp.types as t
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from pydantic import Field

from orchestrator.domain.events import Event
from orchestrator.domain.result import FINAL
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.task_book import named_statuses
from orchestrator.errors import CallInvalid, RunRefused
from orchestrator.surfaces.event_lines import event_line
from orchestrator.surfaces.mcp.answers.answer import (
    RunAnswer,
    TasksAnswer,
    details,
    details_answer,
    errors_as_answers,
    listed,
    plain,
    run_answer,
    tasks_answer,
)
from orchestrator.surfaces.mcp.answers.lines import tasks_table
from orchestrator.surfaces.mcp.answers.steps import without_empty
from orchestrator.surfaces.mcp.arguments import (
    MAX_IDS,
    OptionalFlag,
    OptionalText,
    WhoCalls,
    asked_task,
    named_tasks,
    strict,
)
from orchestrator.surfaces.mcp.batch import Batch, BatchTask
from orchestrator.surfaces.mcp.resources import all_details
from orchestrator.surfaces.mcp.waiting import ToolReply, Waiting

if TYPE_CHECKING:
    from orchestrator.engine.record import Listener
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

LOG_PAGE_EVENTS = 200
"""In one answer of get_logs."""

LOG_PAGE_CHARS = 60_000
"""Of their text, together; more is put aside in a file by some clients, unread."""

MAX_LISTED = 200

MAX_RESULT_CHARS = 500_000
"""What Claude Code takes from one result without putting it aside in a file."""

BIG = {"anthropic/maxResultSizeChars": MAX_RESULT_CHARS}

TaskId = Annotated[str, Field(description="As run_subagent or get_all_tasks tells it")]
"""A task and its run are the same thing."""


def task_tools(service: Service, tasks: Tasks, waiting: Waiting, who_calls: WhoCalls) -> list[Tool]:
    """All of them, for the runs of the caller."""
    several = _several(service, tasks, waiting, who_calls)
    one = _one(service, tasks, who_calls)
    talk = _talk(tasks, waiting, who_calls)
    return [
        strict(Tool.from_function(function, name, meta=BIG))
        for name, function in {**several, **one, **talk}.items()
    ]


def _several(
    service: Service, engine: Tasks, waiting: Waiting, who_calls: WhoCalls
) -> dict[str, Any]:
    @errors_as_answers
    async def run_subagents(
        tasks: Annotated[
            list[BatchTask], Field(description="What to run", min_length=1, max_length=MAX_IDS)
        ],
        ctx: Context[Any],
        background: Annotated[OptionalFlag, Field(description="Answer at once")] = False,
    ) -> Annotated[t.CallToolResult, TasksAnswer] | t.InputRequiredResult:
        """Run several agents; those with depends_on begin when the tasks they name completed."""
        caller = who_calls()
        batch = Batch(tasks)
        wait = await waiting.begin(ctx, caller)
        if background:
            wait.at_most(0)
        found = await waiting.start_and_follow(wait, partial(_start, ctx, batch, caller))
        if isinstance(found, t.InputRequiredResult):
            return found
        ids = {name: view.run_id for name, view in zip(batch.names, found, strict=True)}
        return tasks_answer(found, ids)

    async def _start(ctx: Context[Any], batch: Batch, caller: str, listener: Listener) -> list[str]:
        """All of them or none: what has begun is ended when another one cannot."""
        made: dict[str, tuple[Task, tuple[str, ...]]] = {}
        for name, each in batch.in_order():
            task = asked_task(
                *(caller, each.agent_name, each.prompt, each.context, each.workspace),
                session=each.session,
            )
            await service.check_known(task)
            made[name] = task, each.depends_on
        started: dict[str, str] = {}
        try:
            for name, (task, before) in made.items():
                after = tuple(started[each] for each in before)
                placed = task.model_copy(update={"after": after})
                started[name] = await waiting.started(ctx, placed, listener, name)
        except BaseException:
            await waiting.end(tuple(started.values()), caller)
            raise
        return [started[name] for name in batch.names]

    @errors_as_answers
    async def wait_for_tasks(
        task_ids: Annotated[
            list[str] | str, Field(description="A list, or a text with blanks between")
        ],
        ctx: Context[Any],
        timeout: Annotated[float | None, Field(ge=0, description="Seconds")] = None,  # noqa: ASYNC109 a name
        until: Annotated[
            Literal["any", "all"] | None, Field(description="Which have to; all unless given")
        ] = None,
    ) -> Annotated[t.CallToolResult, TasksAnswer] | t.InputRequiredResult:
        """Wait until tasks have ended, one asks something, or time is up; then call again."""
        wait = await waiting.begin(ctx, who_calls())
        wait.patient = True
        if timeout is not None:
            wait.at_most(timeout)
        named = named_tasks(task_ids)
        runs = [await engine.book.newest(task_id, wait.caller) for task_id in named]
        found = await waiting.follow(wait, runs, until=until or "all")
        return found if isinstance(found, t.InputRequiredResult) else tasks_answer(found)

    @errors_as_answers
    async def get_all_tasks(
        status: Annotated[OptionalText, Field(description="One or more, with blanks")] = "",
        agent: Annotated[OptionalText, Field(description="Only tasks of this one")] = "",
        limit: Annotated[
            int | None, Field(ge=1, le=MAX_LISTED, description="How many; 20 unless given")
        ] = None,
    ) -> Annotated[t.CallToolResult, TasksAnswer]:
        """List your tasks, the newest first."""
        statuses = named_statuses(status.replace(",", " ").split())
        found = await engine.book.list(
            who_calls(), statuses=statuses, agent=agent, limit=limit or 20
        )
        return plain(
            tasks_table(found) if found else "There are no such tasks.",
            {"tasks": [listed(view) for view in found]},
        )

    return {
        "run_subagents": run_subagents,
        "wait_for_tasks": wait_for_tasks,
        "get_all_tasks": get_all_tasks,
    }


def _one(service: Service, tasks: Tasks, who_calls: WhoCalls) -> dict[str, Any]:
    @errors_as_answers
    async def get_task_details(task_id: TaskId) -> Annotated[t.CallToolResult, RunAnswer]:
        """Tell all that is known of a task: its result, what it waits for, what it has said."""
        caller = who_calls()
        view = await tasks.book.view(await tasks.book.newest(task_id, caller), caller)
        return details_answer(view, await all_details(service, view))

    @errors_as_answers
    async def get_logs(
        run_id: TaskId,
        cursor: Annotated[
            int | None,
            Field(ge=0, le=2**63 - 1, description="The one of the last answer; the first is 0"),
        ] = None,
    ) -> Annotated[t.CallToolResult, RunAnswer]:
        """Tell what happened in a run, from a cursor on."""
        run_id = await tasks.book.newest(run_id, who_calls())
        view = await tasks.book.view(run_id, who_calls())
        events = await service.store.events(run_id, after=cursor or 0, limit=LOG_PAGE_EVENTS + 1)
        shown: list[Event] = []
        chars = 0
        for event in events[:LOG_PAGE_EVENTS]:
            chars += len(event.text)
            if shown and chars > LOG_PAGE_CHARS:
                break
            shown.append(event)
        more = len(shown) < len(events)
        line = "\n".join(_line(event, view.created) for event in shown)
        said = [event.model_dump(include={"seq", "at", "kind", "text"}) for event in shown]
        document = {
            "run_id": run_id,
            "status": view.status,
            "events": [without_empty(event) for event in said],
            "cursor": shown[-1].seq if shown else cursor or 0,
            "more": more,
        }
        where = f"{view.status}, cursor {document['cursor']}{', and more' * more}"
        return plain(f"{line}\n({where})" if line else f"(nothing new, {where})", document)

    @errors_as_answers
    async def cancel_task(task_id: TaskId) -> Annotated[t.CallToolResult, RunAnswer]:
        """End a task; what it had done is kept."""
        caller = who_calls()
        view = await tasks.cancel(await tasks.book.newest(task_id, caller), caller)
        said = f"{view.agent} {view.run_id}: {view.status}"
        if view.status not in FINAL:
            said += "; it is about to end, and wait_for_tasks tells when it has"
        return details_answer(view, details(view), head=said)

    return {"get_task_details": get_task_details, "get_logs": get_logs, "cancel_task": cancel_task}


def _talk(tasks: Tasks, waiting: Waiting, who_calls: WhoCalls) -> dict[str, Any]:
    async def go_on(ctx: Context[Any], run_id: str, wait: bool) -> ToolReply:
        begun = await waiting.begin(ctx, who_calls())
        if not wait:
            begun.at_most(0)
        found = await waiting.follow(begun, begun.runs or [run_id])
        return found if isinstance(found, t.InputRequiredResult) else run_answer(found[0])

    @errors_as_answers
    async def reply_subagent(
        run_id: TaskId,
        message_id: Annotated[str, Field(description="The question's")],
        answer: Annotated[str, Field(description="What it is told")],
        ctx: Context[Any],
        wait: Annotated[OptionalFlag, Field(description="Wait for what comes next")] = False,
    ) -> Annotated[t.CallToolResult, RunAnswer] | t.InputRequiredResult:
        """Answer a question of a subagent."""
        if ctx.request_state is None:
            await tasks.book.reply(run_id, message_id, answer, who_calls())
        return await go_on(ctx, run_id, wait)

    @errors_as_answers
    async def resume_subagent_task(
        task_id: TaskId,
        ctx: Context[Any],
        approve: Annotated[list[str] | None, Field(description="call_ids")] = None,
        reject: Annotated[list[str] | None, Field(description="call_ids")] = None,
        approve_all: Annotated[OptionalFlag, Field(description="All that wait")] = False,
        reject_all: Annotated[OptionalFlag, Field(description="All that wait")] = False,
        input: Annotated[  # noqa: A002 as others call it
            OptionalText,
            Field(
                description="What to tell it: why not, or what else. It reads it after the step "
                "that it is at; when it has ended, it goes on with it"
            ),
        ] = "",
        edited_input: Annotated[
            dict[str, dict[str, Any]] | None,
            Field(description="call_id -> what it runs with instead"),
        ] = None,
        wait: Annotated[OptionalFlag, Field(description="Wait for what comes next")] = False,
        now: Annotated[
            OptionalFlag, Field(description="With input: stop the step that it is at first")
        ] = False,
    ) -> Annotated[t.CallToolResult, RunAnswer] | t.InputRequiredResult:
        """Decide tool calls that wait; or tell an agent something, at its work or after it."""
        task_id = await tasks.book.newest(task_id, who_calls())
        if ctx.request_state is not None:
            return await go_on(ctx, task_id, wait)
        approved = [*(approve or ()), *(edited_input or ())]
        if approve_all and reject_all:
            raise CallInvalid("approve_all and reject_all are both true; give one of them")
        if now and (approved or approve_all):
            raise CallInvalid("now would stop what is approved; leave it out, or say it later")
        heard = task_id
        if approved or reject or approve_all or reject_all:
            await tasks.book.decide(
                task_id,
                who_calls(),
                approve=list(dict.fromkeys(approved)),
                reject=reject or (),
                approve_all=approve_all,
                reject_all=reject_all,
                inputs=edited_input,
                message=input,
            )
            if input and not (reject or reject_all):
                heard = await tasks.say(task_id, input, who_calls())
        elif not input:
            raise CallInvalid("there is nothing to do; give approve, reject, or input")
        elif (await tasks.book.view(task_id, who_calls())).approvals:
            raise RunRefused(
                f"run {task_id} waits for tool calls to be approved; decide them, and give input "
                "with a rejection or afterwards"
            )
        else:
            heard = await tasks.say(task_id, input, who_calls(), now=now)
        return await go_on(ctx, heard, wait)

    return {"reply_subagent": reply_subagent, "resume_subagent_task": resume_subagent_task}


def _line(event: Event, began: float) -> str:
    line = event_line(event.kind, event.text)
    said = f"{line.label}: {line.text}" if line.text else line.label
    return f"{event.seq} {event.at - began:.1f} s {said}"
