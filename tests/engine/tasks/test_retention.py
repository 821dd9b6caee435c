"""What is kept of runs, and for how long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.events import Event
from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.retention import Keep, Pruned, Retention, kept_tidy
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import _SIZED, Store
from orchestrator.store.schema import RUN_TABLES

DAY = 86400.0


class Kept:
    """A state directory with runs that ended so many days ago."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / "runs.sqlite", owner="me")
        self.exchanges = Exchanges(self.store)
        self.changes = folder / "changes"
        policy = MountPolicy(roots=(folder,), home=Path("/nowhere"))
        self.copies = Copies(self.changes, policy)
        self.retention = Retention(self.store, self.copies)

    async def run(
        self,
        run_id: str,
        days_ago: float | None,
        *,
        after: tuple[str, ...] = (),
        agent: str = "a",
    ) -> None:
        """With an event, a question, an approval, an order and a changed file; None: it goes on."""
        await self.store.add_run(Task(agent=agent, prompt="p", run_id=run_id, after=after))
        await self.store.set_status(run_id, "running")
        event = Event(run_id=run_id, seq=1, at=1, kind="text", text="x" * 1000)
        await self.store.add_events([event])
        await self.exchanges.ask(Question(message_id=f"m{run_id}", run_id=run_id, question="?"))
        await self.exchanges.request(Approval(call_id="c", run_id=run_id, tool="Bash"))
        await self.exchanges.order(run_id, "say", "hello")
        (self.changes / run_id).mkdir(parents=True)
        (self.changes / run_id / "file").write_text("y" * 10_000)
        if days_ago is not None:
            done = RunResult(
                run_id=run_id, agent="a", caller="main", status="completed", reason="ok"
            )
            await self.store.finish(done)
            ended = time.time() - days_ago * DAY
            await self.store.database.write(
                "UPDATE runs SET ended = ? WHERE run_id = ?", ended, run_id
            )

    async def left(self) -> set[str]:
        """The runs of which anything is left; all of it, or a test fails."""
        found = []
        for table in RUN_TABLES:
            rows = await self.store.database.select(f"SELECT run_id FROM {table}")
            found.append({row[0] for row in rows})
        found.append({folder.name for folder in self.changes.iterdir()})
        assert all(each == found[0] for each in found), found
        return found[0]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    yield kept
    kept.store.close()


async def test_what_ended_too_long_ago_is_removed_with_all_that_belongs_to_it(kept: Kept) -> None:
    for run_id, days in (("r1", 100), ("r2", 91), ("r3", 89), ("r4", 0)):
        await kept.run(run_id, days)
    pruned = await kept.retention.prune(Keep(days=90))
    assert pruned.run_ids == ("r1", "r2")
    assert pruned.freed_bytes > 20_000
    assert await kept.left() == {"r3", "r4"}
    assert await kept.retention.prune(Keep(days=90)) == Pruned()


async def test_a_run_that_has_not_ended_stays_whatever_is_asked(kept: Kept) -> None:
    await kept.run("r1", None)
    await kept.store.database.write("UPDATE runs SET created = 0")
    for keep in (Keep(days=0), Keep(count=0), Keep(total_bytes=0)):
        assert await kept.retention.prune(keep) == Pruned()
    assert await kept.left() == {"r1"}


async def test_a_run_that_waits_without_an_orchestrator_stays_as_long_as_runs_are_kept(
    kept: Kept,
) -> None:
    await kept.run("r1", None)
    await kept.store.suspend(["r1"], "me", "killed")
    await kept.retention.prune(Keep(days=90))
    record = await kept.store.run("r1")
    assert record is not None
    assert (record.suspended is not None, record.ended) == (True, None)
    await kept.store.database.write("UPDATE runs SET suspended = suspended - ?", 91 * DAY)
    await kept.retention.prune(Keep(days=90), dry_run=True)
    await kept.retention.prune(Keep(days=90))
    record = await kept.store.run("r1")
    assert record is not None
    assert (record.reason, record.suspended) == ("orchestrator_lost", None)


async def test_a_run_that_another_one_is_to_follow_stays(kept: Kept) -> None:
    await kept.run("r1", 100)
    await kept.run("r2", 100)
    await kept.run("r3", None, after=("r1",))
    assert (await kept.retention.prune(Keep(days=90))).run_ids == ("r2",)
    assert await kept.left() == {"r1", "r3"}


