"""`orchestrator cost`: what runs have cost, by agent, day, project or model; facts and estimates
apart, and each run counted once, also one that an agent had run.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestrator.domain.words import counted
from orchestrator.surfaces.cli.elsewhere.remote_reports import asked_there
from orchestrator.surfaces.cli.options import EveryProjectOption, JsonOption, on_book, say_none
from orchestrator.surfaces.cli.records.run_table import project_name
from orchestrator.surfaces.cli.records.runs import seconds_of
from orchestrator.surfaces.text import one_line, print_lines, table

if TYPE_CHECKING:
    from orchestrator.store.reports import Spending

By = Literal["agent", "day", "project", "model"]

COUNTED_USE = (
    "requests",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
)
MONEY_SPENT = ("cost_usd", "estimated_usd")
TOTAL = "total"

COST_HEADINGS = ("RUNS", "REQUESTS", "TOKENS IN", "OUT", "COST", "ESTIMATED")


def cost(
    *,
    by: Annotated[
        By, typer.Option("--by", metavar="WHAT", help="agent, day, project or model.")
    ] = "agent",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Runs that were begun since then: 30d, 12h, 2w.")
    ] = "",
    all_: EveryProjectOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the runs of this project have cost, facts and estimates apart.

    What a run had other agents do counts for those, so that nothing counts twice.
    """
    from orchestrator.settings import read_settings

    begun = time.time() - seconds_of(since) if since else 0.0
    settings = read_settings()
    if settings.server:
        if by == "project":
            raise typer.BadParameter("--by project goes without --server: it serves one project")
        asked = {"by": by, **({"since": begun} if begun else {})}
        said = asked_there(settings, lambda client: client.cost(**asked))
        _print_costs(said["rows"], said[TOTAL], by, begun, as_json=as_json, all_=all_)
        return
    everywhere = all_ or by == "project"
    spent = on_book(
        lambda book, project: book.store.reports.spending(
            projects=None if everywhere else (project, ""), since=begun
        )
    )
    total = cost_sum(TOTAL, spent)
    _print_costs(cost_rows(spent, by), total, by, begun, as_json=as_json, all_=everywhere)


def _print_costs(
    rows: Sequence[dict[str, object]],
    total: dict[str, object],
    by: By,
    begun: float,
    *,
    as_json: bool,
    all_: bool,
) -> None:
    if as_json:
        print(json.dumps({"by": by, "since": begun or None, "rows": rows, TOTAL: total}))
    elif not rows:
        say_none("nothing has run" + " since then" * bool(begun), all_=all_)
    else:
        print_lines(cost_table(rows, by, total))


def cost_rows(spent: Sequence[Spending], by: By) -> list[dict[str, object]]:
    """A row for each agent, day, project or model: what cost most first, days in their order."""
    groups: dict[str, list[Spending]] = defaultdict(list)
    for each in spent:
        groups[_group(each, by)].append(each)
    if by == "day":
        order = sorted(groups)
    else:
        order = sorted(groups, key=lambda name: (-_cost(groups[name]), name))
    return [cost_sum(name, groups[name]) for name in order]


def cost_table(
    rows: Sequence[dict[str, object]], by: By, total: dict[str, object]
) -> Iterator[str]:
    """The rows, and below them what they come to."""
    shown = [_cells(row, by) for row in (*rows, *([total] if len(rows) > 1 else []))]
    yield from table([(by.upper(), *COST_HEADINGS), *shown])
    if scripted := total["scripted_runs"]:
        yield f"{counted(int(str(scripted)), 'run')} had a script for a model, and cost nothing"
    if total["estimated_usd"]:
        yield "ESTIMATED is besides: answers that broke off, or never came, and may be billed"


def _cells(row: dict[str, object], by: By) -> tuple[str, ...]:
    read = [row["input_tokens"], row["cache_read_tokens"], row["cache_write_tokens"]]
    name = str(row["name"])
    name = project_name(name) if by == "project" and name != TOTAL else one_line(name) or "(none)"
    estimated = float(str(row["estimated_usd"]))
    numbers = (row["runs"], row["requests"], sum(int(str(each)) for each in read))
    return (
        name,
        *(
            f"{number:>{len(heading)},}"
            for number, heading in zip(numbers, COST_HEADINGS, strict=False)
        ),
        f"{row['output_tokens']:,}",
        f"${row['cost_usd']:.4f}",
        f"${estimated:.4f}" if estimated else "",
    )


def cost_sum(name: str, spent: Iterable[Spending]) -> dict[str, object]:
    """A row: what these have spent together."""
    mine = tuple(spent)
    return {
        "name": name,
        "runs": len({each.run_id for each in mine}),
        "scripted_runs": len({each.run_id for each in mine if each.scripted}),
        **{field: sum(getattr(each, field) for each in mine) for field in COUNTED_USE},
        **{field: round(sum(getattr(each, field) for each in mine), 6) for field in MONEY_SPENT},
    }


def _group(spending: Spending, by: By) -> str:
    if by == "day":
        return datetime.fromtimestamp(spending.created, UTC).astimezone().strftime("%Y-%m-%d")
    return str(getattr(spending, by))


def _cost(spent: Iterable[Spending]) -> float:
    return sum(each.cost_usd + each.estimated_usd for each in spent)
