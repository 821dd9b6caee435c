"""`orchestrator runs` and `orchestrator logs`: what happened, from the store.

Whatever is told of a run is true: those whose orchestrator has died have ended by then.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.command_help import Commands
from orchestrator.surfaces.cli.elsewhere.server_option import or_elsewhere
from orchestrator.surfaces.cli.options import EveryProjectOption, JsonOption, RunArgument, say_none
from orchestrator.surfaces.cli.records.run_table import listed_runs, runs_table
from orchestrator.surfaces.text import print_lines, visible

if TYPE_CHECKING:
    from orchestrator.domain.events import Event
    from orchestrator.domain.result import RunStatus
    from orchestrator.engine.tasks.retention import Keep, Pruned
    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.store.runs import RunRecord
    from orchestrator.surfaces.cli.records.run_table import ListedRun
    from orchestrator.surfaces.event_lines import Show

FOLLOW_SECONDS = 0.3
"""How often the store is looked at for what a run of another process has done."""

WATCH_SECONDS = 1.0
"""How often a live table is drawn."""

PLAIN_WIDTH = 160
"""Of a table that no terminal shows."""

UNITS = {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

runs_app = Commands(
    "What has run; `prune` removes what is old.",
    invoke_without_command=True,
    no_args_is_help=False,
)


@runs_app.callback()
@or_elsewhere
def runs(
    context: typer.Context,
    *,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many, from the newest on.")
    ] = 20,
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATUS", help="Only those that are this, such as failed, or `open`: not ended."
        ),
    ] = None,
    agent: Annotated[str, typer.Option(metavar="NAME", help="Only those of this agent.")] = "",
    all_: EveryProjectOption = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep the table up to date.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the runs of this project, newest first."""
    if context.invoked_subcommand is not None:
        return
    import anyio

    statuses = _statuses(status or ())
    if watch:
        if as_json or not sys.stdout.isatty():
            raise typer.BadParameter("--watch needs a terminal, and goes without --json")
        anyio.run(_watch, limit, statuses, agent, all_)
    found = anyio.run(_runs, limit, statuses, agent, all_)
    if as_json:
        rows = [{**run.record.model_dump(mode="json"), "step": run.step} for run in found]
        print(json.dumps({"runs": rows}))
        return
    if not found:
        say_none("no run is like that" if status or agent else "nothing has run yet", all_=all_)
        return
    width = PLAIN_WIDTH
    if sys.stdout.isatty():
        width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    print_lines(runs_table(found, now=time.time(), width=width, projects=all_))


@runs_app.command()
def prune(
    *,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Those that ended longer ago: 30d, 12h, 2w.")
    ] = "",
    keep: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="All but the newest N that have ended.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove old runs, and what they changed; without options, as the settings say.

    A run that has not ended stays.
    """
    import anyio

    pruned = anyio.run(_prune, older_than, keep, dry_run)
    if as_json:
        print(json.dumps({**pruned.model_dump(mode="json"), "dry_run": dry_run}))
        return
    count = len(pruned.run_ids)
    done = "would be removed" if dry_run else "removed"
    for run_id in pruned.run_ids if dry_run else ():
        print(run_id)
    size = f"{pruned.freed_bytes / 1024 / 1024:.1f} MiB"
    print(f"{count} run{'s' * (count != 1)} {done}, {size}", file=sys.stderr)


def logs(
    run_id: RunArgument,
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what happened in a run; --json waits for the end if it is to follow."""
    import anyio

    from orchestrator.surfaces.event_lines import shown_events

    if as_json:
        record, events = anyio.run(_follow, run_id, follow, None)
        said = {
            "run": record.model_dump(mode="json"),
            "events": [event.model_dump(mode="json") for event in events],
        }
        print(json.dumps(said))
    else:
        with shown_events(sys.stdout) as show:
            anyio.run(_follow, run_id, follow, show)


