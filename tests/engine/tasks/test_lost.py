"""Runs whose orchestrator has died: they end, truthfully, with all that was kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.owner import Owner
from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import ChangedFile, RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.lost import LOST_MESSAGE, LOST_SILENT, lost_result, settle_lost
from orchestrator.store.runs import RunRecord, Store
from orchestrator.workspace.kept import Handed

RECORD = RunRecord(
    run_id="r1",
    agent="a",
    caller="main",
    status="running",
    reason="",
    owner="dead",
    prompt="p",
    session="side",
    created=1000.0,
    ended=None,
    result=None,
)


def event(seq: int, kind: EventKind, text: str = "", **data: object) -> Event:
    return Event(run_id="r1", seq=seq, at=1000.0 + seq, kind=kind, text=text, data=data)


EVENTS = (
    event(1, "queued", "a for main"),
    event(2, "model_request", input_tokens=10, output_tokens=5, cost_usd=0.25),
    event(3, "text", "first"),
    event(4, "egress_denied", "no", host="evil.example", port=443),
    event(5, "egress_denied", "no", host="evil.example", port=443),
    event(6, "model_request", input_tokens=1, cache_read_tokens=7, cost_usd=0.5),
    event(7, "model_request", "junk", input_tokens="many", cost_usd=None),
    event(8, "text", "half an answer"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "runs.sqlite", owner="dead")
    yield opened
    opened.close()


def test_what_was_said_paid_and_denied_is_in_the_result() -> None:
    assert lost_result(RECORD, EVENTS) == RunResult(
        run_id="r1",
        agent="a",
        caller="main",
        status="failed",
        reason="orchestrator_lost",
        message=LOST_MESSAGE,
        partial_text="half an answer",
        duration_ms=8000,
        cost_usd=0.75,
        family_usd=0.75,
        usage=Usage(
            requests=3, input_tokens=11, output_tokens=5, cache_read_tokens=7, cost_usd=0.75
        ),
        session="side",
        denied_hosts=("evil.example:443",),
        log_tail=(
            *("queued: a for main", "model_request", "text: first"),
            *("egress_denied: no", "egress_denied: no", "model_request"),
            *("model_request: junk", "text: half an answer"),
        ),
    )


def test_a_run_of_which_nothing_is_known_ends_as_well() -> None:
    result = lost_result(RECORD, ())
    assert (result.status, result.reason, result.partial_text) == (
        *("failed", "orchestrator_lost", ""),
    )


def test_what_was_saved_of_its_copy_is_in_the_result() -> None:
    files = (ChangedFile(path="a", change="added"),)
    result = lost_result(RECORD, EVENTS, Handed(at=3600.0, changed_files=files, patch="+x\n"))
    assert (result.changed_files, result.patch) == (files, "+x\n")
    assert result.message.startswith(
        LOST_MESSAGE + ". What it had changed in its copy by 01:00:00 UTC"
    )
    assert "`orchestrator apply r1` applies it" in result.message


async def test_only_runs_of_the_dead_are_ended_and_only_once(store: Store, tmp_path: Path) -> None:
    living = Store(tmp_path / "runs.sqlite", owner="alive")
    for keeper, run_id in ((store, "r1"), (living, "r2"), (store, "r3")):
        await keeper.add_run(Task(agent="a", prompt="p", run_id=run_id))
        await keeper.set_status(run_id, "running")
    done = RunResult(run_id="r3", agent="a", caller="main", status="completed", reason="ok")
    await store.finish(done)
    await store.add_events([e.model_copy(update={"run_id": "r1"}) for e in EVENTS])

    ended = await settle_lost(living, "alive".__eq__)
    assert [result.run_id for result in ended] == ["r1"]
    assert await settle_lost(living, "alive".__eq__) == ()
    records = {record.run_id: record.status for record in await living.find_runs()}
    assert records == {"r1": "failed", "r2": "running", "r3": "completed"}
    living.close()


async def test_the_last_event_says_what_the_store_says(store: Store) -> None:
    await store.add_run(Task(agent="a", prompt="p", run_id="r1"))
    await store.add_events(EVENTS)
    await settle_lost(store, lambda _: False)
    *_, last = await store.events("r1")
    record = await store.run("r1")
    assert record is not None
    assert (last.kind, last.seq, last.text) == ("ended", 9, LOST_MESSAGE)
    assert last.data == {"status": record.status, "reason": record.reason}


async def test_several_that_find_a_lost_run_at_once_end_it_once(
    store: Store, tmp_path: Path
) -> None:
    await store.add_run(Task(agent="a", prompt="p", run_id="r1"))
    others = [Store(tmp_path / "runs.sqlite", owner=f"o{n}") for n in range(4)]
    ended: list[RunResult] = []

    async def settle(other: Store) -> None:
        ended.extend(await settle_lost(other, lambda _: False))

    async with anyio.create_task_group() as tasks:
        for other in others:
            tasks.start_soon(settle, other)
    for other in others:
        other.close()
    assert len(ended) == 1
    assert [event.kind for event in await store.events("r1")] == ["ended"]


def test_an_owner_is_alive_as_long_as_it_holds_its_lock(tmp_path: Path) -> None:
    me = Owner(tmp_path)
    with Owner(tmp_path) as other:
        assert me.alive(other.id)
    assert not me.alive(other.id)


def test_what_it_was_saying_is_its_partial_text_and_silence_is_called_so() -> None:
    heard = Event(run_id="r1", seq=9, at=9.0, kind="saying", text="The fir", data={"begins": True})
    assert lost_result(RECORD, (*EVENTS, heard)).partial_text == "The fir"
    silent = lost_result(RECORD, ())
    assert (silent.message, silent.partial_text) == (LOST_SILENT, "")
