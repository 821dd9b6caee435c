"""`orchestrator runs` and `orchestrator logs`: what happened, from the store.

Whatever is told of a run is true: those whose orchestrator has died have ended by then.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli.options import EveryProjectOption, JsonOption, RunArgument
from orchestrator.surfaces.text import costs, one_line, print_lines, table, visible

if TYPE_CHECKING:
    from orchestrator.domain.events import Event
    from orchestrator.domain.result import RunStatus
    from orchestrator.engine.tasks.retention import Keep, Pruned
    from orchestrator.store.runs import RunRecord
    from orchestrator.surfaces.event_lines import Show

FOLLOW_SECONDS = 0.3
"""How often the store is looked at for what a run of another process has done."""

WATCH_SECONDS = 1.0
"""How often a live table is drawn."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count."""

MIN_PROMPT = 20
"""Of a prompt's first words, however narrow the terminal."""

RUN_HEADINGS = ("RUN", "AGENT", "CALLER", "STATUS", "REASON", "WHEN", "TIME", "COST", "PROMPT")

NO_PROJECT = "(none)"
"""The project of what was made before there were projects."""


UNITS = {"min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

runs_app = typer.Typer(
    help="What has run; `prune` removes what is old.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@runs_app.callback()
def runs(
    context: typer.Context,
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many, from the newest on.")] = 20,
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
        try:
            anyio.run(_watch, limit, statuses, agent, all_)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    found = anyio.run(_runs, limit, statuses, agent, all_)
    if as_json:
        print(json.dumps({"runs": [record.model_dump(mode="json") for record in found]}))
        return
    if not found:
        nothing = "no run is like that" if status or agent else "nothing has run yet"
        print(nothing if all_ else f"{nothing} in this project; --all looks at every project")
        return
    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 160
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

    try:
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
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


async def _runs(
    limit: int, statuses: Sequence[RunStatus], agent: str, all_: bool
) -> tuple[RunRecord, ...]:
    from orchestrator.settings import read_settings
    from orchestrator.state import open_book

    settings = read_settings()
    projects = None if all_ else (settings.project, "")
    async with open_book(settings) as book:
        return await book.records(
            statuses=statuses, agent=agent, limit=limit, projects=projects, results=True
        )


async def _watch(limit: int, statuses: Sequence[RunStatus], agent: str, all_: bool) -> None:
    import anyio
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from orchestrator.settings import read_settings
    from orchestrator.state import open_book

    console = Console(highlight=False)
    settings = read_settings()
    projects = None if all_ else (settings.project, "")
    async with open_book(settings) as book:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                await book.settle()
                rows = max(1, min(limit, console.height - 2))
                found = await book.records(
                    statuses=statuses, agent=agent, limit=rows, projects=projects, results=True
                )
                drawn = runs_table(found, now=time.time(), width=console.width, projects=all_)
                lines = list(drawn)
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
    from orchestrator.state import open_book

    events: list[Event] = []
    async with open_book(read_settings()) as book:
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


def runs_table(
    records: Sequence[RunRecord], *, now: float, width: int, projects: bool = False
) -> Iterator[str]:
    """A heading and a line for each run, and its project if those of several are listed; the
    prompt gets the room that is left.
    """
    rows = [RUN_HEADINGS, *(_row(record, now) for record in records)]
    if projects:
        names = ["PROJECT", *(project_name(record.project) for record in records)]
        rows = [(row[0], name, *row[1:]) for row, name in zip(rows, names, strict=True)]
    return table(rows, width=width, least=MIN_PROMPT)


def project_name(project: str) -> str:
    """A project as people know it: the name of its folder."""
    return visible(Path(project).name or project) or NO_PROJECT


def _row(record: RunRecord, now: float) -> tuple[str, ...]:
    when = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    seconds = (record.ended or now) - record.created
    cost = costs(record.result) if record.result else ""
    return (
        record.run_id,
        record.agent,
        record.caller,
        record.status,
        record.reason,
        when,
        f"{seconds:.1f} s",
        cost,
        one_line(record.prompt),
    )
