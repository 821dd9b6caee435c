"""The table of runs, by value: what it shows in how much room, and how families are counted."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.result import RunResult
from orchestrator.store.reports import RunStep, Spending
from orchestrator.store.runs import RunRecord
from orchestrator.surfaces.cli.records.run_table import listed_runs, runs_table

NOW = 10_000.0


def record(run_id: str, **fields: Any) -> RunRecord:
    given: dict[str, Any] = {
        "agent": "coder",
        "caller": "main",
        "status": "completed",
        "reason": "ok",
        "prompt": "Mend the\nparser, please, and tell me what was wrong with it",
        "project": "/home/me/shop",
        "created": NOW - 200,
        "ended": NOW - 100,
        "result": None,
        **fields,
    }
    return RunRecord(run_id=run_id, **given)


def result(run_id: str, **fields: Any) -> RunResult:
    given = {"agent": "coder", "caller": "main", "status": "completed", "reason": "ok", **fields}
    return RunResult(run_id=run_id, **given)


def spending(run_id: str, cost: float, estimated: float = 0.0, **fields: Any) -> Spending:
    return Spending(
        run_id=run_id,
        agent="coder",
        project="",
        created=0,
        cost_usd=cost,
        estimated_usd=estimated,
        **fields,
    )


FAMILY = (
    record("r5aaaaaaaaa", status="waiting_parent_reply", ended=None, created=NOW - 30),
    record(
        "r1aaaaaaaaa",
        agent="a-planner-with-a-long-name",
        result=result("r1aaaaaaaaa", cost_usd=0.01, family_usd=0.06),
    ),
    record("r2aaaaaaaaa", parent_run_id="r1aaaaaaaaa", depth=1, created=NOW - 190),
    record("r3aaaaaaaaa", parent_run_id="r2aaaaaaaaa", depth=2, created=NOW - 180),
    record(
        *("r4aaaaaaaaa",),
        parent_run_id="r1aaaaaaaaa",
        depth=1,
        created=NOW - 170,
        status="failed",
        reason="budget",
        result=result("r4aaaaaaaaa", status="failed", reason="budget", message="it was\nspent"),
    ),
    # In a session, it goes on from another one; it does not work for it.
    record("r6aaaaaaaaa", parent_run_id="r1aaaaaaaaa", depth=0, created=NOW - 90_000),
)
SPENT = (
    spending("r1aaaaaaaaa", 0.01),
    spending("r2aaaaaaaaa", 0.02),
    spending("r3aaaaaaaaa", 0.02, 0.5),
    spending("r4aaaaaaaaa", 0.01),
    spending("r5aaaaaaaaa", 0.004, model="a"),
    spending("r5aaaaaaaaa", 0.001, model="b"),
    spending("r6aaaaaaaaa", 0.0, scripted=True),
)
STEPS = {"r5aaaaaaaaa": RunStep(kind="asked", text="Which colour\nshall it have?", at=NOW)}


def test_a_family_is_a_tree_and_its_cost_is_counted_once_in_eighty_columns() -> None:
    runs = listed_runs(FAMILY, STEPS, SPENT)
    lines = list(runs_table(runs, now=NOW, width=80))
    assert lines == [
        "RUN              AGENT         STATUS     AGE  COST      IN ALL    STEP OR TASK",
        "r5aaaaaaaaa      coder         asks       30s  $0.0050             asks Which c…",
        "r1aaaaaaaaa      a-planner-w…  completed  3m   $0.0100   $0.0600   Mend the par…",
        "└ r2aaaaaaaaa    coder         completed  3m   $0.0200   $0.0400~  Mend the par…",
        "  └ r3aaaaaaaaa  coder         completed  3m   $0.0200~            Mend the par…",
        "└ r4aaaaaaaaa    coder         failed     3m   $0.0100             budget: it w…",
        "r6aaaaaaaaa      coder         completed  1d   script              Mend the par…",
    ]
    assert all(len(line) <= 80 for line in lines)


def test_in_eighty_columns_there_is_room_for_project_age_step_and_cost() -> None:
    runs = listed_runs(FAMILY[:1], STEPS, SPENT)
    assert list(runs_table(runs, now=NOW, width=80, projects=True)) == [
        "RUN          PROJECT  AGENT  STATUS  AGE  COST     STEP OR TASK",
        "r5aaaaaaaaa  shop     coder  asks    30s  $0.0050  asks Which colour ⏎ shall it…",
    ]


def test_with_more_room_a_run_tells_more() -> None:
    runs = listed_runs(FAMILY[:1], STEPS, SPENT)
    task = "Mend the parser, please, and tell me what was wrong with it"
    does = f"asks Which colour ⏎ shall it have?  {task}"
    assert list(runs_table(runs, now=NOW, width=160)) == [
        f"RUN          AGENT  CALLER  STATUS  AGE  TOOK    COST     STEP{' ' * 31} TASK",
        "r5aaaaaaaaa  coder  main    asks    30s  30.0 s  $0.0050  " + does,
    ]
    estimated = list(runs_table(listed_runs(FAMILY[3:4], STEPS, SPENT), now=NOW, width=160))
    assert "$0.0200 +~0.5000" in estimated[1]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 81, 119, 120, 121, 200])
def test_no_line_is_longer_than_its_terminal_is_wide(width: int) -> None:
    runs = listed_runs(FAMILY, STEPS, SPENT)
    assert all(len(line) <= width for line in runs_table(runs, now=NOW, width=width, projects=True))
