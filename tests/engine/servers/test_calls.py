"""The real claude in its container calls tools of a server in another one, as agent.md lets it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.tools.pool import Sharers, WantedServer
from orchestrator.store.audit import AuditQuery
from tests.engine.harness import Harness, Steps, bash
from tests.engine.servers.stage import LAST, TOKEN, known_server, mcp, pin, use, write_server

RUN_SECONDS = 120


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


async def test_claude_calls_what_it_may_and_nobody_else_gets_further(
    harness: Harness, runtime: DockerRuntime
) -> None:
    post = (
        "curl -s http://127.0.0.1:8084/it -H 'content-type: application/json' -d "
        """'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":%s}}'"""
    )
    steps: Steps = [
        mcp("echo", text="hello"),
        mcp("secret"),
        bash(post % ("count", "{}")),
        bash(post % ("echo", json.dumps({"text": "x", "owner": "evil"}))),
        bash(post % ("count", "{}") + "; env; cat /proc/*/environ | tr '\\0' '\\n'; ls /tmp"),
        mcp("echo", text="bye"),
        LAST,
    ]
    with anyio.fail_after(RUN_SECONDS):
        write_server(harness)
        await pin(harness)
        server = use("echo", "secret", arguments={"*": {"owner": "acme"}})
        result = await harness.run(steps, mcp_servers=[server])
    assert result.status == "completed", result
    assert '"owner": "acme", "text": "bye"' in str(result.result)
    assert str(result.result).startswith("<tool-result-")  # a stranger's words, in a fence
    results = [event for event in harness.events if event.kind == "tool_result"]
    told = "\n".join(event.text for event in results)
    assert "[secret]" in told
    assert "DENIED_BY_POLICY" in told
    assert "ARGUMENT_FIXED" in told
    assert TOKEN not in result.model_dump_json()
    assert TOKEN not in repr(harness.events)

    calls = [(e.kind, e.data["tool"], e.data["direct"]) for e in harness.events
             if e.kind in ("server_call", "server_denied")]  # fmt: skip
    assert calls == [
        ("server_call", "echo", False),
        ("server_call", "secret", False),
        ("server_denied", "count", True),
        ("server_denied", "echo", True),
        ("server_denied", "count", True),
        ("server_call", "echo", False),
    ]
    audit = await harness.store.audit.find(AuditQuery(act="tool"))
    assert [(entry.subject, entry.allowed) for entry in audit] == [
        ("it/echo #1", True),
        ("it/secret #2", True),
        ("it/count", False),
        ("it/echo", False),
        ("it/echo #3", True),
    ]
    assert await runtime.list() == ()


async def test_a_call_waits_for_one_approval_and_a_servers_question_is_one_of_the_run(
    harness: Harness,
) -> None:
    write_server(harness)
    asking = mcp("ask", what="Whose ticket is it?")
    steps: Steps = [mcp("echo", text="hi"), mcp("count"), asking, LAST]
    with anyio.fail_after(RUN_SECONDS):
        await pin(harness)
        asks = use("echo", "ask", "count", approve={"echo": "ask"})
        rules = {"mcp__it__count": "ask", "mcp__it__echo": "ask"}  # the CLI does not ask besides
        service = harness.service(steps, ask="parent", approval=rules, mcp_servers=[asks])
        ends: list[RunResult] = []

        async def run() -> None:
            ends.append(await service.run(Task(agent="worker", prompt="Go.", run_id="r1")))

        async def until_status(wanted: str) -> None:
            while (record := await harness.store.run("r1")) is None or record.status != wanted:
                await anyio.sleep(0.02)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            for tool, given in (("echo", {"text": "hi"}), ("count", {})):
                while not (waiting := await service.exchanges.approvals("r1", pending=True)):
                    await anyio.sleep(0.02)
                (approval,) = waiting
                assert (approval.tool, approval.input) == (f"mcp__it__{tool}", given)
                await until_status("paused")
                assert await service.exchanges.decide("r1", approval.call_id, "approved")
                service.news.tell()
                await until_status("running")
            while not (questions := await service.exchanges.questions("r1")):
                await anyio.sleep(0.02)
            (question,) = questions
            assert question.question.startswith("The server it asks")
            await until_status("waiting_parent_reply")
            assert await service.exchanges.answer("r1", question.message_id, "Ada's")
            service.news.tell()
        assert len(await service.exchanges.approvals("r1")) == 2
    (result,) = ends
    assert (result.status, result.warnings) == ("completed", ())
    assert """{"name": "Ada's"}""" in str(result.result)


async def test_a_server_reaches_what_its_file_says_and_its_secret_is_nowhere_else(
    harness: Harness, runtime: DockerRuntime
) -> None:
    """Canaries: a host that is allowed, one that is not, and the server's secret."""
    heard: list[str] = []

    async def page(request: HttpRequest) -> HttpResponse:
        heard.append(f"{request.header('host')} {request.header('x-token')}")
        return HttpResponse(200, (), b"a page")

    find = f"grep -rlsa {TOKEN[:-1]}[{TOKEN[-1]}] /proc/*/environ /tmp /home | wc -l"
    async with serve_on_loopback(page) as here, serve_on_loopback(page) as other:
        port = here.rpartition(":")[2]
        write_server(harness, network={"allow_private": [f"127.0.0.1:{port}"]})
        tries = [here, other, "http://127.0.0.1:8080/", "http://127.0.0.1:8084/it"]
        tries += ["http://169.254.169.254/", "http://example.org/"]
        steps: Steps = [
            *(mcp("fetch", url=url) for url in tries),
            mcp("secret"),
            bash(find),
            LAST,
        ]
        with anyio.fail_after(RUN_SECONDS):
            await pin(harness)
            result = await harness.run(steps, mcp_servers=[use("fetch", "secret")])
    assert str(result.result) == "0", result
    assert heard == [f"127.0.0.1:{port} "]
    results = [event.text for event in harness.events if event.kind == "tool_result"]
    assert "a page" in results[0]
    assert not [text for text in results[1:6] if "a page" in text]
    rows = await harness.store.audit.find(AuditQuery(who="server it"))
    assert (f"127.0.0.1:{port}", True) in [(row.subject, row.allowed) for row in rows]
    assert ("example.org:80", False) in [(row.subject, row.allowed) for row in rows]
    kept = (harness.agents_dir.parent / "runs.sqlite").read_bytes()
    assert TOKEN.encode() not in kept
    assert TOKEN not in repr(harness.events)


