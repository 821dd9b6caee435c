"""A server of ours on stage: agents with their scripts, state of its own, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import mcp.types as t
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, StdioServerParameters

from orchestrator.app import open_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.settings import Settings, read_settings
from tests.image_looks import remembered_looks

PATIENCE = 120
"""For anything at all; the machine may be busy."""

LEAVE_SECONDS = 30.0
"""For processes and containers to end whose client has ended."""

LEAVE_LOOK_SECONDS = 0.1

LINE_BYTES = 4 * 1024 * 1024

COMMAND = str(Path(sys.executable).with_name("orchestrator"))

ERAS = ("auto", "legacy")
"""The protocol of 2026-07-28, and the handshake of the years before."""

FOR_EVER = {"text": "too late", "delay_seconds": 3600}
"""A model that does not answer: whoever asked can only be cancelled."""

NOT_OURS = ("ANTHROPIC_", "CLAUDE", "ORCHESTRATOR_")
"""Variables of whoever runs the tests that a server on stage does not get."""

TOOLS = [
    *("list_agents", "run_subagent", "delegate_task", "apply_changes"),
    *("run_subagents", "wait_for_tasks", "get_all_tasks", "get_task_details", "get_logs"),
    *("cancel_task", "reply_subagent", "resume_subagent_task"),
]
"""What a server offers unless somebody asks for more."""

Message = dict[str, Any]


class Stage:
    """Folders and an environment for servers of one test; the engine knows them by their state."""

    def __init__(self, folder: Path, image: str) -> None:
        self.runtime: DockerRuntime | None = None
        self.agents = folder / "agents"
        self.work = folder / "work"
        self.state = folder / "state"
        self.stderr = folder / "stderr"
        self.work.mkdir()
        self.agents.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(NOT_OURS)}
        self.env = kept | {
            "ORCHESTRATOR_SCRIPTED": "1",
            "ORCHESTRATOR_AGENT_IMAGE": image,
            "ORCHESTRATOR_AGENTS_DIR": str(self.agents),
            "ORCHESTRATOR_STATE_DIR": str(self.state),
            "ORCHESTRATOR_TRUSTED": str(folder),
            "ORCHESTRATOR_ALLOWED_ROOTS": str(self.work),
        }
        self.settings: Settings = read_settings(self.env)

    def add_agent(self, name: str, *steps: object, **fields: object) -> None:
        """Write it, or write it anew; the script first, since agent.md is what a server sees."""
        folder = self.agents / name
        folder.mkdir(exist_ok=True)
        (folder / "script.yaml").write_text(json.dumps({"steps": steps}))
        front = {"name": name, "description": f"What {name} does", **fields}
        lines = [f"{key}: {json.dumps(value)}" for key, value in front.items()]
        self.write_agent(name, "\n".join(("---", *lines, "---", "Do it.", "")))

    def write_agent(self, name: str, text: str) -> None:
        """All of agent.md at once: nobody sees half of it."""
        path = self.agents / name / "agent.md"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").replace(path)

    def server(self, *args: str, **env: str) -> StdioServerParameters:
        return StdioServerParameters(command=COMMAND, args=["serve", *args], env=self.env | env)

    async def containers(self) -> list[str]:
        assert self.runtime is not None
        return [info.name for info in await self.runtime.list()]

    async def has_containers(self, count: int) -> None:
        """Wait until so many are running, or until there is none at all."""
        assert self.runtime is not None
        with anyio.fail_after(PATIENCE):
            while True:
                found = await self.runtime.list()
                running = [info for info in found if info.status == "running"]
                if len(running) == count and (count or not found):
                    return
                await anyio.sleep(0.05)

    def runs(self) -> list[tuple[str, str, str]]:
        """Agent, status and reason of every run in the store, the oldest first."""
        db = sqlite3.connect(self.state / "runs.sqlite")
        try:
            sql = "SELECT agent, status, reason FROM runs ORDER BY created"
            return db.execute(sql).fetchall()
        finally:
            db.close()

    def messages(self) -> list[str]:
        """What the results in the store say to people, the oldest first."""
        db = sqlite3.connect(self.state / "runs.sqlite")
        try:
            sql = "SELECT json_extract(result, '$.message') FROM runs ORDER BY created"
            return [message for (message,) in db.execute(sql)]
        finally:
            db.close()

    async def has_runs(self, *rows: tuple[str, str, str]) -> None:
        """Wait until the store says so."""
        with anyio.fail_after(PATIENCE):
            while sorted(self.runs()) != sorted(rows):
                await anyio.sleep(0.05)

    def processes(self) -> list[str]:
        """What still runs in our environment, children of children too."""
        mark = f"ORCHESTRATOR_STATE_DIR={self.state}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append((process / "cmdline").read_bytes().decode())
            except OSError:  # it has just ended, or is not ours to look at
                continue
        return found


@asynccontextmanager
async def on_stage(folder: Path, image: str) -> AsyncIterator[Stage]:
    """A stage that must be left as it was found: no container, no process."""
    stage = Stage(folder, image)
    with remembered_looks(stage.state):
        async with open_runtime(stage.settings, reap=False) as stage.runtime:
            yield stage
            with anyio.move_on_after(LEAVE_SECONDS):  # what a client left behind is still ending
                while stage.processes() or await stage.containers():
                    await anyio.sleep(LEAVE_LOOK_SECONDS)
            assert stage.processes() == []
            assert await stage.containers() == []


class Raw:
    """`orchestrator serve` and its pipes, without any SDK in between."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin = process.stdin
        self.stdout = BufferedByteReceiveStream(process.stdout)
        self._next_id = 0

    async def send(self, method: str, params: Message | None = None) -> int:
        """Send a request; for `notifications/...`, a notification."""
        message: Message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not method.startswith("notifications/"):
            self._next_id += 1
            message["id"] = self._next_id
        await self.stdin.send(json.dumps(message).encode() + b"\n")
        return self._next_id

    async def receive(self) -> Message:
        """The next line, which is JSON-RPC or a fault of ours."""
        line = await self.stdout.receive_until(b"\n", LINE_BYTES)
        message = json.loads(line)
        assert isinstance(message, dict)
        assert message["jsonrpc"] == "2.0"
        assert "method" in message or "id" in message
        return message

    async def until(self, wanted: Callable[[Message], bool]) -> Message:
        while True:
            message = await self.receive()
            if wanted(message):
                return message

    async def ask(self, method: str, params: Message | None = None) -> Message:
        """What a request is answered with."""
        number = await self.send(method, params)
        answer = await self.until(lambda message: message.get("id") == number)
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    async def initialize(self, version: str = "2024-11-05") -> Message:
        hello = {"protocolVersion": version, "capabilities": {}}
        client = {"clientInfo": {"name": "raw", "version": "1"}}
        result = await self.ask("initialize", {**hello, **client})
        await self.send("notifications/initialized")
        return result

    async def start_run(self, agent: str) -> int:
        """Call run_subagent, and come back when the agent's CLI is at work."""
        arguments = {"agent_name": agent, "prompt": "go"}
        meta = {"progressToken": "p"}
        params = {"name": "run_subagent", "arguments": arguments, "_meta": meta}
        number = await self.send("tools/call", params)
        await self.until(lambda message: "ready: " in str(message.get("params")))
        return number

    async def rest(self) -> list[Message]:
        """What else is said until stdout ends."""
        messages = []
        while True:
            try:
                messages.append(await self.receive())
            except (anyio.EndOfStream, anyio.IncompleteRead):
                return messages


