"""An orchestrator elsewhere, in a process with a state of its own, and a directory here."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.abc
import mcp.types as t
import pytest
from mcp import Client, StdioServerParameters

from orchestrator.client import open_client
from orchestrator.surfaces.cli.main import main
from tests.surfaces.mcp.mcp_stage import (
    COMMAND,
    ERAS,
    FOR_EVER,
    PATIENCE,
    TOOLS,
    Stage,
    call,
    on_stage,
    run_until_ready,
    text,
)

TOKEN = "a-token-for-main-0123"

CHANGES = "cat colour.txt; echo green > colour.txt; echo new > made.txt"


@pytest.fixture(scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path_factory.mktemp("stage"), image) as stage:
        stage.env["ORCHESTRATOR_HTTP_TOKENS"] = f"main={TOKEN},other=a-token-for-other-4567"
        bash = {"tool": "Bash", "input": {"command": CHANGES}}
        stage.add_agent(
            *("painter", bash, {"text": "Done: {last_tool_result}"}),
            permissions={"allow": ["Bash"]},
            workspace="rw",
        )
        ask = {"tool": "mcp__parent__ask_parent", "input": {"question": "Which colour?"}}
        stage.add_agent("asker", ask, {"text": "Thank you: {last_tool_result}"}, ask="user")
        echo = {"tool": "Bash", "input": {"command": "echo blue"}}
        stage.add_agent(
            *("careful", echo, {"text": "So: {last_tool_result}"}),
            permissions={"allow": ["Bash"]},
            approval={"Bash": "ask"},
        )
        stage.add_agent("slow", FOR_EVER)
        yield stage


@asynccontextmanager
async def server_at(stage: Stage, port: int) -> AsyncIterator[anyio.abc.Process]:
    """A server at this port; told to stop when the block ends, unless it has been killed."""
    with stage.stderr.open("wb") as stderr:
        process = await anyio.open_process(
            [COMMAND, "serve", "--http", f"127.0.0.1:{port}"],
            env=stage.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        async with process:
            with anyio.fail_after(PATIENCE):
                while b"listening on" not in stage.stderr.read_bytes():
                    assert process.returncode is None, stage.stderr.read_text()
                    await anyio.sleep(0.05)
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.terminate()
                with anyio.CancelScope(shield=True):
                    await process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
async def url(stage: Stage) -> AsyncIterator[str]:
    port = free_port()
    async with server_at(stage, port):
        yield f"http://127.0.0.1:{port}"


class Here:
    """This machine: a directory, and a state that is not the server's."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "project"
        self.work.mkdir()
        (self.work / "colour.txt").write_text("blue\n")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("ORCHESTRATOR_")}
        self.env = kept | {
            "ORCHESTRATOR_TOKEN": TOKEN,
            "ORCHESTRATOR_STATE_DIR": str(folder / "state"),
            "ORCHESTRATOR_ALLOWED_ROOTS": str(folder),
        }

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.work.iterdir()}

    def connecting(self, url: str) -> StdioServerParameters:
        return StdioServerParameters(command=COMMAND, args=["connect", url], env=self.env)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


class Done(NamedTuple):
    code: object
    out: str
    err: str


Typed = Callable[..., Done]


