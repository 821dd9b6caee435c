"""How many runs may be under way at once, over all processes, and in which order they begin."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.store.runs import Caps, Store

TWO = Caps(runs=2, runs_per_agent=2)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two processes of one state directory."""
    opened = [Store(tmp_path / "runs.sqlite", owner) for owner in ("one", "other")]
    yield opened[0], opened[1]
    for store in opened:
        store.close()


async def add(store: Store, run_id: str, *, line: bool = True, **fields: object) -> str:
    task = {"agent": "a", "prompt": "p", "project": "/p", **fields, "run_id": run_id}
    await store.add_run(Task.model_validate(task))
    if line:
        await store.stand_in_line(run_id)
    return run_id


async def end(store: Store, run_id: str) -> None:
    result = RunResult(
        run_id=run_id, agent="a", caller="main", status="failed", reason="cli_crashed", message="m"
    )
    assert await store.finish(result)


async def test_a_cap_holds_over_all_processes(stores: tuple[Store, Store]) -> None:
    one, other = stores
    for store, run_id in ((one, "r1"), (other, "r2"), (one, "r3"), (other, "r4")):
        await add(store, run_id)
    assert await one.begin("r1", TWO)
    assert await other.begin("r2", TWO)
    assert not await one.begin("r3", TWO)
    await end(other, "r2")
    assert not await other.begin("r4", TWO), "r3 stands before it"
    assert await one.begin("r3", TWO)
    assert not await other.begin("r4", TWO)
    record = await one.run("r3")
    assert record is not None
    assert record.status == "running"


async def test_a_run_that_has_no_place_in_the_line_goes_behind_it(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores
    await add(one, "r1")
    await add(other, "r2", line=False)
    assert not await other.begin("r2", Caps(runs=1))
    assert await one.begin("r1", Caps(runs=1))


async def test_one_begins_once(stores: tuple[Store, Store]) -> None:
    one, other = stores
    await add(one, "r1")
    assert await one.begin("r1", TWO)
    assert not await other.begin("r1", TWO)


async def test_runs_of_the_dead_hold_no_slot_and_no_place(stores: tuple[Store, Store]) -> None:
    one, other = stores
    await add(one, "r1")
    assert await one.begin("r1", Caps(runs=1))
    await add(one, "r2")
    await add(other, "r3")
    assert not await other.begin("r3", Caps(runs=1))
    assert not await other.slot_is_free("r3", Caps(runs=1))
    assert await other.slot_is_free("r3", Caps(runs=1), ["one"])
    assert await other.begin("r3", Caps(runs=1), ["one"])
    assert await other.owners() == {"one", "other"}


async def test_an_agent_that_is_full_holds_up_nobody_else(stores: tuple[Store, Store]) -> None:
    one, other = stores
    caps = Caps(runs=3, runs_per_agent=1)
    await add(one, "r1", agent="busy")
    assert await one.begin("r1", caps)
    await add(one, "r2", agent="busy")
    await add(other, "r3", agent="idle")
    assert not await one.begin("r2", caps)
    assert await other.begin("r3", caps)
    # The same name in another project is another agent.
    await add(other, "r4", agent="busy", project="/elsewhere")
    assert await other.begin("r4", caps)


async def test_a_run_that_waits_holds_a_slot_of_its_own_project_and_of_no_other(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores
    for run_id in ("r1", "r2"):
        await add(one, run_id)
        assert await one.begin(run_id, TWO)
    await add(one, "r3")
    await add(other, "r4", project="/elsewhere")
    assert not await other.begin("r4", TWO)
    assert await one.set_status("r1", "paused")
    assert not await one.begin("r3", TWO), "its project has two"
    assert await other.begin("r4", TWO), "r3 stands before it, and cannot begin"
    await add(other, "r5", project="/elsewhere")
    assert not await other.begin("r5", TWO), "r2 is at work, and so is r4"
    assert await one.set_status("r2", "waiting_parent_reply")
    assert await other.begin("r5", TWO)
    assert await one.set_status("r1", "running")
    await end(other, "r5")
    await add(other, "r6", project="/elsewhere")
    assert not await other.begin("r6", TWO), "r1 has gone on"


async def test_a_run_waits_while_the_last_of_those_that_work_for_it_does(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores
    caps = Caps(runs=1, runs_per_agent=1)
    for depth in range(3):
        above = f"r{depth - 1}" if depth else ""
        await add(one, f"r{depth}", depth=depth, parent_run_id=above)
        assert await one.begin(f"r{depth}", caps)
    await add(other, "r4", project="/elsewhere")
    assert not await other.begin("r4", caps)
    assert await one.set_status("r2", "paused")
    assert await other.begin("r4", caps)


async def test_errands_have_slots_of_their_own_at_each_depth(stores: tuple[Store, Store]) -> None:
    one, _ = stores
    caps = Caps(runs=1, runs_per_agent=1)
    for depth in range(3):
        await add(one, f"r{depth}", depth=depth)
        assert await one.begin(f"r{depth}", caps)
    await add(one, "r4", depth=1)
    assert not await one.begin("r4", caps)


async def test_a_free_slot_can_be_taken_past_the_line(stores: tuple[Store, Store]) -> None:
    one, other = stores
    await add(one, "r1")
    await add(other, "r2")
    assert await other.slot_is_free("r2", TWO)
    assert not await other.begin("r2", TWO)
    assert await other.begin("r2", TWO, in_line=False)
    full = Caps(runs=1)
    assert not await one.begin("r1", full, in_line=False)


async def test_a_run_that_ended_while_it_waited_begins_no_more(
    stores: tuple[Store, Store],
) -> None:
    one, other = stores
    await add(one, "r1")
    await add(other, "r2")
    await end(one, "r1")
    assert not await one.begin("r1", Caps(runs=1))
    assert await other.begin("r2", Caps(runs=1))


@pytest.mark.parametrize("seed", range(5))
async def test_whatever_happens_the_cap_holds_and_the_first_begins(
    stores: tuple[Store, Store], seed: int
) -> None:
    chance = random.Random(seed)
    caps = Caps(runs=3, runs_per_agent=3)
    line: list[tuple[Store, str]] = []
    under_way: list[tuple[Store, str]] = []
    begun: list[str] = []
    for number in range(60):
        store = chance.choice(stores)
        line.append((store, await add(store, f"r{number}")))
        for _ in range(chance.randrange(3)):
            if under_way:
                ended = under_way.pop(chance.randrange(len(under_way)))
                await end(*ended)
        for each in chance.sample(line, len(line)):
            if await each[0].begin(each[1], caps):
                assert each == line[0]
                line.remove(each)
                under_way.append(each)
                begun.append(each[1])
        assert len(under_way) <= 3
    assert len(begun) > 20
    assert begun == [f"r{number}" for number in range(len(begun))]
