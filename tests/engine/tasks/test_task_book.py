"""Which status a run is shown with, and what a listing chooses by it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import anyio
import pytest

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import FINAL, RunResult, RunStatus
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.news import News
from orchestrator.engine.tasks.task_book import OPEN, TaskBook, named_statuses, shown_status
from orchestrator.errors import CallInvalid, RunRefused
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("pending", "pending"),
        ("running", "running"),
        ("paused", "running"),
        ("waiting_parent_reply", "parent_replied"),
        ("parent_replied", "parent_replied"),
        *((status, status) for status in sorted(FINAL)),
    ],
)
def test_a_run_that_waits_for_nothing_is_shown_at_work(stored: RunStatus, shown: RunStatus) -> None:
    assert shown_status(stored, question=False, approval=False) == shown


@pytest.mark.parametrize("stored", get_args(RunStatus))
def test_what_a_run_waits_for_is_shown_whatever_the_store_says(stored: RunStatus) -> None:
    for question, approval, shown in (
        (True, False, "waiting_parent_reply"),
        (False, True, "paused"),
        (True, True, "waiting_parent_reply"),
    ):
        wanted = stored if stored in FINAL else shown
        assert shown_status(stored, question=question, approval=approval) == wanted


def test_statuses_are_named_in_any_case_and_open_is_all_that_have_not_ended() -> None:
    assert named_statuses(["Failed", "running", "failed"]) == ("failed", "running")
    assert named_statuses(["open", "running"]) == OPEN
    assert named_statuses([]) == ()
    assert set(OPEN) == set(get_args(RunStatus)) - FINAL
    with pytest.raises(CallInvalid, match="there is no status 'done'; there are pending, running"):
        named_statuses(["running", "done"])


# On a store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="me")
    yield opened
    opened.close()


@pytest.fixture
async def book(store: Store) -> TaskBook:
    """top <- ended <- asks and top <- wants, each with its status; alone and over besides."""
    exchanges = Exchanges(store)
    for run_id, parent in (
        *(("top", ""), ("ended", "top"), ("asks", "ended"), ("wants", "top")),
        *(("alone", ""), ("over", "")),
    ):
        task = Task(agent="a", prompt="p", run_id=run_id, parent_run_id=parent)
        await store.add_run(task)
        await store.set_status(run_id, "running")
    for run_id in ("ended", "over"):
        end = RunResult(run_id=run_id, agent="a", caller="main", status="failed", reason="budget")
        await store.finish(end)
    now = time.time()
    until = now + 60
    question = Question(message_id="m", run_id="asks", question="?", asked=now, deadline=until)
    wanted = Approval(call_id="c", run_id="wants", tool="Bash", input={}, asked=now, deadline=until)
    await exchanges.ask(question)
    await exchanges.request(wanted)
    return TaskBook(store, exchanges, News(), lambda _: True)


async def test_a_listing_shows_each_run_as_its_own_view_does(book: TaskBook) -> None:
    shown = {view.run_id: view.status for view in await book.list()}
    assert shown == {
        "top": "waiting_parent_reply",
        "ended": "failed",
        "asks": "waiting_parent_reply",
        "wants": "paused",
        "alone": "running",
        "over": "failed",
    }
    assert shown == {run_id: (await book.view(run_id)).status for run_id in shown}
    assert shown == {run_id: (await book.record(run_id)).status for run_id in shown}


@pytest.mark.parametrize(
    ("statuses", "limit", "found"),
    [
        (("waiting_parent_reply",), 50, ["asks", "top"]),
        (("waiting_parent_reply",), 1, ["asks"]),
        (("running",), 50, ["alone"]),
        (("paused", "failed"), 50, ["over", "wants", "ended"]),
        (("paused", "failed"), 2, ["over", "wants"]),
        (("completed",), 50, []),
        ((), 2, ["over", "alone"]),
    ],
)
async def test_a_listing_chooses_by_the_status_that_it_shows(
    book: TaskBook, statuses: tuple[RunStatus, ...], limit: int, found: list[str]
) -> None:
    chosen = await book.list(statuses=statuses, limit=limit)
    assert [view.run_id for view in chosen] == found


async def test_a_listing_takes_no_query_for_each_run(
    book: TaskBook, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[str] = []
    select = store.database.select

    async def counted(sql: str, *values: object) -> object:
        queries.append(sql)
        return await select(sql, *values)

    monkeypatch.setattr(store.database, "select", counted)
    await book.list(statuses=("paused",))
    assert len(queries) == 2
    await book.list(statuses=(*OPEN, *FINAL))
    assert len(queries) == 2 + 3


# Who may allow a tool call


async def test_only_a_person_allows_what_is_a_persons(book: TaskBook, store: Store) -> None:
    exchanges = Exchanges(store)
    until = time.time() + 60
    for call in ("p1", "p2", "p3"):
        asked = Approval(
            call_id=call, run_id="alone", tool="Bash", deadline=until, approval_by="user"
        )
        assert await exchanges.request(asked)
    mine = Approval(call_id="c1", run_id="alone", tool="Bash", deadline=until)
    assert await exchanges.request(mine)
    for given in ({"approve": ["p1"]}, {"approve": ["c1", "p1"]}, {"approve_all": True}):
        with pytest.raises(RunRefused, match="`orchestrator approve alone p1`"):
            await book.decide("alone", "main", **given)
    undecided = await exchanges.approvals("alone", pending=True)
    assert {each.call_id for each in undecided} == {"p1", "p2", "p3", "c1"}

    assert not (await book.view("alone")).waits_for_a_person
    await book.decide("alone", "main", approve=["c1"])
    assert (await book.view("alone")).waits_for_a_person
    await book.decide("alone", "main", reject=["p1"])  # to refuse is always safe
    await book.decide("alone", "main", approve=["p2"], person=True)  # in a form
    await book.decide("alone", None, approve=["p3"])  # in a terminal
    decided = {each.call_id: each.decision for each in await exchanges.approvals("alone")}
    assert decided == {"c1": "approved", "p1": "rejected", "p2": "approved", "p3": "approved"}


async def test_who_is_patient_waits_on_where_only_a_person_can_decide(
    book: TaskBook, store: Store
) -> None:
    asked = Approval(
        call_id="p1", run_id="alone", tool="Bash", deadline=time.time() + 60, approval_by="user"
    )
    await Exchanges(store).request(asked)
    with anyio.fail_after(10):
        await book.wait(["alone"], None, seconds=3600)
        with anyio.move_on_after(0.2) as waiting:
            await book.wait(["alone"], None, seconds=3600, patient=True)
        assert waiting.cancelled_caught
        await book.wait(["alone", "asks"], None, seconds=3600, patient=True)


async def test_a_question_is_answered_by_the_id_of_a_run_above(book: TaskBook) -> None:
    await book.reply("top", "m", "blue", None)
    assert (await book.view("asks")).questions == ()