@asynccontextmanager
async def _in_use(harness: Harness, share: str) -> AsyncIterator[None]:
    """The session's instance does not become idle between two runs, however long that takes."""
    known = known_server(harness)
    if share == "run":
        yield
        assert harness.servers.pool.running == 0
        return
    scope = Sharers("session", harness.key.text)
    async with harness.servers.pool.lease(WantedServer(known.server, known.lock, scope)):
        yield
        assert harness.servers.pool.running == 1


async def test_an_instance_belongs_to_a_run_or_to_a_session(
    harness: Harness, runtime: DockerRuntime
) -> None:
    counts: dict[str, list[str]] = {}
    with anyio.fail_after(RUN_SECONDS):
        for share in ("run", "session"):
            write_server(harness, share=share, idle_seconds=0.5)
            await pin(harness)
            service = harness.service(
                [mcp("count"), LAST], each_task=True, session=True, mcp_servers=[use("count")]
            )
            async with harness.sessions, _in_use(harness, share):
                for _ in range(2):
                    result = await service.run(Task(agent="worker", prompt="Go."))
                    count = str(result.result).split("\n")[1].split()[0]
                    counts.setdefault(share, []).append(count)
                await harness.sessions.remove(harness.key)
        while await runtime.list():
            await anyio.sleep(0.05)
    assert counts == {"run": ["1", "1"], "session": ["1", "2"]}
