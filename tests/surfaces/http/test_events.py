"""Events over HTTP: every one once, in order, whatever happens to the connection or the server."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from orchestrator.domain.events import Event
from orchestrator.engine.tasks import event_feed
from orchestrator.store.runs import Store
from orchestrator.surfaces.http.routes import events
from tests.surfaces.http.api_stage import PATIENCE, TOKENS, ApiStage, Reader, on_api_stage

pytestmark = pytest.mark.anyio


def texts(reader: Reader) -> list[str]:
    return [event["text"] for event in reader.seen if event["kind"] == "text"]


async def stored(stage: ApiStage, run_id: str) -> list[int]:
    """The numbers of a run's events in the store."""
    found = await stage.store.numbered_events.of_run(run_id, 0, 10_000)
    return [event.number for event in found]


async def test_a_stream_has_what_came_before_then_what_comes_and_then_it_ends(
    stage: ApiStage,
) -> None:
    async with stage.client() as main:
        run_id = await stage.begin(main)
        await stage.note(run_id, "before")
        async with stage.reading(main, f"/v1/runs/{run_id}/events") as reader:
            assert (await reader.next())[0] == "hello"
            while texts(reader) != ["before"]:
                await reader.next()
            await stage.note(run_id, "live")
            while texts(reader) != ["before", "live"]:
                await reader.next()
            await stage.ended(run_id)
            assert await reader.until("end") == {"run_id": run_id, "status": "completed"}
            with pytest.raises(EOFError):
                await reader.next()
        assert [event["id"] for event in reader.seen] == await stored(stage, run_id)
        again = await main.get(
            f"/v1/runs/{run_id}/events",
            headers={"Accept": "text/event-stream", "Last-Event-ID": reader.last_id},
        )
        assert again.status_code == 204
        another = await stage.begin(main)
        await stage.ended(another)
        newest = (await main.get("/v1/runs")).json()["newest_event_id"]
        assert newest > int(reader.last_id)
        later = await main.get(
            f"/v1/runs/{run_id}/events",
            headers={"Accept": "text/event-stream", "Last-Event-ID": str(newest)},
        )
        assert later.status_code == 204
        async with stage.reading(main, f"/v1/runs/{run_id}/events", str(newest + 100)) as ahead:
            await ahead.until("gap_detected")
            await ahead.until("end")
        assert ahead.seen == reader.seen


async def test_a_reader_that_comes_again_goes_on_after_its_last_event(stage: ApiStage) -> None:
    async with stage.client() as main:
        run_id = await stage.begin(main)
        path = f"/v1/runs/{run_id}/events"
        for text in ("one", "two"):
            await stage.note(run_id, text)
        async with stage.reading(main, path) as first:
            while texts(first) != ["one"]:
                await first.next()
        await stage.note(run_id, "three")
        async with stage.reading(main, path, first.last_id) as second:
            while texts(second) != ["two", "three"]:
                await second.next()
        async with stage.reading(main, f"{path}?after={first.last_id}") as third:
            while texts(third) != ["two", "three"]:
                await third.next()
        await stage.ended(run_id)


async def test_all_events_of_a_caller_are_on_one_stream_with_the_same_ids(stage: ApiStage) -> None:
    async with stage.client() as main, stage.client("other") as other, stage.person() as person:
        async with (
            stage.reading(main, "/v1/events") as mine,
            stage.reading(other, "/v1/events") as theirs,
            stage.reading(person, "/v1/events") as all_of_them,
        ):
            for reader in (mine, theirs, all_of_them):
                assert (await reader.next())[0] == "hello"
            runs = [await stage.begin(main), await stage.begin(main)]
            foreign = await stage.begin(other, "for-other")
            for run_id in (*runs, foreign):
                await stage.note(run_id, f"in {run_id}")
                await stage.ended(run_id)
            for reader, count in ((mine, 2), (theirs, 1), (all_of_them, 3)):
                for _ in range(count):
                    await reader.until("ended")
        numbers = [number for run_id in runs for number in await stored(stage, run_id)]
        assert [event["id"] for event in mine.seen] == sorted(numbers)
        assert {event["run_id"] for event in theirs.seen} == {foreign}
        assert {event["run_id"] for event in all_of_them.seen} == {*runs, foreign}


async def test_pages_have_the_same_events_as_streams(stage: ApiStage) -> None:
    async with stage.client() as main, stage.client("other") as other:
        run_id = await stage.begin(main)
        for number in range(5):
            await stage.note(run_id, str(number))
        await stage.ended(run_id)
        path, found, after = f"/v1/runs/{run_id}/events", [], 0
        while True:
            page = (await main.get(path, params={"after": after, "limit": 2})).json()
            found += [event["id"] for event in page["items"]]
            after = page["next_after"]
            if page["ended"]:
                break
        assert found == await stored(stage, run_id)
        said = (await main.get(path, params={"kind": "text"})).json()["items"]
        assert [event["text"] for event in said] == list("01234")
        everything = (await main.get("/v1/events", params={"limit": 1000})).json()["items"]
        assert set(found) <= {event["id"] for event in everything}
        others = (await other.get("/v1/events", params={"limit": 1000})).json()["items"]
        assert not set(found) & {event["id"] for event in others}


