"""Decisions in the store: written before the act, found again, removed like runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.domain.audit import AuditEntry
from orchestrator.domain.task import Task
from orchestrator.engine.record import MAX_DECISIONS, Record
from orchestrator.errors import StoreFailed
from orchestrator.store.audit import MAX_WHY, AuditQuery, OnceEach
from orchestrator.store.runs import Store

TASK = Task(agent="a", prompt="p", project="/p", window="w", run_id="r1")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs.sqlite")


async def test_a_run_that_may_be_is_a_row_with_the_run(store: Store) -> None:
    await store.add_run(TASK)
    (entry,) = await store.audit.find(AuditQuery())
    assert entry.model_dump(exclude={"at", "number"}) == {
        "project": "/p",
        "who": "main",
        "window": "w",
        "act": "run",
        "subject": "a",
        "run_id": "r1",
        "allowed": True,
        "why": "",
    }
    with pytest.raises(StoreFailed):
        await store.add_run(TASK)
    assert len(await store.audit.find(AuditQuery())) == 1, "no row without its run"


async def test_filters_and_order(store: Store) -> None:
    for number, act in enumerate(("host", "secret", "host", "approve")):
        entry = AuditEntry(
            project=f"/p{number % 2}",
            who="agent a" if number else "main",
            act=act,
            run_id=f"r{number}",
            allowed=number != 2,
            at=1000.0 + number,
        )
        await store.audit.note(entry)
    find = store.audit.find

    async def runs(query: AuditQuery, after: int = 0, limit: int = 50) -> list[str]:
        return [each.run_id for each in await find(query, after=after, limit=limit)]

    assert await runs(AuditQuery()) == ["r0", "r1", "r2", "r3"]
    assert await runs(AuditQuery(), limit=2) == ["r2", "r3"]
    assert await runs(AuditQuery(), after=3) == ["r3"]
    assert await runs(AuditQuery(projects=("/p0",))) == ["r0", "r2"]
    assert await runs(AuditQuery(projects=())) == []
    assert await runs(AuditQuery(who="agent a")) == ["r1", "r2", "r3"]
    assert await runs(AuditQuery(act="host")) == ["r0", "r2"]
    assert await runs(AuditQuery(run_id="r1")) == ["r1"]
    assert await runs(AuditQuery(allowed=False)) == ["r2"]
    assert await runs(AuditQuery(since=1002.0)) == ["r2", "r3"]


async def test_old_decisions_go_and_the_last_ones_stay(store: Store) -> None:
    for number in range(10):
        await store.audit.note(
            AuditEntry(who="main", act="run", allowed=True, at=float(number + 1))
        )
    assert await store.audit.remove_before(4.0) == 3
    assert await store.audit.keep_last(5) == 2
    assert [entry.at for entry in await store.audit.find(AuditQuery())] == [6, 7, 8, 9, 10]


async def test_an_agents_decision_is_one_row_for_each_thing_and_bounded(store: Store) -> None:
    record = Record("r1", store, secrets=("sk-very-secret",), task=TASK)
    for _ in range(3):
        await record.decided("host", "example.org:443", allowed=True, why="*.org")
    await record.decided("host", "example.org:443", allowed=False, why="x sk-very-secret" * 100)
    first, second = await store.audit.find(AuditQuery(run_id="r1"))
    assert (first.who, first.subject, first.allowed, first.why) == (
        *("agent a", "example.org:443", True, "*.org"),
    )
    assert "sk-very" not in second.why
    assert len(second.why) <= MAX_WHY
    for number in range(MAX_DECISIONS + 5):
        await record.decided("host", f"h{number}:80", allowed=True)
    found = await store.audit.find(AuditQuery(allowed=True), limit=9999)
    assert len(found) == MAX_DECISIONS + 1
    assert found[-1].why == f"after {MAX_DECISIONS} of them, no more are written down"
    await record.decided("secret", "token for example.org", allowed=True)
    assert (await store.audit.find(AuditQuery(act="secret")))[0].subject == "token for example.org"


async def test_what_is_refused_again_and_again_is_one_row_that_says_how_often(store: Store) -> None:
    record = Record("r1", store, task=TASK)
    for _ in range(100):
        await record.decided("tool", "it/drop", allowed=False, why="DENIED_BY_POLICY: deny: drop")
    (row,) = await store.audit.find(AuditQuery(run_id="r1"))
    assert row.why == "DENIED_BY_POLICY: deny: drop (at least 64 times)"
    few = OnceEach(store.audit, 3)
    for number in range(40):
        entry = AuditEntry(
            who="ci", act="gateway", subject=f"s{number}", allowed=False, why="w" * 600
        )
        await few.note(entry)
    rows = await store.audit.find(AuditQuery(who="ci"), limit=99)
    assert [row.subject for row in rows] == ["s0", "s1", "s2", "(more)"]
    assert rows[-1].why == "after 3 of them, no more are written down (at least 32 times)"
    await few.note(AuditEntry(who="other", act="gateway", subject="s0", allowed=False))
    await few.note(AuditEntry(who="ci", act="gateway", subject="s0", allowed=False, why="w"))
    rows = await store.audit.find(AuditQuery(act="gateway"), limit=99)
    assert [(row.who, row.subject) for row in rows][-2:] == [("ci", "(more)"), ("other", "s0")]
    assert rows[0].why.endswith("w (at least 2 times)")  # though what is told of it is cut
    soon = OnceEach(store.audit, 3, seconds=-1)
    for _ in range(2):
        await soon.note(AuditEntry(who="later", act="gateway", subject="s", allowed=False))
    assert len(await store.audit.find(AuditQuery(who="later"))) == 2


async def test_what_cannot_be_written_is_not_let(store: Store) -> None:
    record = Record("r1", store, task=TASK)
    store.close()
    for _ in range(2):
        with pytest.raises(StoreFailed):
            await record.decided("host", "example.org:443", allowed=True)


async def test_an_act_of_a_newer_orchestrator_can_be_read(store: Store) -> None:
    await store.audit.note(AuditEntry(who="main", act="run", allowed=True, at=time.time()))
    await store.database.write("UPDATE audit SET act = 'fly', why = 'wings'")
    (entry,) = await store.audit.find(AuditQuery())
    assert (entry.act, entry.why) == ("run", "fly: wings")
