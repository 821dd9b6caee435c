"""What reports read of runs: names by their beginnings, steps, and what was spent on which."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.store.reports import RunStep, Spending
from orchestrator.store.runs import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "runs.sqlite", "me")
    yield store
    store.close()


async def begin(store: Store, run_id: str, **fields: Any) -> None:
    task = Task.model_validate({"agent": "a", "prompt": "p", "run_id": run_id, **fields})
    await store.add_run(task)
    await store.set_status(run_id, "running")


def event(run_id: str, seq: int, kind: EventKind, text: str = "", **data: object) -> Event:
    return Event(run_id=run_id, seq=seq, at=float(seq), kind=kind, text=text, data=data)


async def end(store: Store, run_id: str, **fields: Any) -> None:
    given = {"agent": "a", "caller": "main", "status": "completed", "reason": "ok", **fields}
    await store.finish(RunResult(run_id=run_id, **given))


async def test_runs_are_found_by_how_their_ids_begin(store: Store) -> None:
    for run_id in ("r1a", "r1b", "r2%"):
        await begin(store, run_id)
    assert await store.reports.run_ids("r1") == ("r1b", "r1a")
    assert await store.reports.run_ids("r1", limit=1) == ("r1b",)
    assert await store.reports.run_ids("r2") == ("r2%",)
    assert await store.reports.run_ids("%") == ()


async def test_a_step_is_the_last_event_that_tells_what_a_run_does(store: Store) -> None:
    await begin(store, "r1")
    await store.add_events(
        [
            event("r1", 1, "queued"),
            event("r1", 2, "tool_call", "Bash ls"),
            event("r1", 3, "model_request"),
        ]
    )
    assert await store.reports.steps(["r1", "r9"]) == {
        "r1": RunStep(kind="tool_call", text="Bash ls", at=2.0)
    }


async def test_what_a_run_spent_is_shared_among_its_models_and_nothing_is_lost(
    store: Store,
) -> None:
    await begin(store, "r1", project="/p")
    await store.add_events(
        [
            event("r1", 1, "model_request", model="big", cost_usd=0.5, output_tokens=10),
            event("r1", 2, "model_request", model="small", cost_usd=0.1, estimated_usd=0.2),
            event("r1", 3, "model_request", model="big", cost_usd=0.5, output_tokens=10),
        ]
    )
    usage = Usage(cost_usd=2.0, estimated_usd=0.2, requests=5, output_tokens=25)
    await end(store, "r1", usage=usage, model="big", cost_usd=2.0)  # more than there are events
    shares = await store.reports.spending()
    created = shares[0].created
    head = {"run_id": "r1", "agent": "a", "project": "/p", "created": created}
    assert shares == (
        Spending(**head, model="big", requests=4, cost_usd=1.9, output_tokens=25),
        Spending(**head, model="small", requests=1, cost_usd=0.1, estimated_usd=0.2),
    )
    assert await store.reports.spending(since=created + 1) == ()
    assert await store.reports.spending(projects=["/q"]) == ()
    assert await store.reports.spending(run_ids=["r2"]) == ()


async def test_a_run_under_way_has_spent_what_its_events_tell_and_a_script_nothing(
    store: Store,
) -> None:
    await begin(store, "r1")
    await begin(store, "r2")
    await begin(store, "r3")
    await store.add_events(
        [
            event("r1", 1, "model_request", model="big", cost_usd=0.5),
            event("r2", 1, "queued", scripted=True),
            event("r2", 2, "model_request", model="big", cost_usd=0.5, input_tokens=7),
        ]
    )
    await end(store, "r3", scripted=True)
    found = [
        (each.run_id, each.cost_usd, each.input_tokens, each.scripted)
        for each in await store.reports.spending()
    ]
    assert found == [("r1", 0.5, 0, False), ("r2", 0.0, 7, True), ("r3", 0.0, 0, True)]
