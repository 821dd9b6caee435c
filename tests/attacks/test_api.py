"""Requests to the HTTP API by callers, strangers and web pages that mean no good."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import pytest

from orchestrator.surfaces import held_connections
from orchestrator.surfaces.http import api
from tests.attacks.mark import attack
from tests.surfaces.http.api_stage import PATIENCE, ApiStage, on_api_stage

pytestmark = pytest.mark.anyio

MARK = "nobody-may-read-this-any-more"


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiStage]:
    async with on_api_stage(tmp_path_factory.mktemp("api")) as stage:
        yield stage


@attack(
    "callers over HTTP",
    "have a removed run told again under an Idempotency-Key, or its text kept under many",
    "404: no key keeps what a run says, and keys go with their run",
)
async def test_a_key_tells_nothing_of_a_removed_run(stage: ApiStage) -> None:
    async with stage.client() as main:
        run_id = await stage.begin(main, prompt=MARK)
        await stage.ended(run_id, MARK)
        path = f"/v1/runs/{run_id}/cancel"
        headers = {"Idempotency-Key": "again"}
        first = await main.post(path, headers=headers)
        again = await main.post(path, headers=headers)
        assert MARK in first.text
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
        rows = await stage.store.database.select("SELECT answer FROM request_keys")
        assert MARK not in str([tuple(each) for each in rows])
        await stage.store.remove([run_id])
        gone = await main.post(path, headers=headers)
        assert (gone.status_code, MARK in gone.text) == (404, False)
        assert not await stage.store.database.select(
            "SELECT 1 FROM request_keys WHERE path = ?", path
        )


@attack(
    "callers over HTTP",
    "send two different requests under one Idempotency-Key at the same moment",
    "one is done; the other is refused before anything of it is",
)
async def test_one_key_is_not_two_requests_at_once(stage: ApiStage) -> None:
    statuses: list[int] = []
    async with stage.client(**{"Idempotency-Key": "both"}) as main:
        run_id = await stage.begin(main)

        async def tell(text: str) -> None:
            answer = await main.post(f"/v1/runs/{run_id}/input", json={"text": text})
            statuses.append(answer.status_code)

        async with anyio.create_task_group() as group:
            for n in range(8):
                group.start_soon(tell, f"word {n}")
        heard = await stage.store.database.select(
            "SELECT text FROM orders WHERE run_id = ?", run_id
        )
        assert (len(heard), sorted(statuses)) == (1, [202, *[409] * 7])
        await stage.ended(run_id)


@attack(
    "callers over HTTP",
    "make up cursors: numbers that no database holds, texts that are none, other kinds",
    "400, and nothing in the log of the server",
)
@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/audit", [10**30]),
        ("/v1/audit", [-(10**30)]),
        ("/v1/audit", [True]),
        ("/v1/runs", [1.0, "\ud800"]),
        ("/v1/runs", ["x", 1.0]),
    ],
)
async def test_a_made_up_cursor(stage: ApiStage, path: str, values: list[object]) -> None:
    cursor = base64.urlsafe_b64encode(json.dumps(values).encode()).decode()
    async with stage.client() as main:
        answer = await main.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@attack(
    "callers over HTTP",
    "have a page on another port of this machine cancel or apply on a server without tokens",
    "403, though the origin is allowed and the request needs no leave of ours",
)
async def test_another_page_of_this_machine(tmp_path: Path) -> None:
    async with on_api_stage(tmp_path, tokens={}) as stage, stage.client(None) as browser:
        stage.add_agent("for-all", allowed_callers=["default"])
        run_id = await stage.begin(browser, "for-all")
        forged = {"Origin": "http://localhost:3000"}
        for site in ("same-site", "cross-site"):
            headers = forged | {"Sec-Fetch-Site": site}
            for verb in ("cancel", "apply"):
                answer = await browser.post(f"/v1/runs/{run_id}/{verb}", headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden_origin")
        assert (await browser.get(f"/v1/runs/{run_id}")).json()["status"] == "running"
        with anyio.fail_after(PATIENCE):
            assert (await browser.post(f"/v1/runs/{run_id}/cancel")).status_code == 200


async def _trickle(url: str, data: bytes) -> bytes:
    """Send something and nothing more; what comes until the other side closes."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    found = b""
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_tcp(host, int(port)) as stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.send(data)
                while True:
                    found += await stream.receive()
    return found


@attack(
    "callers over HTTP",
    "without a token, open connections and send half a head, or a body that does not come",
    "the connection is closed; a body is answered with 408",
)
async def test_a_request_that_does_not_come(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_connections, "REQUEST_HEAD_SECONDS", 0.05)
    monkeypatch.setattr(api, "JSON_BODY_SECONDS", 0.05)
    host = stage.url.removeprefix("http://")
    half = f"POST /v1/login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 10\r\n"
    assert await _trickle(stage.url, b"") == b""
    assert await _trickle(stage.url, half.encode()) == b""
    late = await _trickle(stage.url, f"{half}Content-Type: application/json\r\n\r\n{{".encode())
    assert late.startswith(b"HTTP/1.1 408 ")
    async with stage.client() as main:
        run_id = await stage.begin(main)
        async with stage.reading(main, f"/v1/runs/{run_id}/events") as reader:
            await reader.until("hello")
            await anyio.sleep(0.2)  # longer than a head may take: a stream is no such thing
            await stage.note(run_id, "still here")
            assert (await reader.until("text"))["text"] == "still here"
        await stage.ended(run_id)


@attack(
    "callers over HTTP",
    "without a token, open more connections than a server has files",
    "the last ones are closed at once; the first ones, and runs, go on",
)
async def test_more_connections_than_files(
    stage: ApiStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, port = stage.url.removeprefix("http://").rpartition(":")
    async with stage.client() as main, AsyncExitStack() as held:
        assert (await main.get("/v1/me")).status_code == 200
        monkeypatch.setattr(held_connections, "MOST_HELD_CONNECTIONS", 5)
        for _ in range(4):
            await held.enter_async_context(await anyio.connect_tcp(host, int(port)))
        assert await _trickle(stage.url, b"") == b""
        assert (await main.get("/v1/me")).status_code == 200


@attack(
    "callers over HTTP",
    "have a browser show what an agent wrote as a page, keep it, or let another page embed it",
    "each answer forbids all three: nosniff, no-store, a policy that allows nothing, same-origin",
)
async def test_no_answer_becomes_a_page(stage: ApiStage) -> None:
    async with stage.client() as main, stage.client(None) as stranger:
        run_id = await stage.begin(main, prompt="<script>alert(1)</script>")
        await stage.ended(run_id, "<script>alert(1)</script>")
        paths = (f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events", f"/v1/runs/{run_id}/patch")
        answers = [await main.get(path) for path in (*paths, "/v1/runs", "/v1/<script>")]
        for answer in (*answers, await stranger.get("/v1/runs"), await stranger.get("/v1/health")):
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "html" not in answer.headers["content-type"]
