"""`orchestrator cost`: by value for the sums, from outside for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.result import RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.settings import read_settings
from orchestrator.store.reports import Spending
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.main import main
from orchestrator.surfaces.cli.records.cost import cost_rows, cost_table

DAY = 86400.0


def spending(run_id: str, agent: str, cost: float, **fields: object) -> Spending:
    given = {"project": "/home/me/shop", "created": 10 * DAY, "model": "big", **fields}
    return Spending.model_validate({"run_id": run_id, "agent": agent, "cost_usd": cost, **given})


# A planner that had a coder work for it: each has its own part.
SPENT = (
    spending("r1", "planner", 0.25, requests=2, input_tokens=1500, output_tokens=20),
    spending("r2", "coder", 1.0, estimated_usd=0.5, requests=10, cache_read_tokens=1_000_000),
    spending("r2", "coder", 0.125, model="small", requests=1),
    spending("r3", "coder", 0.0, scripted=True, project="/home/me/other", created=12 * DAY),
)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("agent", [("coder", 2, 1.125, 0.5), ("planner", 1, 0.25, 0.0)]),
        ("model", [("big", 3, 1.25, 0.5), ("small", 1, 0.125, 0.0)]),
        ("project", [("/home/me/shop", 2, 1.375, 0.5), ("/home/me/other", 1, 0.0, 0.0)]),
    ],
)
def test_each_dollar_is_in_one_row(by: object, expected: list[object]) -> None:
    rows = cost_rows(SPENT, by)  # type: ignore[arg-type]  # a parameter's
    found = [(r["name"], r["runs"], r["cost_usd"], r["estimated_usd"]) for r in rows]
    assert found == expected


def test_days_come_in_their_order() -> None:
    rows = cost_rows(tuple(reversed(SPENT)), "day")
    assert [row["runs"] for row in rows] == [2, 1]
    assert [len(str(row["name"])) for row in rows] == [10, 10]


def test_people_see_facts_and_estimates_apart() -> None:
    rows = cost_rows(SPENT, "agent")
    (total,) = cost_rows([each.model_copy(update={"agent": "total"}) for each in SPENT], "agent")
    assert list(cost_table(rows, "agent", total)) == [
        "AGENT    RUNS  REQUESTS  TOKENS IN  OUT  COST     ESTIMATED",
        "coder       2        11  1,000,000  0    $1.1250  $0.5000",
        "planner     1         2      1,500  20   $0.2500",
        "total       3        13  1,001,500  20   $1.3750  $0.5000",
        "1 run had a script for a model, and cost nothing",
        "ESTIMATED is besides: answers that broke off, or never came, and may be billed",
    ]


def test_the_report_is_of_this_project_unless_all_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path))

    async def fill() -> None:
        store = Store(tmp_path / "runs.sqlite")
        for run_id, project in (("r1", read_settings().project), ("r2", "/elsewhere")):
            await store.add_run(Task(agent="a", prompt="p", run_id=run_id, project=project))
            await store.set_status(run_id, "running")
            await store.finish(
                RunResult(
                    run_id=run_id,
                    agent="a",
                    caller="main",
                    status="completed",
                    reason="ok",
                    model="big",
                    usage=Usage(cost_usd=0.5, requests=3),
                )
            )
        store.close()

    def said(*argv: str) -> dict[str, object]:
        with pytest.raises(SystemExit) as exit_:
            main(["cost", "--json", *argv])
        assert exit_.value.code == 0
        document: dict[str, object] = json.loads(capsys.readouterr().out)
        return document

    anyio.run(fill)
    assert said()["total"] == {
        "name": "total",
        "runs": 1,
        "scripted_runs": 0,
        "requests": 3,
        "input_tokens": 0,
        "output_tokens": 0,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "cost_usd": 0.5,
        "estimated_usd": 0.0,
    }
    assert said("--all", "--by", "model")["rows"] == [
        {**said("--all")["total"], "name": "big"}  # type: ignore[dict-item]  # a JSON object
    ]
    by_project = said("--by", "project")
    assert by_project["since"] is None
    assert len(by_project["rows"]) == 2  # type: ignore[arg-type]  # a JSON list
    assert said("--since", "1h", "--all")["total"]["cost_usd"] == 1.0  # type: ignore[index]