async def test_of_too_many_the_oldest_go(kept: Kept) -> None:
    for run_id, days in (("r1", 1), ("r2", 3), ("r3", 2)):
        await kept.run(run_id, days)
    assert (await kept.retention.prune(Keep(count=1))).run_ids == ("r2", "r3")
    assert await kept.left() == {"r1"}


async def test_of_too_much_the_oldest_go_until_the_rest_fits(kept: Kept) -> None:
    for run_id, days in (("r1", 1), ("r2", 3), ("r3", 2)):
        await kept.run(run_id, days)
    assert await kept.retention.prune(Keep(total_bytes=1_000_000)) == Pruned()
    assert (await kept.retention.prune(Keep(total_bytes=30_000))).run_ids == ("r2",)
    assert await kept.left() == {"r1", "r3"}


async def test_of_too_much_the_runs_of_the_agent_go_that_takes_most(kept: Kept) -> None:
    for run_id, days, agent in (("r1", 9, "a"), ("r2", 8, "b"), ("r3", 7, "c")):
        await kept.run(run_id, days, agent=agent)
    for run_id, days in (("r4", 3), ("r5", 2), ("r6", 1)):
        await kept.run(run_id, days, agent="hog")
    assert (await kept.retention.prune(Keep(total_bytes=50_000))).run_ids == ("r4", "r5")
    assert await kept.left() == {"r1", "r2", "r3", "r6"}


async def test_what_is_asked_and_said_counts_in_bytes(kept: Kept) -> None:
    for run_id in ("r1", "r2", "r3", "r4"):
        await kept.run(run_id, None)
    long = "\N{GRINNING FACE}" * 20_000
    asked = Question(message_id="m", run_id="r1", question=long, default_answer=long)
    await kept.exchanges.ask(asked)
    await kept.exchanges.answer("r1", "m", long)
    await kept.exchanges.request(Approval(call_id="d", run_id="r2", tool="Bash"))
    await kept.exchanges.decide("r2", "d", "rejected", message=long)
    await kept.exchanges.order("r3", "say", long)
    for run_id in ("r1", "r2", "r3", "r4"):
        done = RunResult(run_id=run_id, agent="a", caller="main", status="completed", reason="ok")
        await kept.store.finish(done)
    sizes = {run.run_id: run.size_bytes for run in await kept.store.removable()}
    usual = sizes.pop("r4")
    assert [round((size - usual) / 80_000, 1) for size in sizes.values()] == [3.0, 1.0, 1.0]


def test_every_table_of_a_run_is_counted() -> None:
    assert set(_SIZED) == set(RUN_TABLES)


async def test_a_dry_run_removes_nothing(kept: Kept) -> None:
    await kept.run("r1", 5)
    assert (await kept.retention.prune(Keep(days=1), dry_run=True)).run_ids == ("r1",)
    assert await kept.left() == {"r1"}


async def test_the_room_is_given_back_to_the_disk(kept: Kept) -> None:
    await kept.run("r1", 5)
    big = [Event(run_id="r1", seq=n, at=1, kind="text", text="x" * 2000) for n in range(2, 1000)]
    await kept.store.add_events(big)
    await kept.retention.compact()
    before = (kept.folder / "runs.sqlite").stat().st_size
    await kept.retention.prune(Keep(days=1))
    await kept.retention.compact()
    assert (kept.folder / "runs.sqlite").stat().st_size < before / 2


async def test_old_runs_go_in_the_background_and_not_at_every_start(kept: Kept) -> None:
    opened = 0

    @contextmanager
    def open_retention() -> Iterator[Retention]:
        nonlocal opened
        opened += 1
        yield kept.retention

    mark = kept.folder / "pruned"
    await kept.run("r1", 100)
    with anyio.fail_after(30):
        async with kept_tidy(open_retention, Keep(days=90), mark):
            while await kept.store.find_runs():
                await anyio.lowlevel.checkpoint()
        async with kept_tidy(open_retention, Keep(days=90), mark):
            await anyio.lowlevel.checkpoint()
        assert opened == 1

        await kept.run("r2", 100)
        os.utime(mark, (0, 0))
        async with kept_tidy(open_retention, Keep(days=90), mark):
            while await kept.store.find_runs():
                await anyio.lowlevel.checkpoint()
    assert opened == 2
