"""What may follow what in a run's life, walked through the store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from orchestrator.domain.result import FINAL, TRANSITIONS, WAITING, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.store.runs import Store

ALL: tuple[RunStatus, ...] = tuple(sorted(TRANSITIONS))

WAY_TO: dict[RunStatus, tuple[RunStatus, ...]] = {
    "pending": (),
    "running": ("running",),
    **{status: ("running", status) for status in (*WAITING, "parent_replied")},
    **{status: ("running", status) for status in FINAL},
}
"""How a run gets where a test wants it."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="me")
    yield opened
    opened.close()


def result(run_id: str, status: RunStatus) -> RunResult:
    return RunResult(run_id=run_id, agent="a", caller="main", status=status, reason="ok")


async def move(store: Store, run_id: str, status: RunStatus) -> bool:
    """A run ends with a result, and becomes anything else by itself."""
    if status in FINAL:
        return await store.finish(result(run_id, status))
    return await store.set_status(run_id, status)


async def run_that_is(store: Store, status: RunStatus) -> str:
    task = Task(agent="a", prompt="p")
    await store.add_run(task)
    for step in WAY_TO[status]:
        assert await move(store, task.run_id, step)
    return task.run_id


@pytest.mark.parametrize(("before", "after"), list(product(ALL, ALL)))
async def test_a_run_goes_where_the_table_leads_and_nowhere_else(
    store: Store, before: RunStatus, after: RunStatus
) -> None:
    run_id = await run_that_is(store, before)
    known = await store.run(run_id)
    moved = await move(store, run_id, after)
    now = await store.run(run_id)
    assert known is not None
    assert now is not None
    assert moved == (after in TRANSITIONS[before])
    if moved:
        assert now.status == after
        assert (now.ended is not None, now.result is not None) == (after in FINAL, after in FINAL)
    else:
        assert now == known


async def test_no_run_ends_without_a_result_nor_gets_one_before_its_end(store: Store) -> None:
    run_id = await run_that_is(store, "running")
    for status in FINAL:
        assert not await store.set_status(run_id, status)
    for status in set(ALL) - FINAL:
        assert not await store.finish(result(run_id, status))
    now = await store.run(run_id)
    assert now is not None
    assert (now.status, now.result, now.ended) == ("running", None, None)


async def test_every_state_can_be_reached_and_only_the_last_ones_lead_nowhere(
    store: Store,
) -> None:
    reached: set[RunStatus] = {"pending"}
    for _ in ALL:
        reached |= {after for before in reached for after in TRANSITIONS[before]}
    assert reached == set(ALL)
    assert {status for status in ALL if not TRANSITIONS[status]} == FINAL


async def test_a_run_that_nobody_knows_goes_nowhere(store: Store) -> None:
    for status in ALL:
        assert not await move(store, "rnobody", status)
