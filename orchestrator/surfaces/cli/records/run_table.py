"""Runs -> a table for people: families as trees, and what each run is at. Fits its terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from orchestrator.surfaces.text import age, one_line, shortened, table, visible

if TYPE_CHECKING:
    from orchestrator.domain.result import Spent
    from orchestrator.store.reports import RunStep, Spending
    from orchestrator.store.runs import RunRecord

SHORT_STATUSES = {
    "paused": "approve?",
    "waiting_parent_reply": "asks",
    "parent_replied": "answered",
    "timed_out": "timed out",
}
"""What a status is called where there is little room; others keep their name."""

WIDE = 120
"""Columns from which on there is room for more than the least."""

SHORT_NAME_CHARS = {"AGENT": 12, "PROJECT": 12}
"""Of a name, where there is little room."""

SHOWN_STEP_CHARS = 40
"""Of what a run is at, where its task has a column of its own."""

LEAST_CHARS = 10
"""Of the last column, however narrow the terminal."""

DEEPEST_INDENT = 4
"""How far a tree is indented."""

NO_PROJECT = "(none)"
"""The project of what was made before there were projects."""


class ListedRun(NamedTuple):
    """A run, and all that a list shows of it."""

    record: RunRecord
    spent: Spent | None = None
    """By itself; None if nothing is known yet."""
    family: Spent | None = None
    """With all that worked for it, each counted once; None if nothing did."""
    step: str = ""
    level: int = 0
    """How many of those that it works for are in the list."""
    scripted: bool = False


def listed_runs(
    records: Sequence[RunRecord],
    steps: Mapping[str, RunStep] | None = None,
    spending: Iterable[Spending] = (),
) -> tuple[ListedRun, ...]:
    """The same runs, each followed by those that worked for it."""
    children: dict[str, list[RunRecord]] = defaultdict(list)
    known = {record.run_id for record in records}
    for record in records:
        above = record.parent_run_id if record.depth and record.parent_run_id in known else ""
        children[above].append(record)
    spending = tuple(spending)
    spent, scripts = _sums(spending), {each.run_id for each in spending if each.scripted}

    def below(record: RunRecord, level: int) -> Iterator[ListedRun]:
        mine = sorted(children[record.run_id], key=lambda child: child.created)
        inner = [each for child in mine for each in below(child, level + 1)]
        own = spent.get(record.run_id)
        yield ListedRun(
            record=record,
            spent=own,
            family=_family(record, [own, *(each.spent for each in inner)] if inner else []),
            step=_doing(record, (steps or {}).get(record.run_id)),
            level=level,
            scripted=record.run_id in scripts,
        )
        yield from inner

    return tuple(each for record in children[""] for each in below(record, 0))


def runs_table(
    runs: Sequence[ListedRun], *, now: float, width: int, projects: bool = False
) -> Iterator[str]:
    """A heading and a line for each run, none longer than `width`."""
    wide = width >= WIDE
    families = any(run.family is not None for run in runs)
    columns = [_column("RUN", [_indented(run) for run in runs])]
    if projects:
        columns.append(_column("PROJECT", [project_name(run.record.project) for run in runs], wide))
    columns.append(_column("AGENT", [run.record.agent for run in runs], wide))
    if wide:
        columns.append(_column("CALLER", [run.record.caller for run in runs], wide))
    columns.append(_column("STATUS", [short_status(run.record.status) for run in runs]))
    columns.append(_column("AGE", [age(now - run.record.created) for run in runs]))
    if wide:
        columns.append(_column("TOOK", [_took(run.record, now) for run in runs]))
    columns.append(_column("COST", [_cost(run.spent, wide, scripted=run.scripted) for run in runs]))
    if families:
        columns.append(
            _column("IN ALL", [_cost(None if run.scripted else run.family, wide) for run in runs])
        )
    if wide:
        columns.append(_column("STEP", [shortened(run.step, SHOWN_STEP_CHARS) for run in runs]))
        columns.append(_column("TASK", [one_line(run.record.prompt) for run in runs]))
    else:
        last = [run.step or one_line(run.record.prompt) for run in runs]
        columns.append(_column("STEP OR TASK", last))
    rows = list(zip(*columns, strict=True))
    return (shortened(line, width) for line in table(rows, width=width, least=LEAST_CHARS))


def short_status(status: str) -> str:
    """A status in one or two words."""
    return SHORT_STATUSES.get(status, status)


def project_name(project: str) -> str:
    """A project as people know it: the name of its folder."""
    return visible(Path(project).name or project) or NO_PROJECT


def _column(heading: str, cells: list[str], wide: bool = True) -> list[str]:
    most = 0 if wide else SHORT_NAME_CHARS[heading]
    return [heading, *(shortened(cell, most) if most else cell for cell in cells)]


def _indented(run: ListedRun) -> str:
    if not run.level:
        return run.record.run_id
    return f"{'  ' * (min(run.level, DEEPEST_INDENT) - 1)}└ {run.record.run_id}"


def _took(record: RunRecord, now: float) -> str:
    return f"{(record.ended or now) - record.created:.1f} s"


def _doing(record: RunRecord, step: RunStep | None) -> str:
    """What a run is at; of one that ended badly, why."""
    from orchestrator.surfaces.event_lines import event_line

    if record.ended is not None:
        message = record.result.message if record.result is not None else ""
        good = record.status == "completed"
        return "" if good else one_line(f"{record.reason}: {message}").rstrip(": ")
    if step is None:
        return ""
    line = event_line(step.kind, step.text)
    return f"{line.label} {line.text}".strip()


def _sums(spending: Iterable[Spending]) -> dict[str, Spent]:
    from orchestrator.domain.result import Spent

    sums: dict[str, Spent] = {}
    for each in spending:
        known = sums.get(each.run_id, Spent())
        sums[each.run_id] = Spent(
            cost_usd=known.cost_usd + each.cost_usd,
            estimated_usd=known.estimated_usd + each.estimated_usd,
        )
    return sums


def _family(record: RunRecord, listed: Sequence[Spent | None]) -> Spent | None:
    """What a run's family has spent: its result knows; of one under way, what is listed of it."""
    from orchestrator.domain.result import Spent

    result = record.result
    if result is not None and (
        (result.family_usd, result.family_estimated_usd) > (result.cost_usd, result.estimated_usd)
    ):
        return Spent(cost_usd=result.family_usd, estimated_usd=result.family_estimated_usd)
    if not listed:
        return None
    return Spent(
        cost_usd=sum(each.cost_usd for each in listed if each is not None),
        estimated_usd=sum(each.estimated_usd for each in listed if each is not None),
    )


def _cost(spent: Spent | None, wide: bool, *, scripted: bool = False) -> str:
    """What is known; what is estimated besides, or where there is little room, that there is."""
    if spent is None or scripted:
        return "script" if scripted else ""
    about = f" +~{spent.estimated_usd:.4f}" if wide else "~"
    return f"${spent.cost_usd:.4f}{about if spent.estimated_usd else ''}"
