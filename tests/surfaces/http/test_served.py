"""`orchestrator serve --http` as a user starts it: a real run, its events, and a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import httpx
import pytest

from tests.surfaces.http.api_stage import Reader
from tests.surfaces.mcp.mcp_stage import FOR_EVER, PATIENCE, Stage, http_server, on_stage

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-main-0123"


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def test_a_run_its_events_and_a_reader_that_outlives_its_server(stage: Stage) -> None:
    stage.add_agent("ours", {"text": "for main: {last_user_text}"})
    stage.add_agent("slow", {"tool": "Bash", "input": {"command": "true"}}, FOR_EVER)
    env = {"ORCHESTRATOR_HTTP_TOKENS": f"main={TOKEN}"}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    streamed = {"Accept": "text/event-stream"}
    with anyio.fail_after(PATIENCE):
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE) as http:
            async with http_server(stage, **env) as (_, mcp_url):
                url = mcp_url.removesuffix("/mcp")
                answer = await http.post(
                    f"{url}/v1/runs",
                    json={"agent": "ours", "prompt": "hello"},
                    headers={"Prefer": "wait=60"},
                )
                run = answer.json()
                assert (answer.status_code, run["status"]) == (200, "completed"), run
                assert run["result"] == "for main: hello"
                assert run["window"] == "http python-httpx"
                plan = (await http.get(f"{url}/v1/agents/ours/plan")).json()
                assert (plan["agent"], plan["network"]["interfaces"]) == ("ours", [])
                slow = (
                    await http.post(f"{url}/v1/runs", json={"agent": "slow", "prompt": "x"})
                ).json()
                path = f"/v1/runs/{slow['run_id']}/events"
                async with http.stream("GET", url + path, headers=streamed) as stream:
                    first = Reader(stream.aiter_lines())
                    await first.until("tool_result")
            async with http_server(stage, **env) as (_, mcp_url):
                url = mcp_url.removesuffix("/mcp")
                more = {**streamed, "Last-Event-ID": first.last_id}
                async with http.stream("GET", url + path, headers=more) as stream:
                    second = Reader(stream.aiter_lines())
                    assert (await second.until("end"))["status"] == "cancelled"
                seen = [event["id"] for event in (*first.seen, *second.seen)]
                page = (await http.get(url + path, params={"limit": 1000})).json()
                assert seen == [event["id"] for event in page["items"]]
                again = await http.get(
                    url + path, headers={**streamed, "Last-Event-ID": second.last_id}
                )
                assert again.status_code == 204
                kept = (await http.get(f"{url}/v1/runs/{run['run_id']}")).json()
                assert json.dumps(kept["result"]) == '"for main: hello"'