async def test_a_page_ends_where_it_has_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' events are looked at once, and not too many of them for one request."""
    monkeypatch.setattr(events, "FEED_PAGE", 2)
    monkeypatch.setattr(events, "MAX_LOOKS", 2)
    async with (
        on_api_stage(tmp_path) as stage,
        stage.client() as main,
        stage.client("other") as other,
    ):
        foreign = await stage.begin(other, "for-other")
        for number in range(8):
            await stage.note(foreign, str(number))
        run_id = await stage.begin(main)
        await stage.ended(run_id)
        await stage.ended(foreign)
        found, after, pages = list[int](), 0, 0
        with anyio.fail_after(PATIENCE):
            while True:
                page = (await main.get("/v1/events", params={"after": after})).json()
                assert page["next_after"] <= after + 4 or page["items"]
                assert page["gap"] is None
                found += [event["id"] for event in page["items"]]
                after, pages = page["next_after"], pages + 1
                if after >= page["newest_event_id"]:
                    break
        assert found == await stored(stage, run_id)
        assert pages > 2
        assert after == (await stored(stage, foreign))[-1]
        path = f"/v1/runs/{run_id}/events"
        none = (await main.get(path, params={"kind": "asked"})).json()
        assert (none["items"], none["next_after"]) == ([], found[-1])


async def test_events_of_another_process_on_the_same_store_are_heard(stage: ApiStage) -> None:
    async with stage.client() as main:
        run_id = await stage.begin(main)
        await stage.note(run_id, "here")
        other = Store(stage.folder / "state" / "runs.sqlite", "another process")
        try:
            async with stage.reading(main, f"/v1/runs/{run_id}/events") as reader:
                await reader.until("queued")
                said = Event(run_id=run_id, seq=1000, at=1.0, kind="text", text="from elsewhere")
                await other.add_events([said])
                while texts(reader) != ["here", "from elsewhere"]:
                    await reader.next()
        finally:
            other.close()


async def test_what_was_removed_is_told_and_moves_no_cursor(tmp_path: Path) -> None:
    async with on_api_stage(tmp_path) as stage, stage.client() as main:
        first = await stage.begin(main)
        await stage.ended(first)
        second = await stage.begin(main)
        await stage.ended(second)
        kept = await stored(stage, second)
        await stage.store.remove([first])
        async with stage.reading(main, "/v1/events?after=1") as reader:
            gap = await reader.until("gap_detected")
            assert reader.last_id == ""
            await reader.until("ended")
        assert gap == {
            "requested_after_id": 1,
            "oldest_available_id": kept[0],
            "newest_available_id": kept[-1],
            "resume_hint": "refresh_snapshot_then_resume",
        }
        assert [event["id"] for event in reader.seen] == kept
        page = (await main.get("/v1/events", params={"after": 1})).json()
        assert page["gap"] == gap
        assert [event["id"] for event in page["items"]] == kept
        lost = (await main.get("/v1/events", params={"after": kept[-1] + 100})).json()
        assert lost["gap"]["requested_after_id"] == kept[-1] + 100
        assert lost["next_after"] == kept[-1]
        whole_page = (await main.get("/v1/events", params={"after": kept[0]})).json()
        assert whole_page["gap"] is None
        async with stage.reading(main, "/v1/events", str(kept[-1] + 100)) as ahead:
            assert (await ahead.until("gap_detected"))["requested_after_id"] == kept[-1] + 100
        async with stage.reading(main, "/v1/events", str(kept[0])) as whole:
            assert (await whole.next())[0] == "hello"
            name, _ = await whole.next()
            assert name not in ("gap_detected", "hello")


async def test_numbers_go_on_after_a_restart_and_after_the_last_events_are_removed(
    tmp_path: Path,
) -> None:
    last = 0
    for _ in range(3):
        async with on_api_stage(tmp_path) as stage, stage.client() as main:
            run_id = await stage.begin(main)
            await stage.ended(run_id)
            numbers = await stored(stage, run_id)
            assert numbers[0] > last
            last = numbers[-1]
            await stage.store.remove([run_id])
            assert (await main.get("/v1/runs")).json()["newest_event_id"] == last


