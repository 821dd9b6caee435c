"""Questions, approvals and orders: each answer counts once, and only while somebody waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store

QUESTION = Question(message_id="m1", run_id="r1", question="Which colour?", asked=1, deadline=2)
APPROVAL = Approval(
    call_id="c1", run_id="r1", tool="Bash", input={"command": "ls"}, asked=1, deadline=2
)
DONE = RunResult(run_id="r1", agent="a", caller="main", status="completed", reason="ok")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="me")
    yield opened
    opened.close()


@pytest.fixture
async def exchanges(store: Store) -> Exchanges:
    exchanges = Exchanges(store)
    await store.add_run(Task(agent="a", prompt="p", run_id="r1"))
    await store.set_status("r1", "running")
    return exchanges


async def test_a_question_is_answered_once_and_acknowledged_once(exchanges: Exchanges) -> None:
    await exchanges.ask(QUESTION)
    assert await exchanges.questions(pending=True) == (QUESTION,)
    assert not await exchanges.acknowledge("r1", "m1")
    assert await exchanges.answer("r1", "m1", "blue")
    assert not await exchanges.answer("r1", "m1", "red")
    assert await exchanges.acknowledge("r1", "m1")
    assert not await exchanges.acknowledge("r1", "m1")
    kept = await exchanges.question("r1", "m1")
    assert kept is not None
    assert (kept.answer, kept.status) == ("blue", "acknowledged_by_subagent")
    assert await exchanges.questions(pending=True) == ()
    assert await exchanges.questions("r1") == (kept,)


async def test_of_two_processes_that_answer_at_once_one_is_told_that_it_was_late(
    exchanges: Exchanges, tmp_path: Path
) -> None:
    other_store = Store(tmp_path / "runs.sqlite", owner="other")
    other = Exchanges(other_store)
    took: list[str] = []

    async def answer(who: Exchanges, message_id: str, text: str) -> None:
        if await who.answer("r1", message_id, text):
            took.append(text)

    for number in range(20):
        message_id = f"m{number}"
        await exchanges.ask(QUESTION.model_copy(update={"message_id": message_id}))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, exchanges, message_id, f"here {number}")
            tasks.start_soon(answer, other, message_id, f"there {number}")
    kept = [question.answer for question in await exchanges.questions("r1")]
    other_store.close()
    assert sorted(took) == sorted(filter(None, kept))
    assert len(took) == 20


async def test_nobody_can_answer_decide_or_order_when_the_run_has_ended(
    exchanges: Exchanges, store: Store
) -> None:
    await exchanges.ask(QUESTION)
    assert await exchanges.request(APPROVAL)
    assert await exchanges.order("r1", "say", "hurry")
    assert len(await exchanges.open_orders()) == 1
    await store.finish(DONE)
    assert not await exchanges.answer("r1", "m1", "blue")
    assert not await exchanges.decide("r1", "c1", "approved")
    assert not await exchanges.order("r1", "cancel")
    assert await exchanges.questions(pending=True) == ()
    assert await exchanges.approvals(pending=True) == ()
    assert await exchanges.open_orders() == ()


async def test_a_tool_call_is_decided_once_with_the_input_that_runs_instead(
    exchanges: Exchanges,
) -> None:
    assert await exchanges.request(APPROVAL)
    assert await exchanges.decide("r1", "c1", "approved", new_input={"command": "ls -l"})
    assert not await exchanges.decide("r1", "c1", "rejected", message="no")
    decided = APPROVAL.model_copy(
        update={"decision": "approved", "new_input": {"command": "ls -l"}}
    )
    assert await exchanges.approval("r1", "c1") == decided
    assert await exchanges.approvals(pending=True) == ()


async def test_a_call_that_was_asked_about_cannot_be_exchanged_for_another(
    exchanges: Exchanges,
) -> None:
    other = APPROVAL.model_copy(update={"input": {"command": "rm -rf /"}})
    assert await exchanges.request(APPROVAL)
    assert not await exchanges.request(other)
    assert await exchanges.approval("r1", "c1") == APPROVAL
    await exchanges.decide("r1", "c1", "approved")
    assert not await exchanges.request(other)


async def test_an_order_is_taken_once_and_orders_come_in_their_order(
    exchanges: Exchanges,
) -> None:
    for text in ("one", "two", "three"):
        await exchanges.order("r1", "say", text)
    orders = await exchanges.open_orders()
    assert [order.text for order in orders] == ["one", "two", "three"]
    assert await exchanges.take(orders[0].order_id)
    assert not await exchanges.take(orders[0].order_id)
    assert [order.text for order in await exchanges.open_orders()] == ["two", "three"]
    assert not await exchanges.order("rnobody", "cancel")
