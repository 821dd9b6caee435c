"""What a run was told before its orchestrator was killed, and when that counts again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.task import Task
from orchestrator.engine.earlier import TAKEN_UP, Earlier, read_earlier
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

RM: dict[str, object] = {"command": "rm x"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="dead")
    yield opened
    opened.close()


async def waiting_run(store: Store, **call: object) -> tuple[Exchanges, Approval]:
    """A run that has asked about a colour, and wants to remove something."""
    exchanges = Exchanges(store)
    await store.add_run(Task(agent="a", prompt="p", run_id="r1", project="/p"))
    await store.set_status("r1", "running")
    await exchanges.ask(Question(message_id="m1", run_id="r1", question="Colour?", deadline=9e9))
    fields = {"call_id": "c1", "run_id": "r1", "tool": "Bash", "input": RM, **call}
    approval = Approval.model_validate(fields)
    await exchanges.request(approval)
    return exchanges, approval


async def test_each_word_counts_once_and_only_for_the_very_same_thing(store: Store) -> None:
    exchanges, _ = await waiting_run(store)
    await exchanges.answer("r1", "m1", "blue", whom="main")
    await exchanges.decide("r1", "c1", "approved", whom="main")
    earlier = await read_earlier(store, exchanges, "r1")
    assert earlier.answer("a", "Colour") is None
    assert earlier.answer("b", "Colour?") is None
    known = earlier.answer("a", "Colour?")
    assert known is not None
    assert known.answer == "blue"
    assert earlier.answer("a", "Colour?") is None
    assert earlier.decision("a", "Bash", {"command": "rm y"}, "parent") is None
    assert earlier.decision("a", "Write", RM, "parent") is None
    assert earlier.decision("a", "Bash", RM, "parent") is not None
    assert earlier.decision("a", "Bash", RM, "parent") is None


async def test_an_approval_that_the_agent_has_had_does_not_count_again(store: Store) -> None:
    exchanges, _ = await waiting_run(store)
    await exchanges.decide("r1", "c1", "approved", whom="main")
    assert await exchanges.tell("r1", "c1")
    assert not await exchanges.tell("r1", "c1")
    earlier = await read_earlier(store, exchanges, "r1")
    assert earlier.decision("a", "Bash", RM, "parent") is None
    assert "doing it again needs a new approval" in earlier.context("")


async def test_a_callers_approval_does_not_count_where_a_persons_is_wanted(store: Store) -> None:
    exchanges, _ = await waiting_run(store)
    await exchanges.decide("r1", "c1", "approved", whom="main")
    earlier = await read_earlier(store, exchanges, "r1")
    assert earlier.decision("a", "Bash", RM, "user") is None
    assert earlier.decision("a", "Bash", RM, "parent") is not None


async def test_a_rejection_counts_again_and_a_timeout_does_not(store: Store) -> None:
    exchanges, approval = await waiting_run(store)
    await exchanges.decide("r1", "c1", "rejected", message="no", whom="main")
    await exchanges.request(approval.model_copy(update={"call_id": "c2", "tool": "Write"}))
    await exchanges.decide("r1", "c2", "timed_out")
    await exchanges.tell("r1", "c1")
    earlier = await read_earlier(store, exchanges, "r1")
    assert earlier.decision("a", "Write", RM, "user") is None
    assert earlier.decision("a", "Bash", RM, "user") is not None


async def test_what_is_told_again_holds_the_task_and_every_word(store: Store) -> None:
    exchanges, _ = await waiting_run(store)
    await exchanges.answer("r1", "m1", "blue", whom="main")
    await exchanges.decide("r1", "c1", "approved", whom="main")
    earlier = await read_earlier(store, exchanges, "r1")
    assert earlier.context("what the caller wrote") == (
        f"what the caller wrote\n\n{TAKEN_UP}\n\nYou asked:\nColour?\nThe answer was:\nblue\n\n"
        'You wanted to use Bash:\n{"command": "rm x"}\nThat was approved. You may do it now.'
    )
    assert Earlier().context("") == TAKEN_UP


async def test_a_suspended_run_is_taken_up_by_one_process(store: Store, tmp_path: Path) -> None:
    await waiting_run(store)
    mine, other = (Store(tmp_path / "runs.sqlite", owner=name) for name in ("mine", "other"))
    stale = await other.run("r1")
    assert await settle_lost(mine, "mine".__eq__) == ()
    (run,) = await mine.suspended("/p")
    assert await mine.suspended("/q") == ()
    (question,) = await Exchanges(mine).questions("r1", pending=True)
    assert question.deadline == 0
    assert await mine.take_up(run, "why")
    assert not await other.take_up(run, "why")
    record = await mine.run("r1")
    assert record is not None
    assert (record.owner, record.status, record.suspended) == ("mine", "pending", None)
    assert stale is not None
    assert not await other.suspend(["r1"], stale.owner, "why")
    assert [event.seq for event in await mine.events("r1")] == [1]
    mine.close()
    other.close()
