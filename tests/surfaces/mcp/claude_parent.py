"""Claude Code as the parent of our agents: the real CLI, and a model that the test plays."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.containers.images.claude_binary import fetch_claude
from orchestrator.containers.images.fetching import arch_of
from orchestrator.errors import ImageBuildFailed
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.scripted import Script, ScriptedUpstream
from orchestrator.gateway.model.upstream import UpstreamRequest
from orchestrator.settings import read_settings
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage

Document = dict[str, Any]

Step = dict[str, object]
"""What a model says next, as in a script."""

Play = AsyncGenerator[Step, Document]
"""Yields what the parent's model says; gets what the tool answered that it called."""

PREFIX = "mcp__subagents__"


def tool(name: str, **arguments: object) -> Step:
    return {"tool": PREFIX + name, "input": arguments}


def as_told(told: Document, /, **more: object) -> Step:
    """The call that an answer's `next` spells out; a model has nothing else to go by."""
    said = str(told["next"])
    found = re.search(r"call (\w+) with (\w+) (\".*?\"|\[.*?\])", said)
    if found is not None:
        return tool(found[1], **{found[2]: json.loads(found[3])}, **more)
    found = re.search(r"(\w+)\((\w+)=(\".*?\"), (\w+)=(\".*?\"|\[.*?\])", said)
    assert found is not None, said
    given = {found[2]: json.loads(found[3]), found[4]: json.loads(found[5])}
    return tool(found[1], **given, **more)


async def claude_plays(
    stage: Stage,
    home: Path,
    play: Play,
    version: str,
    *,
    command: str = "serve",
    tools: str = "",
    more: Sequence[str] = (),
) -> str:
    """Run the CLI as a client of `orchestrator serve`, or of another command, until the play is
    over; what it said last.
    """
    claude = claude_executable(version)
    await anyio.Path(home).mkdir()
    # A server of this checkout, whichever one is installed.
    prefixes = ("ORCHESTRATOR_", "PYTHONPATH", "GATEWAY_")
    ours = {k: v for k, v in stage.env.items() if k.startswith(prefixes)}
    entry = {
        "type": "stdio",
        "command": COMMAND,
        "args": [command],
        "env": ours | {"HOME": stage.env["HOME"]},
        "alwaysLoad": True,
    }
    argv = [
        *(str(claude), "-p", "Begin.", "--model", "claude-sonnet-4-5"),
        *("--output-format", "stream-json", "--verbose", "--setting-sources", ""),
        *("--strict-mcp-config", "--mcp-config", json.dumps({"mcpServers": {"subagents": entry}})),
        *("--permission-mode", "dontAsk", "--tools", tools),
        *("--allowedTools", ",".join(filter(None, ("mcp__subagents", tools))), *more),
    ]
    async with aclosing(play), serve_on_loopback(_Model(play).answer) as url:
        env = {
            "PATH": stage.env["PATH"],
            "HOME": str(home),
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "worthless",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_MAX_RETRIES": "0",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "30000",
        }
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(
                argv, env=env, cwd=home, stdin=subprocess.DEVNULL, check=False
            )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    ended = next(event for event in events if event["type"] == "result")
    assert not ended["is_error"], ended
    return str(ended["result"])


class _Model:
    """The model API, with a play behind it."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._begun = False

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if request.path != "/v1/messages":
            return HttpResponse(200 if request.method == "HEAD" else 404)
        asked = json.loads(request.body)
        step = await (self._play.asend(_last_result(asked)) if self._begun else anext(self._play))
        self._begun = True
        upstream = ScriptedUpstream(Script.model_validate({"steps": [step]}))
        held = AsyncExitStack()
        sent = UpstreamRequest(request.method, request.target, request.headers, request.body)
        said = await held.enter_async_context(upstream.send(sent))
        return HttpResponse(said.status, said.headers, said.body, held.aclose)


def _last_result(asked: Document) -> Document:
    """What the CLI tells its model of a tool's answer: the structured content, or the text of an
    error.
    """
    blocks = [
        block
        for message in asked["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    if not blocks:  # a conversation that has just begun, of a subagent of its own
        return {}
    content = blocks[-1]["content"]
    said = content if isinstance(content, str) else content[0]["text"]
    if blocks[-1].get("is_error"):
        return {"error_text": said}
    try:
        found, _ = json.JSONDecoder().raw_decode(said)  # the CLI may write reminders below it
    except ValueError:
        return {"text": said}
    assert isinstance(found, dict), said
    return found


def claude_executable(version: str) -> Path:
    """The CLI itself, from the cache or fetched; skips the test where it cannot be had."""
    if sys.platform != "linux":
        pytest.skip("the executables whose checksums are known are for Linux")
    arch = arch_of(platform.machine())
    try:
        return fetch_claude(read_settings().cache_dir, version, arch, lambda _: None)
    except ImageBuildFailed:
        if shutil.which("npm") is None:
            pytest.skip(f"npm is not here to fetch claude {version}")
        raise