async def test_a_stream_ends_when_its_run_is_deleted(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "ENDED_LOOK_SECONDS", 0.0)
    async with stage.client() as main:
        run_id = await stage.begin(main)
        await stage.note(run_id, "here")
        async with stage.reading(main, f"/v1/runs/{run_id}/events") as reader:
            await reader.until("text")
            await stage.store.remove([run_id])
            assert await reader.until("end") == {"run_id": run_id, "status": "removed"}
        assert (await main.get(f"/v1/runs/{run_id}/events")).status_code == 404


async def test_a_stream_that_is_behind_when_its_run_is_over_still_has_every_event(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "ENDED_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(events, "FEED_PAGE", 5)

    async def behind() -> bool:
        return False

    async with stage.client() as main:
        run_id = await stage.begin(main)
        await stage.note(run_id, "here")
        async with stage.reading(main, f"/v1/runs/{run_id}/events") as reader:
            await reader.until("text")
            monkeypatch.setattr(stage.feed, "_round", behind)
            for number in range(12):
                await stage.note(run_id, str(number))
            await stage.ended(run_id)
            assert await reader.until("end") == {"run_id": run_id, "status": "completed"}
    assert [event["id"] for event in reader.seen] == await stored(stage, run_id)


async def test_a_reader_that_does_not_read_is_cut_and_misses_nothing_when_it_comes_again(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "MAX_BEHIND_BYTES", 64 * 1024)
    async with stage.client() as main:
        run_id = await stage.begin(main)
        path = f"/v1/runs/{run_id}/events"
        host, port = stage.url.removeprefix("http://").split(":")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await anyio.to_thread.run_sync(lazy.connect, (host, int(port)))
            lazy.settimeout(PATIENCE)
            ask = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/event-stream\r\n"
            lazy.sendall(f"{ask}Authorization: Bearer {TOKENS['main']}\r\n\r\n".encode())
            with anyio.fail_after(PATIENCE):
                while not stage.feed.followers:
                    await anyio.sleep(0.01)
                written = 0
                while stage.feed.followers:
                    record = stage.service.live[run_id].record
                    for _ in range(10):
                        record.note("warning", f"{written} " + "x" * 1900)
                        written += 1
                    await record.flush()
                    await anyio.sleep(0.01)
            got = await anyio.to_thread.run_sync(_rest_of, lazy)
        seen = [json.loads(line[6:]) for line in got.splitlines() if line.startswith("data: {")]
        complete = [event for event in seen[:-1] if "seq" in event]  # the last one may be half
        numbers = await stored(stage, run_id)
        assert [event["id"] for event in complete] == numbers[: len(complete)]
        assert len(complete) < len(numbers)
        async with stage.reading(main, path, str(complete[-1]["id"])) as again:
            while len(again.seen) < len(numbers) - len(complete):
                await again.next()
        assert [event["id"] for event in again.seen] == numbers[len(complete) :]
        await stage.ended(run_id)


def _rest_of(lazy: socket.socket) -> str:
    got = b""
    while piece := lazy.recv(65536):
        got += piece
    lines = [line for line in got.decode(errors="replace").splitlines() if _whole(line)]
    return "\n".join(lines)


def _whole(line: str) -> bool:
    """Chunks of HTTP cut lines in two where one begins: those are passed over."""
    if not line.startswith("data: {"):
        return False
    try:
        json.loads(line[6:])
    except ValueError:
        return False
    return True


async def test_another_callers_events_cannot_be_replayed(stage: ApiStage) -> None:
    async with stage.client() as main, stage.client("other") as other:
        run_id = await stage.begin(main)
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "1"}
        answer = await other.get(f"/v1/runs/{run_id}/events", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "run_not_found")
        await stage.ended(run_id)


async def test_a_long_history_is_read_while_more_happens(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes while a reader still reads what came before is neither lost nor doubled."""
    monkeypatch.setattr(event_feed, "MAX_BEHIND_BYTES", 4096)
    monkeypatch.setattr(events, "FEED_PAGE", 5)
    async with stage.client() as main, anyio.create_task_group() as group:
        last = str((await main.get("/v1/runs")).json()["newest_event_id"])
        run_id = await stage.begin(main)
        record = stage.service.live[run_id].record

        async def write(rounds: int) -> None:
            for number in range(rounds):
                for _ in range(20):
                    record.note("warning", f"{number}")
                await record.flush()

        async def write_and_end() -> None:
            await write(50)
            await stage.ended(run_id)

        await write(20)
        group.start_soon(write_and_end)
        seen: list[dict[str, Any]] = []
        with anyio.fail_after(PATIENCE):
            while not seen or seen[-1]["kind"] != "ended":
                with suppress(httpx.RemoteProtocolError):  # it was cut, and comes again
                    async with stage.reading(main, "/v1/events", last) as reader:
                        await reader.until("ended")
                seen += reader.seen
                last = reader.last_id or last
    assert [event["id"] for event in seen] == await stored(stage, run_id)