async def _runs(
    limit: int, statuses: Sequence[RunStatus], agent: str, all_: bool
) -> tuple[ListedRun, ...]:
    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.server_option import open_any_book

    settings = read_settings()
    projects = None if all_ else (settings.project, "")
    async with open_any_book(settings) as book:
        return await _listed(book, limit, statuses, agent, projects)


async def _listed(
    book: TaskBook,
    limit: int,
    statuses: Sequence[RunStatus],
    agent: str,
    projects: tuple[str, ...] | None,
) -> tuple[ListedRun, ...]:
    """The newest runs, with those that worked for them; of some status or agent, those alone."""
    from orchestrator.domain.result import FINAL

    if statuses or agent:
        records = await book.records(
            statuses=statuses, agent=agent, limit=limit, projects=projects, results=True
        )
    else:
        records = await book.families(limit=limit, projects=projects)
    reports = book.store.reports
    under_way = [record.run_id for record in records if record.status not in FINAL]
    steps = await reports.steps(under_way)
    spending = await reports.spending(run_ids=[record.run_id for record in records])
    return listed_runs(records, steps, spending)


async def _watch(limit: int, statuses: Sequence[RunStatus], agent: str, all_: bool) -> None:
    import anyio
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.server_option import open_any_book

    console = Console(highlight=False)
    settings = read_settings()
    projects = None if all_ else (settings.project, "")
    async with open_any_book(settings) as book:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                await book.settle()
                rows = max(1, min(limit, console.height - 2))
                found = await _listed(book, rows, statuses, agent, projects)
                drawn = runs_table(found, now=time.time(), width=console.width, projects=all_)
                lines = [visible(line) for line in drawn][: console.height - 1]
                live.update(Text("\n".join(lines), no_wrap=True), refresh=True)
                await anyio.sleep(WATCH_SECONDS)


async def _prune(older_than: str, keep: int | None, dry_run: bool) -> Pruned:
    from orchestrator.app import open_retention
    from orchestrator.engine.tasks.retention import Keep, keep_of
    from orchestrator.settings import read_settings
    from orchestrator.state import open_book

    settings = read_settings()
    wanted: Keep = keep_of(settings.keep_days, settings.keep_mb)
    if older_than or keep is not None:
        days = seconds_of(older_than) / UNITS["d"] if older_than else None
        wanted = Keep(days=days, count=keep)
    async with open_book(settings):  # so that what has died has ended
        pass
    with open_retention(settings) as retention:
        pruned = await retention.prune(wanted, dry_run=dry_run)
        if pruned.run_ids and not dry_run:
            await retention.compact()
        return pruned


def seconds_of(text: str) -> float:
    """A time as people write it -> seconds."""
    read = re.fullmatch(r"(\d{1,6})(min|h|d|w)", text)
    if read is None:
        raise typer.BadParameter(f"{text!r} is no time; write 30d, 12h, 2w or 90min")
    return int(read[1]) * UNITS[read[2]]


def _statuses(names: Sequence[str]) -> tuple[RunStatus, ...]:
    from orchestrator.engine.tasks.task_book import named_statuses
    from orchestrator.errors import CallInvalid

    try:
        return named_statuses(names)
    except CallInvalid as exc:
        raise typer.BadParameter(str(exc)) from exc


async def _follow(run_id: str, follow: bool, show: Show | None) -> tuple[RunRecord, list[Event]]:
    import anyio

    from orchestrator.domain.result import FINAL
    from orchestrator.settings import read_settings
    from orchestrator.surfaces.cli.elsewhere.server_option import open_any_book

    events: list[Event] = []
    settings = read_settings()
    async with open_any_book(settings) as book:
        run_id = await book.named(run_id, settings.project)
        while True:
            await book.settle_now_and_then()
            record = await book.record(run_id)  # first this: nothing comes after the end
            for event in await book.store.events(run_id, after=events[-1].seq if events else 0):
                events.append(event)
                if show is not None:
                    show(event.at - events[0].at, event.kind, event.text)
            if not follow or record.status in FINAL:
                return record, events
            await anyio.sleep(FOLLOW_SECONDS)
