"""How `orchestrator serve` begins and ends on stdin and stdout, without a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE, Message

HEAVY = (
    *("typer", "docker", "jsonschema", "httpx", "tenacity"),
    *("orchestrator.app", "orchestrator.engine.service", "orchestrator.engine.tasks.tasks"),
    *("orchestrator.gateway.model.access", "orchestrator.gateway.tools.access"),
)
"""What no greeting needs."""

GREETED = f"""
import sys

import anyio
from mcp import Client

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp import late_service
from orchestrator.surfaces.mcp.transports.served import orchestrator_served

late_service.LISTED_SECONDS = late_service.UNASKED_SECONDS = {PATIENCE}

async def main(era):
    async with orchestrator_served(read_settings(), lambda: "main", {{}}) as served:
        async with Client(served.server, mode=era) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert "run_subagent" in tools, tools
            loaded = [name for name in {HEAVY} if name in sys.modules]
            assert not loaded, loaded
            answer = await client.call_tool("get_all_tasks", {{}})
            assert answer.structured_content == {{"tasks": []}}, answer
            assert "orchestrator.engine.service" in sys.modules

anyio.run(main, sys.argv[1])
"""

BESIDE = """
import sys
from contextlib import asynccontextmanager

import anyio
from mcp.server import MCPServer

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.transports.served import Served
from orchestrator.surfaces.mcp.transports.stdio import serve

async def beside():
    print("at work", file=sys.stderr, flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.2)
        print("stopped", file=sys.stderr, flush=True)

@asynccontextmanager
async def opened(*_):
    yield Served(MCPServer("x"), (beside,), lambda _: None, lambda *_: None)
    print("closed", file=sys.stderr, flush=True)