@asynccontextmanager
async def raw_server(stage: Stage, *args: str, **env: str) -> AsyncIterator[Raw]:
    """A server that the block has to bring to an end; its stderr is in `stage.stderr`."""
    with stage.stderr.open("wb") as stderr, anyio.fail_after(PATIENCE):
        async with await anyio.open_process(
            [COMMAND, "serve", *args], env=stage.env | env, stderr=stderr
        ) as process:
            yield Raw(process)
            await process.wait()


LISTENING = re.compile(r"^listening on (\S+)\n", re.MULTILINE)


@asynccontextmanager
async def http_server(
    stage: Stage, command: str = "serve", **env: str
) -> AsyncIterator[tuple[anyio.abc.Process, str]]:
    """A server on a free port of the loopback, and its URL; told to stop when the block ends."""
    with stage.stderr.open("wb") as stderr:
        async with await anyio.open_process(
            [COMMAND, command, "--http", "127.0.0.1:0"],
            env=stage.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        ) as process:
            with anyio.fail_after(PATIENCE):
                while not (said := LISTENING.search(stage.stderr.read_text())):
                    assert process.returncode is None
                    await anyio.sleep(0.05)
            try:
                yield process, said[1]
            finally:  # a test that fails would wait for it otherwise
                if process.returncode is None:
                    process.terminate()
            with anyio.fail_after(PATIENCE):
                assert await process.wait() == 0


async def call(client: Client, tool: str, **arguments: object) -> t.CallToolResult:
    with anyio.fail_after(PATIENCE):
        result = await client.call_tool(tool, arguments)
    assert isinstance(result, t.CallToolResult)
    return result


def text(result: t.CallToolResult) -> str:
    """All the text of a result, without the fences around answers and what they took."""
    return unfenced(re.sub(r"\n\(completed, run_id [^\n]*\)$", "", whole_text(result)))


def whole_text(result: t.CallToolResult) -> str:
    """What a client reads that shows its model no structured content."""
    return "\n".join(item.text for item in result.content if isinstance(item, t.TextContent))


def unfenced(said: str) -> str:
    """The same with the answers alone."""
    return re.sub(r"<(answer-\w+) [^\n]*>\n(.*?)\n</\1>", r"\2", said, flags=re.DOTALL)


async def descriptions(client: Client) -> dict[str, str]:
    with anyio.fail_after(PATIENCE):
        return {tool.name: tool.description or "" for tool in (await client.list_tools()).tools}


class Notices:
    """Hears `tools/list_changed` as a client of its era does."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[None](100)

    async def handler(self, message: object) -> None:
        """For `Client(message_handler=...)`: the handshake era's way."""
        if isinstance(message, t.ToolListChangedNotification):
            self._send.send_nowait(None)

    @asynccontextmanager
    async def listening(self, client: Client, era: str) -> AsyncIterator[Callable[[], Any]]:
        """What to await for the next notice."""
        with self._send, self._receive, anyio.fail_after(PATIENCE):
            if era == "legacy":
                yield self._receive.receive
            else:
                async with client.listen(tools_list_changed=True) as subscription:
                    yield subscription.__aiter__().__anext__


async def run_until_ready(client: Client, agent: str, ready: anyio.Event) -> None:
    """Call run_subagent and set the event when the agent's CLI is at work."""

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        if (message or "").startswith("ready"):
            ready.set()

    arguments = {"agent_name": agent, "prompt": "go"}
    await client.call_tool("run_subagent", arguments, progress_callback=tell)