@pytest.fixture
def typed(
    url: str, here: Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """A command, in this process, for the server elsewhere."""
    for name in [name for name in os.environ if name.startswith("ORCHESTRATOR_")]:
        monkeypatch.delenv(name)
    for name, value in here.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(here.work)

    def command(*args: str) -> Done:
        with pytest.raises(SystemExit) as exit_:
            main([*args, "--server", url])
        return Done(exit_.value.code, *capsys.readouterr())

    return command


NEW = {"colour.txt": "green\n", "made.txt": "new\n"}


@pytest.mark.parametrize("era", ERAS)
async def test_an_agent_there_works_on_a_directory_here(
    era: Any, stage: Stage, url: str, here: Here
) -> None:
    told: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with Client(here.connecting(url), mode=era) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
        asked = {"agent_name": "painter", "prompt": "go", "workspace": str(here.work)}
        ran = await client.call_tool("run_subagent", asked, progress_callback=hear)
        assert isinstance(ran, t.CallToolResult)
        assert "blue" in text(ran)
        assert ran.structured_content is not None
        run_id = ran.structured_content["run_id"]
        assert here.files() == {"colour.txt": "blue\n"}
        looked = await call(client, "apply_changes", run_id=run_id, dry_run=True)
        assert "made.txt" in text(looked)
        assert here.files() == {"colour.txt": "blue\n"}
        done = await call(client, "apply_changes", run_id=run_id)
        assert (done.is_error, here.files()) == (False, NEW)
        again = await call(client, "apply_changes", run_id=run_id)
        assert "like that already" in text(again)
        gone = await call(client, "run_subagent", **{**asked, "workspace": "/no/such/place"})
        assert gone.is_error
        assert "does not exist" in text(gone)
    assert any(line.startswith("packing") for line in told)
    assert any(line.startswith("ended") for line in told)
    left = [path for path in (stage.state / "uploads").rglob("*") if path.is_file()]
    assert left == []  # connect has had it removed


@pytest.mark.usefixtures("anyio_backend")
def test_commands_ask_the_server_and_change_the_directory_here(here: Here, typed: Typed) -> None:
    ran = typed("run", "painter", "go", "--workspace", str(here.work), "--json")
    assert ran.code == 0, ran.err
    result = json.loads(ran.out)
    run_id, files = result["run_id"], [file["path"] for file in result["changed_files"]]
    assert (result["status"], files) == ("completed", ["colour.txt", "made.txt"])
    assert "ended       completed" in ran.err
    commands = {
        ("show", run_id[:6]): "changed   M  colour.txt",
        ("show", "last", "--patch"): "+green",
        ("logs", run_id): "ended       completed",
        ("logs", run_id, "-f"): "ended       completed",
        ("runs",): run_id,
        ("wait", run_id): "painter completed",
        ("cancel", run_id): "painter completed",
        ("pending",): "nothing waits for you at",
        ("cost",): "painter",
        ("audit", "--run", run_id): "allowed",
        ("agents", "list"): "painter",
        ("agents", "show", "painter"): "What painter does",
        ("plan", "painter"): "tools allowed  Bash",
        ("apply", run_id, "--dry-run"): "M  colour.txt",
    }
    for command, expected in commands.items():
        done = typed(*command)
        assert expected in done.out, (command, done)
        assert done.code == 0
    assert here.files() == {"colour.txt": "blue\n"}
    part = typed("apply", run_id, "made.txt")
    assert (part.code, here.files()) == (0, {"colour.txt": "blue\n", "made.txt": "new\n"})
    (here.work / "colour.txt").write_text("red\n")
    moved = typed("apply", run_id)
    assert (moved.code, here.files()["colour.txt"]) == (5, "red\n")
    assert "has changed since" in moved.err
    (here.work / "colour.txt").write_text("blue\n")
    assert (typed("apply", run_id)).code == 0
    assert here.files() == NEW
    refused = {
        ("show", "rffff"): 5,
        ("run", "nobody", "go"): 5,
        ("reply", run_id, "m1", "blue"): 5,
        ("approve", run_id, "c1"): 5,
        ("resume", run_id, "more"): 5,
        ("run", "painter", "go", "--caller", "other"): 2,
    }
    for command, code in refused.items():
        done = typed(*command)
        assert (done.code, "error: " in done.err) == (code, True), (command, done)


@pytest.mark.usefixtures("anyio_backend")
def test_what_waits_there_is_answered_and_decided_here(url: str, typed: Typed) -> None:
    async def start(agent: str) -> str:
        async with open_client(url, TOKEN) as client:
            return (await client.start(agent, "go")).run_id

    run_id = anyio.run(start, "asker")
    assert typed("wait", run_id).code == 10
    assert "Which colour?" in typed("pending").out
    assert typed("reply", "green").code == 0
    assert typed("wait", run_id).code == 0
    assert "green" in typed("show", run_id).out
    for word, expected in {"approve": "blue", "reject": "not now"}.items():
        run_id = anyio.run(start, "careful")
        assert typed("wait", run_id).code == 10
        why = ("--why", "not now") if word == "reject" else ()
        decided = typed(word, run_id, "--all", *why)
        assert (decided.code, "Bash" in decided.out) == (0, True), decided
        assert typed("wait", run_id).code == 0
        assert expected in typed("show", run_id).out


async def test_a_question_is_a_form_for_the_person_here(url: str, here: Here) -> None:
    async def fill_in(context: Any, params: Any) -> t.ElicitResult:
        assert "Which colour?" in params.message
        (field,) = params.requested_schema["properties"]
        return t.ElicitResult(action="accept", content={field: "mauve"})

    for era in ERAS:
        mode: Any = era
        async with Client(here.connecting(url), mode=mode, elicitation_callback=fill_in) as client:
            ran = await call(client, "run_subagent", agent_name="asker", prompt="go")
        assert "mauve" in text(ran), era


async def test_a_client_that_leaves_ends_its_run_there(stage: Stage, url: str, here: Here) -> None:
    for era in ERAS:
        mode: Any = era
        client, ready = Client(here.connecting(url), mode=mode), anyio.Event()
        async with client, anyio.create_task_group() as group:
            group.start_soon(run_until_ready, client, "slow", ready)
            with anyio.fail_after(PATIENCE):
                await ready.wait()
            group.cancel_scope.cancel()
        await stage.has_containers(0)
        with anyio.fail_after(PATIENCE):  # its container goes first
            while stage.runs()[-1] != ("slow", "cancelled", "cancelled"):
                await anyio.sleep(0.02)


async def test_a_killed_server_is_waited_for_and_its_run_is_found_again(
    stage: Stage, here: Here
) -> None:
    port = free_port()
    answers: dict[str, t.CallToolResult] = {}
    url = f"http://127.0.0.1:{port}"

    async def ask(client: Client, era: str, ready: anyio.Event) -> None:
        async def tell(progress: float, total: float | None, message: str | None) -> None:
            if (message or "").startswith("ready"):
                ready.set()

        asked = {"agent_name": "slow", "prompt": f"in {era}"}
        answer = await client.call_tool("run_subagent", asked, progress_callback=tell)
        assert isinstance(answer, t.CallToolResult)
        answers[era] = answer

    async with (
        server_at(stage, port) as first,
        Client(here.connecting(url), mode="auto") as modern,
        Client(here.connecting(url), mode="legacy") as legacy,
        anyio.create_task_group() as group,
    ):
        for era, client in {"auto": modern, "legacy": legacy}.items():
            ready = anyio.Event()
            group.start_soon(ask, client, era, ready)
            with anyio.fail_after(PATIENCE):
                await ready.wait()
        first.send_signal(signal.SIGKILL)
        await first.wait()
        async with server_at(stage, port):
            with anyio.fail_after(PATIENCE):
                while len(answers) < 2:
                    await anyio.sleep(0.05)
                assert len((await legacy.list_tools()).tools) == len(TOOLS)
    for era, answer in answers.items():
        assert answer.structured_content is not None
        found = answer.structured_content
        assert (found["status"], found["reason"]) == ("failed", "orchestrator_lost"), era
    lost = [run for run in stage.runs() if run == ("slow", "failed", "orchestrator_lost")]
    assert len(lost) == 2  # no run was begun twice


async def test_what_is_wrong_is_told_without_the_token(here: Here, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    token_file.chmod(0o644)
    tries: dict[tuple[str, ...], tuple[dict[str, str], str]] = {
        ("connect", "http://example.org"): ({}, "not encrypted"),
        ("connect", f"http://main:{TOKEN}@127.0.0.1:1"): ({}, "must not hold"),
        ("connect",): ({}, "which orchestrator"),
        ("connect", "http://127.0.0.1:1"): (
            {"ORCHESTRATOR_TOKEN": "", "ORCHESTRATOR_TOKEN_FILE": str(token_file)},
            "chmod 600",
        ),
        ("runs", "--server", "http://127.0.0.1:1"): ({}, "does not answer"),
    }
    for args, (env, why) in tries.items():
        done = await anyio.run_process(
            [COMMAND, *args], env=here.env | env, check=False, stdin=subprocess.DEVNULL
        )
        said = (done.stdout + done.stderr).decode()
        assert done.returncode == 4, (args, said)
        assert why in said
        assert TOKEN not in said
        assert not re.search("Traceback", said)
