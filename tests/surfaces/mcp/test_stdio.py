"""`orchestrator serve` on pipes: a real server, a real engine, the real CLI, a scripted model."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from itertools import groupby
from pathlib import Path

import anyio
import pytest
from mcp import Client

from orchestrator.app import open_orchestrator
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.surfaces.mcp import waiting as mcp_waiting
from orchestrator.surfaces.mcp.server import build_server
from tests.surfaces.mcp.mcp_stage import (
    ERAS,
    FOR_EVER,
    PATIENCE,
    TOOLS,
    Message,
    Notices,
    Stage,
    call,
    descriptions,
    on_stage,
    raw_server,
    run_until_ready,
    text,
    unfenced,
)

pytestmark = pytest.mark.anyio

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


@pytest.fixture(scope="module")
async def shared_stage(
    tmp_path_factory: pytest.TempPathFactory, image: str
) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path_factory.mktemp("stage"), image) as stage:
        stage.add_agent("echo", {"text": "you said: {last_user_text}"})
        stage.add_agent("counter", {"text": '{"n": "three"}'}, output_schema=NUMBER, retries=0)
        stage.add_agent(
            "reader",
            {"tool": "Bash", "input": {"command": "cat /workspace/note.txt"}},
            {"text": "it says: {last_tool_result}"},
            permissions={"allow": ["Bash"]},
        )
        stage.add_agent("theirs", {"text": "hello, other"}, allowed_callers=["other"])
        yield stage


@pytest.fixture(scope="module", params=ERAS)
async def client(shared_stage: Stage, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """One server for all tests that leave it as it was."""
    async with Client(shared_stage.server(), mode=request.param) as client:
        yield client


once = pytest.mark.parametrize("client", ERAS[:1], indirect=True)
"""For what has been shown to be the same in both eras, and takes a run to show again."""


# What can be asked, and what comes back


async def test_tools_and_prompt_tell_of_the_agents_that_this_caller_may_run(client: Client) -> None:
    told = await descriptions(client)
    assert list(told) == TOOLS
    listed = (
        "\nAgents:\n- counter: What counter does\n- echo: What echo does"
        "\n- reader: What reader does"
    )
    assert told["run_subagent"].endswith(listed)
    assert told["delegate_task"].endswith(listed)

    result = await call(client, "list_agents")
    assert result.structured_content == {
        "agents": [
            {"name": name, "description": f"What {name} does"}
            for name in ("counter", "echo", "reader")
        ]
    }
    prompt = str((await client.get_prompt("subagents")).messages[0].content)
    assert "- **echo**: What echo does" in prompt
    assert "theirs" not in prompt


async def test_a_run_returns_an_envelope_and_speaks_all_along(client: Client) -> None:
    said: list[tuple[float, str]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        said.append((progress, message or ""))

    arguments = {"agent_name": "echo", "prompt": "good morning", "context": "it is late"}
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool("run_subagent", arguments, progress_callback=tell)

    envelope = result.structured_content
    assert envelope is not None
    answer = "you said: Context:\nit is late\n\nTask:\ngood morning"
    assert not result.is_error
    assert text(result) == envelope["result"] == answer
    assert (envelope["agent"], envelope["caller"]) == ("echo", "main")
    assert (envelope["status"], envelope["reason"]) == ("completed", "ok")
    assert envelope["run_id"].startswith("r")
    assert envelope["duration_ms"] > 0
    assert envelope["scripted"] is True
    assert envelope["cost_usd"] == 0, "a script costs nothing"
    counts = [count for count, _ in said]
    assert counts == sorted(set(counts))
    # Where a run is slow, what happened last is said again meanwhile.
    kinds = [kind for kind, _ in groupby(message.partition(":")[0] for _, message in said)]
    assert kinds[:4] == ["queued", "starting", "started", "ready"]
    assert "model" in kinds


async def test_a_call_that_waits_for_the_agent_image_hears_how_far_it_is(stage: Stage) -> None:
    stage.add_agent("echo", {"text": "hello"})
    heard = anyio.Event()

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if message == f"image: pulling {base}":
            heard.set()

    async def answer_late(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.wait()
        writer.close()

    async with await asyncio.start_server(answer_late, "127.0.0.1", 0) as registry:
        base = f"127.0.0.1:{registry.sockets[0].getsockname()[1]}/nothing:1"
        server = stage.server(ORCHESTRATOR_AGENT_IMAGE="", ORCHESTRATOR_BASE_IMAGE=base)
        with anyio.fail_after(PATIENCE):
            async with Client(server) as client:
                arguments = {"agent_name": "echo", "prompt": "good morning"}
                result = await client.call_tool("run_subagent", arguments, progress_callback=tell)
    assert heard.is_set()
    assert f"{base} is not on the engine and cannot be pulled" in text(result)


async def test_a_client_that_waits_hears_something_though_nothing_happens(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_waiting, "HEARTBEAT_SECONDS", 0.05)
    stage.add_agent("slow", FOR_EVER)
    said: list[str] = []
    again = anyio.Event()

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if message is not None and message.startswith("ready") and message in said:
            again.set()
        said.append(message or "")

    arguments = {"agent_name": "slow", "prompt": "hi"}
    async with open_orchestrator(stage.settings) as service, Tasks(service) as runs:
        server, _ = build_server(service, runs, lambda: "main", stage.settings)
        async with Client(server) as client, anyio.create_task_group() as tasks:
            waits = partial(client.call_tool, "run_subagent", arguments, progress_callback=tell)
            tasks.start_soon(waits)
            with anyio.fail_after(PATIENCE):
                await again.wait()
            tasks.cancel_scope.cancel()


@once
async def test_a_failed_run_is_an_error_whose_text_holds_all_that_helps(client: Client) -> None:
    result = await call(client, "run_subagent", agent_name="counter", prompt="count")

    envelope = result.structured_content
    assert result.is_error
    assert envelope is not None
    assert (envelope["status"], envelope["reason"]) == ("failed", "invalid_output")
    told = text(result)
    assert told.startswith("counter failed (invalid_output):\n> ")
    assert "schema errors:\n> /n: 'three' is not of type 'integer'" in told
    assert 'what it had said last:\n> {"n": "three"}' in told
    assert "what happened last:\n" in told
    took = f"{envelope['duration_ms'] / 1000:.1f} s, 1 turn, 1 request"
    assert f"run_id {envelope['run_id']}, {took}, 100 tokens in and 20 out, model claude-" in told
    assert "cost $0 (a script" in told


@once
async def test_an_agent_is_shown_a_directory_below_an_allowed_root(
    client: Client, shared_stage: Stage, tmp_path: Path
) -> None:
    folder = shared_stage.work / tmp_path.name
    folder.mkdir()
    (folder / "note.txt").write_text("water the plants")
    link = tmp_path / "link"
    link.symlink_to(folder)

    result = await call(
        client, "delegate_task", agent="reader", task="read it", working_directory=str(link)
    )

    assert text(result) == "it says: water the plants"


async def test_no_agent_is_shown_any_other_path(
    client: Client, shared_stage: Stage, tmp_path: Path
) -> None:
    link = shared_stage.work / f"link-{tmp_path.name}"
    link.symlink_to(tmp_path)
    file = shared_stage.work / f"file-{tmp_path.name}"
    file.touch()
    refused = {
        "": "working_directory is empty",
        "work": "'work' is not an absolute path",
        "../work": "'../work' is not an absolute path",
        "/tmp\0": "is not an absolute path",
        "/": "is the whole machine",
        "/etc": "belongs to the system",
        str(shared_stage.work / "nowhere"): "does not exist",
        str(file): "is not a directory",
        str(tmp_path): "is outside the allowed roots",
        str(link): f"{link} (which is {tmp_path}) is outside the allowed roots",
        str(shared_stage.state): "which no agent may see",
        f"{shared_stage.work}/../../..": "which no agent may see",
    }
    for path, why in refused.items():
        result = await call(
            client, "delegate_task", agent="reader", task="read it", working_directory=path
        )
        assert result.is_error, path
        assert why in text(result)


async def test_an_agent_that_is_not_there_or_not_for_this_caller_is_refused(client: Client) -> None:
    missing = await call(client, "run_subagent", agent_name="ecko", prompt="hi")
    assert missing.is_error
    assert text(missing) == ("no agent 'ecko'; known: counter, echo, reader (did you mean 'echo'?)")
    assert missing.structured_content == {
        "error": {"code": "agent_not_found", "message": text(missing)}
    }

    refused = await call(client, "run_subagent", agent_name="theirs", prompt="hi")
    assert refused.is_error
    assert "agent 'theirs' does not allow caller 'main'" in text(refused)


async def test_arguments_that_nobody_understands_are_an_error(client: Client) -> None:
    good = {"agent_name": "echo", "prompt": "hi"}
    wrong: dict[str, dict[str, object]] = {
        "there is no argument working_directory": {**good, "working_directory": "/x"},
        "prompt is missing": {"agent_name": "echo"},
        "prompt must be text": {**good, "prompt": 7},
        "prompt must not be empty": {**good, "prompt": ""},
    }
    for why, arguments in wrong.items():
        result = await call(client, "run_subagent", **arguments)
        assert result.is_error
        assert why in text(result)
    left_out = {"context": None, "workspace": None}
    result = await call(client, "run_subagent", **good, **left_out)
    assert text(result) == "you said: hi"


async def test_the_caller_is_whoever_the_entry_says(shared_stage: Stage) -> None:
    server = shared_stage.server(ORCHESTRATOR_CALLER="other")
    async with Client(server) as client:
        assert (await descriptions(client))["run_subagent"].endswith(
            "\nAgents:\n- theirs: What theirs does"
        )
        welcome = await call(client, "run_subagent", agent_name="theirs", prompt="hi")
        assert text(welcome) == "hello, other"
        refused = await call(client, "run_subagent", agent_name="echo", prompt="hi")
        assert "agent 'echo' does not allow caller 'other'" in text(refused)
        unknown = await call(client, "run_subagent", agent_name="nobody", prompt="hi")
        assert text(unknown) == "no agent 'nobody'; known: theirs"


# Changes


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_hears_of_agents_that_come_change_and_break(stage: Stage, era: str) -> None:
    notices = Notices()
    async with (
        Client(stage.server(), mode=era, message_handler=notices.handler) as client,
        notices.listening(client, era) as changed,
    ):
        assert (await descriptions(client))["run_subagent"].endswith("(none yet)")

        stage.add_agent("fresh", {"text": "hi"})
        await changed()
        assert "- fresh: What fresh does" in (await descriptions(client))["run_subagent"]

        stage.add_agent("fresh", {"text": "hi"}, description="Better than before")
        await changed()
        assert "- fresh: Better than before" in (await descriptions(client))["run_subagent"]

        stage.write_agent("fresh", "---\nname: [\n---\n")
        await changed()
        assert (await descriptions(client))["run_subagent"].endswith("(none yet)")
        broken = await call(client, "run_subagent", agent_name="fresh", prompt="hi")
        assert "agent 'fresh' cannot be used" in text(broken)


# Endings


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_the_client_cancels_ends_the_run(stage: Stage, era: str) -> None:
    stage.add_agent("slow", FOR_EVER)
    async with Client(stage.server(), mode=era) as client:
        ready = anyio.Event()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run_until_ready, client, "slow", ready)
                await ready.wait()
                assert len(await stage.containers()) == 1
                tasks.cancel_scope.cancel()

        await stage.has_containers(0)
        await stage.has_runs(("slow", "cancelled", "cancelled"))
        assert (await call(client, "list_agents")).structured_content


async def test_cancelling_requests_that_have_been_answered_ends_nothing(stage: Stage) -> None:
    """As opencode 1.18 does with each of its requests; also with the one whose run is handed over
    and goes on.
    """
    asks = {"tool": "mcp__parent__ask_parent", "input": {"question": "Which colour?"}}
    stage.add_agent("asker", asks, {"text": "it is {last_tool_result}"}, ask="parent")
    async with raw_server(stage, ORCHESTRATOR_WINDOW_SECONDS="0.01") as server:

        async def ask(tool: str, **arguments: object) -> Message:
            number = await server.send("tools/call", {"name": tool, "arguments": arguments})
            answer = await server.until(lambda message: message.get("id") == number)
            for answered in (begins, number):
                cancelled = {"requestId": answered, "reason": "AbortError"}
                await server.send("notifications/cancelled", cancelled)
            found: Message = answer["result"]["structuredContent"]
            return found

        await server.initialize("2025-11-25")
        begins = 2  # the request that begins the run, after the greeting
        begun = await ask("run_subagent", agent_name="asker", prompt="go")
        assert begun["status"] in ("pending", "running")  # handed over: its window was short
        run_id = begun["run_id"]
        while begun["status"] in ("pending", "running"):  # as soon as its short window lets it
            (begun,) = (await ask("wait_for_tasks", task_ids=[run_id]))["tasks"]
        message = begun["questions"][0]["message_id"]
        await ask("reply_subagent", run_id=run_id, message_id=message, answer="blue")
        while begun["status"] != "completed":
            begun = await ask("get_task_details", task_id=run_id)
        assert begun["result"] == "it is blue"
        await server.stdin.aclose()

    assert server.process.returncode == 0
    assert stage.runs() == [("asker", "completed", "ok")]
    assert stage.stderr.read_text() == ""


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("stdin ends", "the client went away"),
        ("the client is gone", "the client went away"),
        ("SIGTERM", "the orchestrator was stopped"),
        ("SIGINT", "the orchestrator was stopped"),
    ],
)
async def test_a_server_that_is_left_or_told_to_stop_ends_its_runs_first_and_says_why(
    stage: Stage, how: str, why: str
) -> None:
    stage.add_agent("slow", FOR_EVER)
    async with raw_server(stage) as server:
        await server.initialize()
        await server.start_run("slow")
        assert len(await stage.containers()) == 1
        if how == "stdin ends":
            await server.stdin.aclose()
        elif how == "the client is gone":
            await server.stdin.aclose()
            await server.stdout.aclose()
        else:
            server.process.send_signal(signal.Signals[how])

    assert server.process.returncode == 0
    assert await stage.containers() == []
    assert stage.runs() == [("slow", "cancelled", "cancelled")]
    assert stage.messages() == [why]
    assert stage.stderr.read_text() == ""


async def test_a_server_that_is_killed_leaves_no_container(stage: Stage) -> None:
    stage.add_agent("slow", FOR_EVER)
    async with raw_server(stage) as server:
        await server.initialize()
        await server.start_run("slow")
        assert len(await stage.containers()) == 1
        server.process.kill()

    await stage.has_containers(0)


# The wire itself


async def test_the_oldest_protocol_is_spoken_and_stdout_holds_nothing_else(stage: Stage) -> None:
    stage.add_agent("echo", {"text": "you said: {last_user_text}"})
    async with raw_server(stage) as server:
        hello = await server.initialize("2024-11-05")
        assert hello["protocolVersion"] == "2024-11-05"
        assert hello["capabilities"]["tools"] == {"listChanged": True}
        assert hello["serverInfo"]["name"] == "subagent-orchestrator"
        tools = (await server.ask("tools/list"))["tools"]
        assert [tool["name"] for tool in tools] == TOOLS

        number = await server.start_run("echo")
        answer = await server.until(lambda message: message.get("id") == number)
        said, closing = answer["result"]["content"]
        assert unfenced(said["text"]) == "you said: go"
        assert closing["text"].startswith("(completed, run_id r")
        assert answer["result"]["isError"] is False

        await server.stdin.aclose()
        assert await server.rest() == []

    assert server.process.returncode == 0
    assert stage.stderr.read_text() == ""