anyio.run(serve, read_settings(), opened)
"""


class Started:
    """A Python with a state directory of its own, and lines to and from it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    def send(self, *messages: Message) -> None:
        """All of them at once."""
        self.stdin.write("".join(json.dumps({"jsonrpc": "2.0", **m}) + "\n" for m in messages))
        self.stdin.flush()

    def answer(self, number: int) -> Message:
        """The answer to a request; others before it are dropped."""
        while True:
            message = json.loads(self.stdout.readline())
            if message.get("id") == number:
                assert isinstance(message, dict)
                return message

    def next(self, count: int) -> list[Message]:
        return [json.loads(self.stdout.readline()) for _ in range(count)]

    def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said on stderr."""
        said = self.stderr.read()
        return self.process.wait(PATIENCE), said


@contextmanager
def started(folder: Path, *argv: str, **env: str) -> Iterator[Started]:
    env = {"ORCHESTRATOR_STATE_DIR": str(folder / "state"), "HOME": str(folder), **env}
    env |= {"ORCHESTRATOR_AGENTS_DIR": str(folder / "agents"), "PATH": "/usr/bin:/bin"}
    (folder / "agents" / "helper").mkdir(parents=True)
    (folder / "agents" / "helper" / "agent.md").write_text(
        "---\nname: helper\ndescription: Helps.\n---\nYou help.\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *argv], env=env, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Started(process)
        finally:
            process.kill()


SERVE = ("-m", "orchestrator", "serve")

HELLO = {
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
INITIALIZED = {"method": "notifications/initialized", "params": {}}


def calling(tool: str, number: int) -> Message:
    return {"id": number, "method": "tools/call", "params": {"name": tool, "arguments": {}}}


@pytest.mark.parametrize("era", ERAS)
def test_a_client_is_greeted_and_has_its_tools_before_what_runs_agents_is_loaded(
    tmp_path: Path, era: str
) -> None:
    with started(tmp_path, "-c", GREETED, era) as python:
        assert python.ended() == (0, "")


def test_calls_that_come_with_the_greeting_are_answered(tmp_path: Path) -> None:
    with started(tmp_path, *SERVE) as server:
        server.send(HELLO, INITIALIZED, calling("list_agents", 2), calling("get_all_tasks", 3))
        assert "- helper: Helps." in server.answer(1)["result"]["instructions"]
        listed = [{"name": "helper", "description": "Helps."}]
        said = {each["id"]: each["result"]["structuredContent"] for each in server.next(2)}
        assert said == {2: {"agents": listed}, 3: {"tasks": []}}
        server.stdin.close()
        assert server.ended() == (0, "")


def test_a_server_that_cannot_run_agents_says_why_and_tries_again(tmp_path: Path) -> None:
    certificates = tmp_path / "ca.pem"
    with started(tmp_path, *SERVE, SSL_CERT_FILE=str(certificates)) as server:
        server.send(HELLO, INITIALIZED, {"id": 2, "method": "tools/list"})
        assert server.answer(2)["result"]["tools"]
        why = f"SSL_CERT_FILE={certificates} cannot be read; correct or unset it"
        server.send(calling("get_all_tasks", 3), {"id": 4, "method": "resources/list"})
        answers = {each["id"]: each for each in server.next(2)}
        refused = answers[3]["result"]
        assert (refused["isError"], refused["content"][0]["text"]) == (True, why)
        assert answers[4]["error"]["message"] == why
        certificates.write_text("")
        server.send(calling("get_all_tasks", 5))
        assert server.answer(5)["result"]["structuredContent"] == {"tasks": []}
        server.stdin.close()
        code, said = server.ended()
        assert (code, set(said.splitlines())) == (0, {f"error: no agent can be run: {why}"})


LEFT = [("before", "stdin ends")]  # a signal ends it as any program, before
LEFT += [
    (when, how) for when in ("greeted", "listed", "loading") for how in ("stdin ends", "SIGTERM")
]


@pytest.mark.parametrize(("when", "how"), LEFT)
def test_a_server_that_is_left_early_ends_without_a_word(
    tmp_path: Path, when: str, how: str
) -> None:
    with started(tmp_path, *SERVE) as server:
        if when != "before":
            server.send(HELLO)
            server.answer(1)
        if when in ("listed", "loading"):
            server.send(INITIALIZED, {"id": 2, "method": "tools/list"})
            server.answer(2)
        if when == "loading":
            server.send(calling("get_all_tasks", 3))
        if how == "stdin ends":
            server.stdin.close()
        else:
            server.process.send_signal(signal.Signals[how])
        assert server.ended() == (0, "")


@pytest.mark.parametrize("how", ["stdin ends", "SIGTERM"])
def test_what_runs_beside_a_server_ends_before_what_it_uses_is_closed(
    tmp_path: Path, how: str
) -> None:
    """Else a watcher reads the store while it is being closed: SIGSEGV."""
    with started(tmp_path, "-c", BESIDE) as server:
        assert server.stderr.readline() == "at work\n"
        if how == "stdin ends":
            server.stdin.close()
        else:
            server.process.send_signal(signal.Signals[how])
        assert server.ended() == (0, "stopped\nclosed\n")


SWALLOWS = """
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.transports.served import Served
from orchestrator.surfaces.mcp.transports.stdio import serve

class Low:
    def create_initialization_options(self):
        return None

    async def run(self, reader, *_):
        await anyio.sleep(0)  # signals are listened for by then
        print("at work", file=sys.stderr, flush=True)
        try:
            with reader:
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            print("cancelled", file=sys.stderr, flush=True)
            if "fails" in sys.argv:
                raise RuntimeError("it was closed") from None

@asynccontextmanager
async def opened(*_):
    try:
        yield Served(SimpleNamespace(_lowlevel_server=Low()), (), lambda _: None, lambda *_: None)
    finally:
        await anyio.sleep(0.5)  # its client goes on talking meanwhile
        print("closed", file=sys.stderr, flush=True)

anyio.run(serve, read_settings(), opened)
"""


@pytest.mark.parametrize("becomes", ["nothing", "fails"])
def test_a_signal_ends_a_server_whatever_its_cancellation_becomes(
    tmp_path: Path, becomes: str
) -> None:
    """Else it waits for the thread that reads stdin, as long as its client stays."""
    with started(tmp_path, "-c", SWALLOWS, becomes) as server:
        assert server.stderr.readline() == "at work\n"
        server.process.terminate()
        assert server.stderr.readline() == "cancelled\n"
        server.send(HELLO)
        assert server.ended() == (0, "closed\n")
