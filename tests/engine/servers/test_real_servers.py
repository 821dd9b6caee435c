"""Servers that others wrote, from npm and PyPI, in both eras of the protocol, called by the real
claude as agent.md lets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.domain.tool_lock import ToolLock
from orchestrator.gateway import rpc
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.tools import front
from tests.engine.harness import Harness, Steps
from tests.engine.servers.real_servers import REAL, servers_image, write_real_server
from tests.engine.servers.stage import LAST, known_server, mcp, pin, use

RUN_SECONDS = 400

pytestmark = pytest.mark.timeout(900)  # the image may have to be made, of packages to be fetched

LONG = "trigger-long-running-operation"


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


@pytest.fixture(scope="session")
def servers(image: str) -> str:
    return servers_image(image)


USES = [
    use("echo", "get-*", deny=["get-env"], name="everything"),
    use("*_file", "list_*", deny=["write_*"], name="filesystem"),
    use("create_entities", "search_nodes", name="memory"),
    use("*", name="sequential-thinking"),
    use("git_status", "git_log", arguments={"*": {"repo_path": "/tmp/it"}}, name="git"),
    use("fetch", name="fetch"),
    use("*_query", "create_table", approve={"write_query": "ask"}, name="sqlite"),
]

ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
THOUGHT = {"thought": "first", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}


async def test_claude_calls_servers_that_others_wrote_and_only_what_it_may(
    harness: Harness, servers: str, runtime: DockerRuntime
) -> None:
    async def page(_: HttpRequest) -> HttpResponse:
        text = b"<html><body><article><h1>News</h1><p>It rains.</p></article></body></html>"
        return HttpResponse(200, (("content-type", "text/html"),), text)

    ends: list[RunResult] = []
    async with serve_on_loopback(page) as url:
        network = {"allow_private": [url.removeprefix("http://")]}
        for name in REAL:
            write_real_server(
                harness, name, servers, **({"network": network} if name == "fetch" else {})
            )
        steps: Steps = [
            mcp("echo", "everything", message="hello"),
            mcp("get-sum", "everything", a=2, b=40),
            mcp("get-env", "everything"),
            mcp("list_allowed_directories", "filesystem"),
            mcp("write_file", "filesystem", path="/tmp/x", content="x"),
            mcp("create_entities", "memory", entities=[ADA]),
            mcp("search_nodes", "memory", query="Ada"),
            mcp("sequentialthinking", "sequential-thinking", **THOUGHT),
            mcp("git_status", "git"),
            mcp("git_status", "git", repo_path="/etc"),
            mcp("fetch", "fetch", url=url),
            mcp("fetch", "fetch", url="http://127.0.0.1:8080/"),
            mcp("create_table", "sqlite", query="CREATE TABLE t (n INTEGER)"),
            mcp("write_query", "sqlite", query="INSERT INTO t VALUES (41)"),
            mcp("read_query", "sqlite", query="SELECT n + 1 AS more FROM t"),
            LAST,
        ]
        with anyio.fail_after(RUN_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in REAL:
                    tasks.start_soon(pin, harness, name)
            service = harness.service(steps, mcp_servers=USES)

            async def run() -> None:
                task = Task(agent="worker", prompt="Go.", run_id="r1")
                ends.append(await service.run(task, harness.events.append))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                while not (waiting := await service.exchanges.approvals("r1")):
                    await anyio.sleep(0.02)
                (approval,) = waiting
                assert approval.tool == "mcp__sqlite__write_query"
                assert approval.input == {"query": "INSERT INTO t VALUES (41)"}
                assert await service.exchanges.decide("r1", approval.call_id, "approved")
                service.news.tell()
    (result,) = ends
    assert result.status == "completed", result
    assert "[{'more': 42}]" in str(result.result)
    told = [event.text for event in harness.events if event.kind == "tool_result"]
    for number, words in TOLD.items():
        assert words in told[number], told[number]
    kinds = ("server_call", "server_denied")
    calls = [event for event in harness.events if event.kind in kinds]
    assert [(e.kind, f"{e.data['server']}/{e.data['tool']}") for e in calls] == CALLS
    protocols = {name: _lock(harness, name).protocol for name in REAL}
    assert {name for name in REAL if protocols[name] == "2026-07-28"} == {"git", "fetch"}
    assert await runtime.list() == ()


def _lock(harness: Harness, name: str) -> ToolLock:
    lock = known_server(harness, name).lock
    assert lock is not None
    return lock


TOLD = {
    0: "Echo: hello",
    1: "The sum of 2 and 40 is 42.",
    2: "No such tool available: mcp__everything__get-env",
    3: "/tmp",
    4: "No such tool available: mcp__filesystem__write_file",
    6: '"writes programs"',
    7: '"thoughtHistoryLength": 1',
    8: "On branch master",
    9: "refused by the orchestrator (ARGUMENT_FIXED): repo_path is not yours to choose",
    10: "It rains.",
    11: "403",
    12: "Table created successfully",
    13: "affected_rows",
}
"""What claude was told, by the number of the step."""

CALLS = [
    ("server_call", "everything/echo"),
    ("server_call", "everything/get-sum"),
    ("server_call", "filesystem/list_allowed_directories"),
    ("server_call", "memory/create_entities"),
    ("server_call", "memory/search_nodes"),
    ("server_call", "sequential-thinking/sequentialthinking"),
    ("server_call", "git/git_status"),
    ("server_denied", "git/git_status"),
    ("server_call", "fetch/fetch"),
    ("server_call", "fetch/fetch"),
    ("server_call", "sqlite/create_table"),
    ("server_call", "sqlite/write_query"),
    ("server_call", "sqlite/read_query"),
]


async def test_claude_hears_how_far_a_server_is_and_a_run_that_is_cancelled_leaves_it_to_others(
    harness: Harness, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[object, float, float | None]] = []
    news = anyio.Event()

    def progress(token: object, done: float, total: float | None = None, text: str = "") -> bytes:
        heard.append((token, done, total))
        news.set()
        return told(token, done, total, text)

    told = rpc.progress
    monkeypatch.setattr(front, "progress", progress)
    write_real_server(harness, "everything", servers, share="project")
    uses = [use("echo", LONG, name="everything")]

    async def run(*steps: dict[str, object]) -> RunResult:
        return await harness.run([*steps, LAST], mcp_servers=uses)

    with anyio.fail_after(RUN_SECONDS):
        await pin(harness, "everything")
        done = await run(mcp(LONG, "everything", duration=3, steps=3))
        assert "Long running operation completed" in str(done.result), done
        assert 3 in {total for _, _, total in heard}
        assert [step for _, step, _ in heard] == sorted(step for _, step, _ in heard)
        assert all(isinstance(token, int | str) for token, _, _ in heard)

        news = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, mcp(LONG, "everything", duration=600, steps=300))
            await news.wait()
            tasks.cancel_scope.cancel()
        assert "Echo: still here" in str(
            (await run(mcp("echo", "everything", message="still here"))).result
        )
        assert harness.servers.pool.running == 1
        await harness.servers.pool.aclose()
