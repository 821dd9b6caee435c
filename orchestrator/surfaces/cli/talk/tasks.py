"""`orchestrator wait`, `resume` and `cancel`: runs that any process holds."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.domain.words import ended_as
from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    JsonOption,
    NotifyOption,
    RunArgument,
    dumped,
    on_book,
    print_either,
    settings_for,
)
from orchestrator.surfaces.cli.records.run_table import short_status
from orchestrator.surfaces.cli.talk.asked import WhatWaits, ask_lines
from orchestrator.surfaces.text import one_line, print_lines, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.domain.task import Task
    from orchestrator.engine.tasks.task_book import TaskBook, TaskView, Until

EXIT_NOT_ENDED = 10
"""WhatWaits was over before the run: time ran out, or it waits for an answer or a decision."""

RunsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN", help="One run or several, or how their ids begin, or `last`."),
]


def cancel(run_id: RunArgument, *, as_json: JsonOption = False) -> None:
    """End a run, wherever it runs; its container is gone by then."""

    async def end(book: TaskBook, project: str) -> TaskView:
        return await book.cancel(await book.named(run_id, project), None, seconds=math.inf)

    view = on_book(end)
    print_either(as_json, view.model_dump(mode="json"), _ended_line(view))


def wait(
    run_ids: RunsArgument,
    *,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Not longer than this.")
    ] = None,
    any_: Annotated[bool, typer.Option("--any", help="Until one of them has ended.")] = False,
    notify: NotifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Wait until runs have ended, or one of them asks something."""
    seconds = math.inf if timeout is None else timeout
    until: Until = "any" if any_ else "all"

    async def look(book: TaskBook, project: str) -> tuple[TaskView, ...]:
        meant = [await book.named(run_id, project) for run_id in run_ids]
        return await book.wait(meant, None, seconds=seconds, until=until)

    views = on_book(look)
    if notify:
        from orchestrator.settings import whole_environment
        from orchestrator.surfaces.cli.talk.alerts import Alerts

        told = ", ".join(f"{view.agent} {short_status(view.status)}" for view in views)
        Alerts(True, whole_environment()).say(told)
    if as_json:
        print(json.dumps({"runs": dumped(views)}))
    else:
        for view in views:
            say(_ended_line(view), sys.stdout)
        for view in views:
            waiting = WhatWaits(view.questions, view.approvals, _agents(view))
            print_lines(ask_lines(waiting))
    raise typer.Exit(exit_code(views, any_=any_))


def resume(
    run_id: RunArgument,
    text: Annotated[str, typer.Argument(help="What the agent is told; - reads it from stdin.")],
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Stop what it is doing; else it reads it after that.")
    ] = False,
    agents_dir: AgentsDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell an agent something: in the middle of its work, or after it, in its session."""
    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.remote_runs import resume_there
    from orchestrator.surfaces.cli.elsewhere.server_option import not_with_server
    from orchestrator.surfaces.cli.run import carry_out

    said = sys.stdin.read() if text == "-" else text
    settings = read_settings()
    if settings.server:
        not_with_server(settings, agents_dir=agents_dir)
        meant = resume_there(settings, run_id, said, now=now, as_json=as_json)
        _say_told(meant, said, now=now, as_json=as_json)
        return

    async def tell(book: TaskBook, project: str) -> tuple[str, Task | None]:
        meant = await book.named(run_id, project)
        if await book.tell(meant, said, None, now=now):
            return meant, None
        return meant, await book.follow_up(meant, said, None)

    meant, follow_up = on_book(tell)
    if follow_up is None:
        _say_told(meant, said, now=now, as_json=as_json)
        return
    carry_out(settings_for(agents_dir), follow_up, as_json=as_json)


def _say_told(run_id: str, said: str, *, now: bool, as_json: bool) -> None:
    how = "interrupted, and told" if now else "told after the step that it is at"
    line = f"{run_id} {how}: {one_line(said)}"
    print_either(as_json, {"run_id": run_id, "told": said}, line)


def exit_code(views: Sequence[TaskView], *, any_: bool) -> int:
    """As the runs ended; the first one that did not end well decides. Pure."""
    from orchestrator.surfaces.cli.run import EXIT_CODES

    codes = [EXIT_CODES.get(view.status, EXIT_NOT_ENDED) for view in views]
    if any_:
        ended = [code for code in codes if code != EXIT_NOT_ENDED]
        return max(ended) if ended else EXIT_NOT_ENDED
    return next((code for code in codes if code), 0)


def _agents(view: TaskView) -> dict[str, str]:
    """Whose questions and calls these are: the run's own, and of runs that work for it."""
    asking = [question.run_id for question in view.questions]
    asking += [approval.run_id for approval in view.approvals]
    return {**dict.fromkeys(asking, f"a subagent of {view.agent}"), view.run_id: view.agent}


def _ended_line(view: TaskView) -> str:
    took = f" in {view.ended - view.created:.1f} s" if view.ended else ""
    more = f"; `orchestrator show {view.run_id}` tells more" if view.ended else ""
    return f"{view.run_id}: {view.agent} {ended_as(view.status, view.reason)}{took}{more}"
