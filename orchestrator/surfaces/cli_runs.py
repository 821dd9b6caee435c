"""`orchestrator runs` and `orchestrator logs`: what happened, from the store."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.surfaces.cli_options import Json

if TYPE_CHECKING:
    from orchestrator.domain.events import Event
    from orchestrator.engine.store import RunRecord, Store
    from orchestrator.surfaces.event_lines import Show

LOOK_SECONDS = 0.3
"""How often the store is looked at for what a run of another process has done."""

EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells count."""

MIN_PROMPT = 20
"""Of a prompt's first words, however narrow the terminal."""

HEADINGS = ("RUN", "AGENT", "CALLER", "STATUS", "REASON", "WHEN", "TIME", "COST", "PROMPT")


def runs(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many, from the newest on.")] = 20,
    as_json: Json = False,
) -> None:
    """List the runs, newest first."""
    import anyio

    found = anyio.run(_runs, limit)
    if as_json:
        print(json.dumps({"runs": [record.model_dump(mode="json") for record in found]}))
        return
    if not found:
        print("nothing has run yet")
        return
    from orchestrator.surfaces.event_lines import write

    width = shutil.get_terminal_size((160, 24)).columns if sys.stdout.isatty() else 160
    for line in runs_table(found, now=time.time(), width=width):
        write(line, sys.stdout)


def logs(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="As `orchestrator runs` names it.")],
    *,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run has ended.")
    ] = False,
    as_json: Json = False,
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


async def _runs(limit: int) -> tuple[RunRecord, ...]:
    async with open_store() as store:
        return await store.runs(limit)


async def _follow(run_id: str, follow: bool, show: Show | None) -> tuple[RunRecord, list[Event]]:
    import anyio

    from orchestrator.domain.result import FINAL
    from orchestrator.errors import RunNotFound

    events: list[Event] = []
    async with open_store() as store:
        while True:
            record = await store.run(run_id)  # first this: nothing comes after the end
            if record is None:
                raise RunNotFound(f"there is no run {run_id!r}; `orchestrator runs` lists them")
            for event in await store.events(run_id, after=events[-1].seq if events else 0):
                events.append(event)
                if show is not None:
                    show(event.at - events[0].at, event.kind, event.text)
            if not follow or record.status in FINAL:
                return record, events
            await anyio.sleep(LOOK_SECONDS)


@asynccontextmanager
async def open_store() -> AsyncIterator[Store]:
    # Here and above, not at the top: `--help` need not wait for pydantic.
    from orchestrator.engine.store import Store
    from orchestrator.settings import read_settings

    store = Store(read_settings().state_dir / "runs.sqlite")
    try:
        yield store
    finally:
        store.close()


def runs_table(records: Sequence[RunRecord], *, now: float, width: int) -> Iterator[str]:
    """A heading and a line for each run; the prompt gets the room that is left."""
    rows = [HEADINGS, *(_row(record, now) for record in records)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS) - 1)]
    left = max(MIN_PROMPT, width - sum(widths) - 2 * len(widths))
    for row in rows:
        cells = [cell.ljust(size) for cell, size in zip(row, widths, strict=False)]
        prompt = row[-1] if len(row[-1]) <= left else row[-1][: left - 1] + "…"
        yield "  ".join([*cells, prompt]).rstrip()


def _row(record: RunRecord, now: float) -> tuple[str, ...]:
    from orchestrator.surfaces.event_lines import visible

    when = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    seconds = (record.ended or now) - record.created
    cost = f"${record.result.cost_usd:.4f}" if record.result else ""
    return (
        record.run_id,
        record.agent,
        record.caller,
        record.status,
        record.reason,
        when,
        f"{seconds:.1f} s",
        cost,
        " ".join(visible(record.prompt).split()),
    )
