"""The typed client against the real API, in this process; agents do what a test tells them."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.client import OrchestratorClient, open_client
from orchestrator.client.packing import packed_tree
from orchestrator.containers.mounts import MountPolicy
from orchestrator.errors import (
    AgentNotFound,
    CallerError,
    CallerRefused,
    CopyRefused,
    MountRefused,
    OperatorError,
    RunNotFound,
    RunRefused,
    ServerAway,
    WorkspaceNotFound,
)
from orchestrator.surfaces.cli.elsewhere.translated import step_of
from orchestrator.surfaces.http.routes import runs
from tests.surfaces.http.api_stage import PATIENCE, TOKENS, ApiStage, on_api_stage

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiStage]:
    async with on_api_stage(tmp_path_factory.mktemp("api")) as stage:
        yield stage


@pytest.fixture
async def main(stage: ApiStage) -> AsyncIterator[OrchestratorClient]:
    async with open_client(stage.url, TOKENS["main"]) as client:
        with anyio.fail_after(PATIENCE):
            yield client


@pytest.fixture
async def other(stage: ApiStage) -> AsyncIterator[OrchestratorClient]:
    async with open_client(stage.url, TOKENS["other"]) as client:
        yield client


async def begun(stage: ApiStage, client: OrchestratorClient, **more: Any) -> str:
    run = await client.start("for-main", "go", **more)
    while run.run_id not in stage.service.live:
        await anyio.sleep(0.005)
    return run.run_id


async def test_a_run_is_begun_waited_for_and_listed(
    stage: ApiStage, main: OrchestratorClient
) -> None:
    run_id = await begun(stage, main)
    assert not (await main.wait(run_id, 0)).has_ended
    stage.service.complete(run_id, "an answer")
    run = await main.wait(run_id)
    assert (run.status, run.result, run.caller) == ("completed", "an answer", "main")
    assert run_id in [row.run_id for row in await main.runs(status=["completed"])]
    assert (await main.me()).caller == "main"
    assert [agent.name for agent in await main.agents()] == ["for-main"]


async def test_the_same_key_is_the_same_run(stage: ApiStage, main: OrchestratorClient) -> None:
    first = await begun(stage, main, key="k1")
    again = await main.start("for-main", "go", key="k1")
    assert again.run_id == first
    assert await begun(stage, main) != first
    await main.cancel(first)


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_run_whose_server_is_not_ready_begins_once(
    stage: ApiStage, main: OrchestratorClient, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    asked, ready, accept = anyio.Event(), anyio.Event(), stage.service.accept
    prompt = f"when the image is built, {cut_off}"

    async def accept_when_ready(*args: Any, **named: Any) -> Any:
        asked.set()
        await ready.wait()
        return await accept(*args, **named)

    async def say(line: str) -> None:
        assert "is not ready yet" in line
        ready.set()

    monkeypatch.setattr(stage.service, "accept", accept_when_ready)
    async with anyio.create_task_group() as group:
        if cut_off:  # a request of before, whose answer nobody hears, has the key
            group.start_soon(partial(main.start, "for-main", prompt, key="cut-off"))
            await asked.wait()
        else:
            monkeypatch.setattr(runs, "ACCEPT_SECONDS", 0.02)
            monkeypatch.setattr(runs, "BEGUN_RETRY_SECONDS", 0)
        begun = await main.start("for-main", prompt, key="cut-off" if cut_off else "", say=say)
    found = [row.run_id for row in await main.runs() if row.prompt == prompt]
    assert found == [begun.run_id]
    await main.cancel(begun.run_id)


async def test_a_run_is_cancelled(stage: ApiStage, main: OrchestratorClient) -> None:
    run_id = await begun(stage, main)
    assert (await main.cancel(run_id)).status == "cancelled"


async def test_what_the_server_refuses_is_the_error_that_it_would_be_here(
    stage: ApiStage, main: OrchestratorClient, other: OrchestratorClient
) -> None:
    with pytest.raises(AgentNotFound):
        await main.start("nobody", "go")
    with pytest.raises((CallerRefused, AgentNotFound)):
        await main.start("for-other", "go")
    run_id = await begun(stage, main)
    with pytest.raises(RunNotFound):
        await other.get(run_id)
    with pytest.raises(RunRefused):
        await main.answer(run_id, "m1", "blue")
    with pytest.raises(CallerError, match="nothing here"):
        await main.get("../agents/for-main")
    await main.cancel(run_id)


async def test_a_token_is_in_no_error(stage: ApiStage) -> None:
    wrong = "a-token-that-is-wrong-987"
    async with open_client(stage.url, wrong) as client:
        with pytest.raises(OperatorError, match="does not know this token") as refused:
            await client.runs()
    async with open_client("http://127.0.0.1:1", wrong) as client:
        with pytest.raises(ServerAway) as away:
            await client.runs()
    for caught in (refused, away):
        chain: list[BaseException | None] = [caught.value, caught.value.__cause__]
        assert wrong not in repr(chain)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host", "is no address"),
        ("http://name:password@127.0.0.1", "must not hold"),
        ("http://example.org", "not encrypted"),
        ("http://127.0.0.1.example.org:8900", "not encrypted"),
    ],
)
async def test_a_token_is_not_sent_where_others_could_read_it(url: str, why: str) -> None:
    with pytest.raises(OperatorError, match=why) as refused:
        async with open_client(url, "a-token-of-mine-0123"):
            pass
    assert "password@" not in str(refused.value)


# Events


class CutLine:
    """A connection to the server that a test can cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    def cut(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    writer.close()


async def test_each_event_comes_once_and_in_order_however_often_the_line_is_cut(
    stage: ApiStage, main: OrchestratorClient
) -> None:
    run_id = await begun(stage, main)
    line = CutLine(int(stage.url.rpartition(":")[2]))
    seen: list[str] = []
    async with line.listening() as url, open_client(url, TOKENS["main"]) as client:
        events = client.events(run_id)
        for number in range(5):
            await stage.note(run_id, f"event {number}")
            while not seen or seen[-1] != f"event {number}":
                seen.append((await anext(events)).text)
            line.cut()
        stage.service.complete(run_id, "done")
        async for event in events:
            seen.append(event.text)  # noqa: PERF401 what came before counts too
        line.cut()
    said = [text for text in seen if text.startswith("event ")]
    assert said == [f"event {number}" for number in range(5)]
    assert line.connections > 5
    assert seen[-1].startswith("completed")


async def test_a_run_that_has_ended_has_all_its_events(
    stage: ApiStage, main: OrchestratorClient
) -> None:
    run_id = await begun(stage, main)
    await stage.note(run_id, "one")
    stage.service.complete(run_id, "done")
    await main.wait(run_id)
    told = [event.text async for event in main.events(run_id)]
    assert told == [event.text for event in await main.past_events(run_id)]
    with pytest.raises(RunRefused, match="removed"):
        await main.past_events(run_id, 10**9)
    assert "one" in told


async def test_what_a_run_is_at_is_told_as_the_server_has_it(
    stage: ApiStage, main: OrchestratorClient
) -> None:
    run_id = await begun(stage, main)
    await stage.note(run_id, "Bash: make test")
    (row,) = [row for row in await main.runs() if row.run_id == run_id]
    kept = (await stage.store.reports.steps([run_id]))[run_id]
    assert kept.text == "Bash: make test"
    assert step_of(row) == kept
    await main.cancel(run_id)


# Workspaces


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    return root


async def test_a_workspace_is_sent_once_and_is_its_callers(
    stage: ApiStage, main: OrchestratorClient, other: OrchestratorClient, project: Path
) -> None:
    policy = MountPolicy(roots=(project.parent,), home=Path("/nowhere"))
    with packed_tree(project, policy) as packed:
        sent = await main.upload(packed)
        packed.file.write_bytes(b"")  # if it were sent again, it would be refused
        assert (await main.upload(packed)).workspace == sent.workspace
    run_id = await begun(stage, main, workspace=sent.workspace)
    assert (await main.get(run_id)).workspace == sent.workspace
    workspace = stage.service.live[run_id].prepared.task.workspace
    assert workspace is not None
    assert (workspace / "a.txt").read_text() == "one\n"
    with pytest.raises(WorkspaceNotFound, match="no upload"):
        await other.remove_upload(sent.workspace)
    with pytest.raises(MountRefused, match="no upload"):
        await other.start("for-other", "go", workspace=sent.workspace)
    with pytest.raises(RunRefused, match="has not ended"):
        await main.remove_upload(sent.workspace)
    await main.cancel(run_id)
    await main.remove_upload(sent.workspace)
    with pytest.raises(MountRefused, match="no upload"):
        await main.start("for-main", "go", workspace=sent.workspace)


async def test_a_hostile_archive_is_refused_over_http(
    stage: ApiStage, main: OrchestratorClient
) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../x"))
    kinds = {"application/x-tar": made.getvalue(), "application/gzip": b"no gzip"}
    for kind, data in kinds.items():
        headers = {"Content-Type": kind}
        with pytest.raises(CopyRefused):
            await main.connection.request("POST", "/v1/workspaces", headers=headers, content=data)
    uploads = stage.settings.state_dir / "uploads"
    assert [path for path in uploads.rglob("*") if path.is_file()] == []


async def test_a_caller_that_sends_slowly_keeps_no_other_from_sending(
    main: OrchestratorClient, other: OrchestratorClient, project: Path
) -> None:
    stalled = anyio.Event()
    headers = {"Content-Type": "application/x-tar"}
    policy = MountPolicy(roots=(project.parent,), home=Path("/nowhere"))

    async def slow() -> None:
        async def body() -> AsyncIterator[bytes]:
            yield bytes(10)
            await stalled.wait()

        with pytest.raises(CopyRefused):
            await main.connection.request("POST", "/v1/workspaces", headers=headers, content=body())

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(slow)
        while True:
            try:
                await main.connection.request(
                    "POST", "/v1/workspaces", headers=headers, content=b"no tar"
                )
            except RunRefused as exc:
                assert "being received" in str(exc)  # noqa: PT017 the other comes first, a while
                break
            except CopyRefused:
                await anyio.sleep(0.01)
        with packed_tree(project, policy) as packed:
            await other.upload(packed)
        stalled.set()
