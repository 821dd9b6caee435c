"""The feed of events: what it costs to look, and that nobody misses what is theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.engine.tasks import event_feed
from orchestrator.engine.tasks.event_feed import EventFeed, Follower
from orchestrator.store.numbered_events import Kinship
from orchestrator.store.runs import Store

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", "a test")
    yield opened
    opened.close()


async def happens(store: Store, project: str, caller: str = "main", parent: str = "") -> str:
    """A run with one event; its id."""
    task = Task(agent="a", prompt="p", project=project, caller=caller, parent_run_id=parent)
    await store.add_run(task)
    await store.add_events([Event(run_id=task.run_id, seq=1, at=1.0, kind="text", text="said")])
    return task.run_id


async def test_events_of_a_project_are_read_along_their_numbers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, asked = store.numbered_events, list[tuple[str, tuple[object, ...]]]()
    select = line._select

    async def noted(sql: str, *values: object) -> object:
        asked.append((sql, values))
        return await select(sql, *values)

    monkeypatch.setattr(line, "_select", noted)
    await happens(store, "/p")
    assert await line.oldest("/p") == 1
    assert [event.number for event in await line.of_project("/p", 0, 10)] == [1]
    assert len(asked) == 2
    for sql, values in asked:
        plan = [row["detail"] for row in await select(f"EXPLAIN QUERY PLAN {sql}", *values)]
        assert "events" in plan[0], plan
        assert not any("TEMP B-TREE" in step for step in plan), plan


async def test_events_of_other_projects_are_passed_over_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = EventFeed(store, "/p")
    follower, begins = Follower(), list[int]()
    of_project = feed.line.of_project

    async def noted(project: str, after: int, limit: int) -> object:
        begins.append(after)
        return await of_project(project, after, limit)

    monkeypatch.setattr(feed.line, "of_project", noted)
    with feed.following(follower):
        await feed.join(follower)
        for _ in range(3):
            await happens(store, "/elsewhere")
        assert not await feed._round()
        assert not await feed._round()
        mine = await happens(store, "/p")
        assert await feed._round()
    assert begins == [0, 3]
    assert [event.run_id for event in follower.take()] == [mine]


async def test_whose_runs_are_is_not_forgotten_while_another_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "MAX_KIN", 1)
    feed = EventFeed(store, "/p")
    mine = await happens(store, "/p", "mine")
    above = await happens(store, "/p", "main")
    below = await happens(store, "/p", "a", above)
    others = [await happens(store, "/p", "other") for _ in range(3)]
    await feed.audience([mine])
    kinship, told = feed.line.kinship, anyio.Event()

    async def slow(run_ids: Iterable[str]) -> dict[str, Kinship]:
        wanted = list(run_ids)
        found = await kinship(wanted)
        if below in wanted:
            for run_id in others:  # meanwhile other readers ask, and more is known than may be
                await feed.audience([run_id])
            told.set()
        return found

    monkeypatch.setattr(feed.line, "kinship", slow)
    seen_by = await feed.audience([mine, below])
    assert told.is_set()
    assert seen_by == {mine: {"mine"}, below: {"a", "main"}}
    kin = feed.kin(below)
    assert kin is not None
    assert kin.parent == above
    assert len(feed._kin) <= 4
