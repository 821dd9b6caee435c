"""Servers that others wrote, from npm and PyPI, in both eras of the protocol, called by the real
claude as agent.md lets it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

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
from tests.engine.servers.real_servers import servers_image, write_real_server
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


USES = {
    "everything": use("echo", "get-*", deny=["get-env"], name="everything"),
    "git": use("git_status", "git_log", arguments={"*": {"repo_path": "/tmp/it"}}, name="git"),
    "sqlite": use("*_query", "create_table", approve={"write_query": "ask"}, name="sqlite"),
    "filesystem": use("*_file", "list_*", deny=["write_*"], name="filesystem"),
    "memory": use("create_entities", "search_nodes", name="memory"),
    "sequential-thinking": use("*", name="sequential-thinking"),
    "fetch": use("fetch", name="fetch"),
}

SOME = ("everything", "git", "sqlite")
"""From npm and from PyPI, in both eras. `make soak` has claude call them all."""

ADA = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
THOUGHT = {"thought": "first", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}


class Called(NamedTuple):
    """A call of claude's, what it is told, and what is noted of it."""

    server: str
    tool: str
    told: str
    noted: str = "server_call"
    arguments: Mapping[str, object] = {}

    @property
    def step(self) -> dict[str, object]:
        return mcp(self.tool, self.server, **self.arguments)


def calls(url: str) -> list[Called]:
    """All of them; `url` is of a page that may be fetched."""
    denied = "refused by the orchestrator (ARGUMENT_FIXED): repo_path is not yours to choose"
    no_tool = "No such tool available: mcp__"
    make, add = "CREATE TABLE t (n INTEGER)", "INSERT INTO t VALUES (41)"
    read, elsewhere = "SELECT n + 1 AS more FROM t", "http://127.0.0.1:8080/"
    file = {"path": "/tmp/x", "content": "x"}
    return [
        Called("everything", "echo", "Echo: hello", arguments={"message": "hello"}),
        Called("everything", "get-sum", "2 and 40 is 42.", arguments={"a": 2, "b": 40}),
        Called("everything", "get-env", f"{no_tool}everything__get-env", ""),
        Called("filesystem", "list_allowed_directories", "/tmp"),
        Called("filesystem", "write_file", f"{no_tool}filesystem__write_file", "", file),
        Called("memory", "create_entities", "", arguments={"entities": [ADA]}),
        Called("memory", "search_nodes", '"writes programs"', arguments={"query": "Ada"}),
        Called(
            *("sequential-thinking", "sequentialthinking", '"thoughtHistoryLength": 1'),
            arguments=THOUGHT,
        ),
        Called("git", "git_status", "On branch master"),
        Called("git", "git_status", denied, "server_denied", {"repo_path": "/etc"}),
        Called("fetch", "fetch", "It rains.", arguments={"url": url}),
        Called("fetch", "fetch", "403", arguments={"url": elsewhere}),
        Called("sqlite", "create_table", "Table created", arguments={"query": make}),
        Called("sqlite", "write_query", "affected_rows", arguments={"query": add}),
        Called("sqlite", "read_query", "[{'more': 42}]", arguments={"query": read}),
    ]


async def test_claude_calls_servers_that_others_wrote_and_only_what_it_may(
    harness: Harness, servers: str, runtime: DockerRuntime
) -> None:
    await claude_calls(harness, servers, SOME)
    assert await runtime.list() == ()


async def claude_calls(harness: Harness, image: str, names: Collection[str]) -> None:
    """Claude calls all that there is to call of these servers."""

    async def page(_: HttpRequest) -> HttpResponse:
        text = b"<html><body><article><h1>News</h1><p>It rains.</p></article></body></html>"
        return HttpResponse(200, (("content-type", "text/html"),), text)

    ends: list[RunResult] = []
    async with serve_on_loopback(page) as url:
        network = {"allow_private": [url.removeprefix("http://")]}
        for name in names:
            write_real_server(
                harness, name, image, **({"network": network} if name == "fetch" else {})
            )
        wanted = [call for call in calls(url) if call.server in names]
        steps: Steps = [*(call.step for call in wanted), LAST]
        with anyio.fail_after(RUN_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(pin, harness, name)
            service = harness.service(steps, mcp_servers=[USES[name] for name in names])

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
    for call, text in zip(wanted, told, strict=True):
        assert call.told in text, text
    kinds = ("server_call", "server_denied")
    noted = [event for event in harness.events if event.kind in kinds]
    assert [(e.kind, e.data["server"], e.data["tool"]) for e in noted] == [
        (call.noted, call.server, call.tool) for call in wanted if call.noted
    ]
    protocols = {name: _lock(harness, name).protocol for name in names}
    newer = {name for name in names if protocols[name] == "2026-07-28"}
    assert newer == {"git", "fetch"} & set(names)


def _lock(harness: Harness, name: str) -> ToolLock:
    lock = known_server(harness, name).lock
    assert lock is not None
    return lock


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
