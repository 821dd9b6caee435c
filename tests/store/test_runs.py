"""What is kept of a run, and what is kept out of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.record import LOOKED_AT, MAX_DATA, MAX_TEXT, Record
from orchestrator.errors import StoreFailed
from orchestrator.store.runs import Store
from orchestrator.store.session_rows import SessionKey, SessionRows


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state" / "runs.sqlite", owner="me")
    yield opened
    opened.close()


async def test_a_run_is_found_again_with_its_result(store: Store) -> None:
    task = Task(agent="a", prompt="p")
    await store.add_run(task)
    pending = await store.run(task.run_id)
    await store.set_status(task.run_id, "running")
    running = await store.run(task.run_id)
    result = RunResult(
        run_id=task.run_id, agent="a", caller="main", status="completed", reason="ok", result=[1]
    )
    await store.finish(result)
    ended = await store.run(task.run_id)

    assert pending is not None
    assert running is not None
    assert ended is not None
    assert (pending.status, running.status, ended.status) == ("pending", "running", "completed")
    assert (ended.result, ended.prompt, ended.reason) == (result, "p", "ok")
    assert await store.run("nobody") is None


async def test_runs_are_listed_newest_first(store: Store) -> None:
    tasks = [Task(agent=f"a{n}", prompt="p") for n in range(5)]
    for task in tasks:
        await store.add_run(task)

    listed = await store.find_runs(limit=3)
    assert [run.agent for run in listed] == ["a4", "a3", "a2"]


async def test_two_processes_share_one_store(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "state" / "runs.sqlite")
    task = Task(agent="a", prompt="p")
    await store.add_run(task)
    assert await other.run(task.run_id) is not None
    other.close()


def test_only_its_owner_can_read_the_store(store: Store, tmp_path: Path) -> None:
    assert (tmp_path / "state" / "runs.sqlite").stat().st_mode & 0o777 == 0o600


async def test_events_are_numbered_kept_and_told(store: Store) -> None:
    told: list[Event] = []
    record = Record("r1", store, [told.append])
    record.note("queued", "first")
    record.note("tool_call", "Bash ls", tool="Bash", input={"command": "ls"})
    await record.flush()
    record.note("ended", "last")
    await record.flush()
    assert [event.kind for event in told] == ["queued", "tool_call"], "not before it is kept"
    record.tell_end()

    events = await store.events("r1")
    assert list(events) == told
    assert [(e.seq, e.kind, e.text) for e in events] == [
        (1, "queued", "first"),
        (2, "tool_call", "Bash ls"),
        (3, "ended", "last"),
    ]
    assert events[1].data == {"tool": "Bash", "input": {"command": "ls"}}
    assert await store.events("r1", after=2) == (events[2],)
    assert await store.events("r1", limit=2) == events[:2]
    assert await store.events("r1", limit=2, last=True) == events[1:]


async def test_secrets_and_floods_are_kept_out(store: Store) -> None:
    record = Record("r1", store, secrets=("sk-very-secret", "no"))
    record.note("text", "the key is sk-very-secret, no? " + "x" * 100_000)
    record.note("tool_call", "t", input={"a": ["sk-very-secret"] * 500, "b": {"c": "x" * 10_000}})
    await record.flush()

    first, second = await store.events("r1")
    assert first.text.startswith("the key is [secret], no? ")
    assert len(first.text) == MAX_TEXT
    assert "sk-very-secret" not in second.model_dump_json()
    assert len(second.model_dump_json()) < 20_000
    assert "sk-very-secret" not in "".join(record.tail)


async def test_what_is_left_out_of_an_event_is_said_to_be(store: Store) -> None:
    record = Record("r1", store)
    record.note("approval_asked", "?", input={"ids": list(range(101)), **dict.fromkeys("ab", 1)})
    record.note("approval_asked", "?", input={str(n): n for n in range(103)})
    await record.flush()
    first, second = [event.data["input"] for event in await store.events("r1")]
    assert isinstance(first, dict)
    assert first["ids"] == [*range(100), "… and 1 more"]
    assert isinstance(second, dict)
    assert (len(second), second["…"]) == (101, "… and 3 more")


async def test_somebody_who_cannot_be_told_any_more_is_no_fault_of_the_run(store: Store) -> None:
    def gone(_: object) -> None:
        raise BrokenPipeError

    heard: list[str] = []
    record = Record("r1", store, (gone, lambda event: heard.append(event.text)))
    record.note("text", "one")
    assert heard == ["one"]


async def test_warnings_are_collected_for_the_result_each_once(store: Store) -> None:
    record = Record("r1", store, secrets=("sk-very-secret",))
    for _ in range(3):
        record.note("warning", "left out: sk-very-secret")
    record.note("warning", "and more")
    assert record.warnings == ("left out: [secret]", "and more")


async def test_a_secret_is_not_shown_where_a_long_text_is_cut(store: Store) -> None:
    secret = "sk-" + random.Random(1).randbytes(150).hex()
    record = Record("r1", store, secrets=(secret,))
    for at in range(LOOKED_AT * MAX_TEXT - 320, LOOKED_AT * MAX_TEXT + 5, 7):
        # All before it is other secrets, which take little room once they are gone.
        filler = (secret + "|") * (at // (len(secret) + 1))
        record.note("text", filler + "-" * (at - len(filler)) + secret + "x" * 1_000)
    await record.flush()
    shown = [event.text for event in await store.events("r1")]
    assert len(shown) == 47
    parts = [secret[at : at + 8] for at in range(len(secret) - 7)]
    assert not [part for part in parts if any(part in text for text in shown)]


async def test_what_another_version_wrote_can_be_read(store: Store) -> None:
    task = Task(agent="a", prompt="p", run_id="r1")
    await store.add_run(task)
    result = RunResult(run_id="r1", agent="a", caller="main", status="failed", reason="machinery")
    await store.finish(result, ())
    written = result.model_dump(mode="json") | {"novelty": 1, "reason": "something_new"}
    await store.database.write(
        "UPDATE runs SET result = ? WHERE run_id = 'r1'", json.dumps(written)
    )
    values = "1, 'r1', 1, 0.0, 'novel', 'a thing', '{}'"
    await store.database.write(f"INSERT INTO events VALUES ({values})")
    record = await store.run("r1")
    assert record is not None
    assert record.result == result
    (event,) = await store.events("r1")
    assert (event.kind, event.text) == ("warning", "novel: a thing")


async def test_chatter_does_not_hide_what_only_we_can_say(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine.record.MAX_EVENTS", 5)
    record = Record("r1", store, events_per_second=2)
    for number in range(100):
        record.note("tool_call", str(number))
    record.note("warning", "the agent made a .git")
    record.note("approval_decided", "Bash: approved")
    await record.flush()
    kinds = [event.kind for event in await store.events("r1")]
    assert kinds[-2:] == ["warning", "approval_decided"]
    assert record.warnings[-1] == "the agent made a .git"


async def test_chatter_does_not_hide_what_the_gateway_saw(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine.record.MAX_EVENTS", 5)
    record = Record("r1", store, events_per_second=1000)
    for number in range(10):
        record.note("text", str(number))
    record.note("egress_denied", "evil.example")
    record.note("ended", "completed")
    await record.flush()
    assert [(event.seq, event.kind, event.text) for event in await store.events("r1")][4:] == [
        (5, "text", "4"),
        (6, "warning", "5 events; no more of them are kept"),
        (7, "egress_denied", "evil.example"),
        (8, "warning", "5 events more were not kept"),
        (9, "ended", "completed"),
    ]


async def test_events_that_could_not_be_kept_are_tried_again(store: Store) -> None:
    record = Record("r1", store)
    await store.database.write("ALTER TABLE events RENAME TO away")
    record.note("text", "one")
    await record.flush()
    await store.database.write("ALTER TABLE away RENAME TO events")
    record.note("text", "two")
    await record.flush()
    assert [event.text for event in await store.events("r1")] == ["one", "two"]


def test_a_store_that_is_no_store_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    path.write_text("Dear diary, " * 100)
    with pytest.raises(StoreFailed, match="move it away; a new one is made"):
        Store(path)
    assert path.read_text().startswith("Dear diary")


async def test_nobody_changes_a_session_that_another_process_has_taken(store: Store) -> None:
    key = SessionKey(agent="a", caller="main")
    ours, theirs = SessionRows(store, "we"), SessionRows(store, "they")
    await ours.take(key, 60)
    row = await theirs.take(key, 60)
    await ours.set_state(key, "stopped")
    await ours.used(key, "ready", 0)
    await ours.set_conversation(key, "another")
    assert await theirs.get(key) == row
    assert not await ours.remove(key, expired=True)
    await ours.want(key)
    assert (await theirs.get(key) or row).wanted
    await ours.want(key, wanted=False)
    assert await theirs.get(key) == row
    assert await ours.remove(key)


async def test_whatever_an_agent_has_us_write_down_there_is_a_limit_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.engine.record.MAX_EVENTS", 3)
    record = Record("r1", store)
    kinds: tuple[EventKind, ...] = ("text", "approval_asked", "egress")
    for kind in kinds * 9:
        record.note(kind, "x")
    record.note("ended", "")
    kept = Counter(event.kind for event in record.take())
    assert kept == {"text": 3, "approval_asked": 3, "egress": 3, "warning": 4, "ended": 1}


async def test_what_is_kept_of_a_run_is_limited_in_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = {"chatter": 100_000, "words": 100_000, "outside": 100_000}
    monkeypatch.setattr("orchestrator.engine.record.MAX_EVENT_BYTES", most)
    record = Record("r1", store, events_per_second=10_000)
    for _ in range(100):  # in the store, each of these characters takes six bytes or more
        record.note("tool_call", "\N{GRINNING FACE}" * 2000, input={"x": "\x00" * 4000})
    record.note("egress_denied", "evil.example")
    record.note("ended", "completed")
    await record.flush()
    events = await store.events("r1")
    assert [event.kind for event in events if event.kind != "tool_call"] == [
        "warning",
        "egress_denied",
        "warning",
        "ended",
    ]
    kept = await store.database.select(
        "SELECT sum(length(CAST(text AS BLOB)) + length(data)) FROM events"
    )
    assert 60_000 < kept[0][0] < 102_000


async def test_the_data_of_one_event_has_an_end_however_it_is_nested(store: Store) -> None:
    record = Record("r1", store)
    words = {f"k{n}": [{"deep": "w" * 100} for _ in range(90)] for n in range(90)}
    record.note("tool_call", "x", input=words, more="y" * 10, number=5)
    (event,) = record.take()
    assert len(json.dumps(event.data)) < 3 * MAX_DATA
    assert event.data["more"] == "…"
    assert event.data["number"] == 5


async def test_long_texts_are_cleaned_elsewhere_and_as_well(store: Store) -> None:
    record = Record("r1", store, secrets=["hunter2hunter2"])
    for size in (10, 100_000):
        cleaned = await record.cleaned({"a": ["x" * size, "hunter2hunter2", 1]})
        assert cleaned == {"a": ["x" * size, "[secret]", 1]}
