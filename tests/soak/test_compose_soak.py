"""compose.yaml for real: the image is built, started with the file's settings, and called."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from orchestrator.settings import Settings
from tests.compose_file import ROOT, docker_run, read
from tests.engine.staged import write_agent

BUILD_SECONDS = 1800
READY_SECONDS = 120
LOOK_SECONDS = 0.2
CALL_SECONDS = 120

TOKEN = secrets.token_hex(24)

pytestmark = pytest.mark.timeout(0)


@pytest.fixture
def agents(settings: Settings, tmp_path: Path) -> Path:
    settings = settings.model_copy(update={"agents_dir": tmp_path / "agents"})
    script = [
        {"tool": "Bash", "input": {"command": "cat /workspace/note.txt"}},
        {"text": "It says: {last_tool_result}"},
    ]
    write_agent(settings, "reader", script, permissions={"allow": ["Bash"]}, workspace="ro")
    writes = [
        {"tool": "Bash", "input": {"command": "mkdir made; echo x > made/f; id -u"}},
        {"text": "{last_tool_result}"},
    ]
    write_agent(settings, "writer", writes, permissions={"allow": ["Bash"]}, workspace="rw")
    return settings.agents_dir


@pytest.fixture(scope="module", autouse=True)
def _built(image: str) -> None:
    subprocess.run(["make", "--silent", "image"], cwd=ROOT, check=True, timeout=BUILD_SECONDS)


@pytest.fixture
def url(image: str, settings: Settings, agents: Path) -> Iterator[str]:
    """Where the orchestrator of compose.yaml answers, as `docker compose up` would start it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {
        "ORCHESTRATOR_HTTP_TOKENS": f"main={TOKEN}",
        "ORCHESTRATOR_WORKSPACES": str(settings.allowed_roots[0]),
        "ORCHESTRATOR_AGENTS_DIR": str(agents),
        "ORCHESTRATOR_AGENT_IMAGE": image,
        "ORCHESTRATOR_PORT": str(port),
        "ORCHESTRATOR_SCRIPTED": "1",
        "DOCKER_SOCKET": os.environ.get("DOCKER_HOST", "").removeprefix("unix://"),
    }
    name = f"orch-compose-{secrets.token_hex(4)}"
    argv = docker_run(read(environ)["services"]["orchestrator"], name=name, state=f"{name}-state")
    try:
        subprocess.run(argv, check=True, capture_output=True, timeout=CALL_SECONDS)
        yield f"http://127.0.0.1:{port}"
        subprocess.run(["docker", "stop", name], check=True, capture_output=True)
        shown = ["docker", "inspect", "--format", "{{json .State}}", name]
        state = json.loads(subprocess.run(shown, check=True, capture_output=True).stdout)
        assert state["ExitCode"] == 0, state  # it ended by itself when it was told to
    finally:
        subprocess.run(["docker", "rm", "--force", name], check=True, capture_output=True)
        subprocess.run(["docker", "volume", "rm", f"{name}-state"], capture_output=True)


async def test_a_client_calls_an_orchestrator_in_a_container_and_an_agent_reads_a_workspace(
    url: str, settings: Settings
) -> None:
    workspace = settings.allowed_roots[0] / "project"
    workspace.mkdir()
    (workspace / "note.txt").write_text("hello")
    await _ready(url)

    asked = {"agent_name": "reader", "prompt": "Read it.", "workspace": str(workspace)}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=CALL_SECONDS) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        answer = await client.call_tool("run_subagent", asked)
        outside = await client.call_tool("run_subagent", {**asked, "workspace": "/etc"})
    assert (answer.structured_content or {})["result"] == "It says: hello"
    assert outside.is_error


async def test_what_an_agent_writes_belongs_to_the_owner_of_the_workspace(
    url: str, settings: Settings
) -> None:
    workspace = settings.allowed_roots[0] / "mine"
    workspace.mkdir()
    os.chown(workspace, 4711, 4712)
    await _ready(url)

    asked = {"agent_name": "writer", "prompt": "Write.", "workspace": str(workspace)}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=CALL_SECONDS) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
    ):
        answer = await client.call_tool("run_subagent", asked)
    assert (answer.structured_content or {})["result"] == "4711", answer
    status = (workspace / "made" / "f").stat()
    assert (status.st_uid, status.st_gid) == (4711, 4712)


async def test_a_client_without_the_token_is_turned_away(url: str) -> None:
    await _ready(url)
    async with httpx.AsyncClient() as http:
        refused = await http.post(f"{url}/mcp", json={})
    assert refused.status_code == 401


async def _ready(url: str) -> None:
    with anyio.fail_after(READY_SECONDS):
        async with httpx.AsyncClient() as http:
            while True:
                try:
                    if (await http.get(f"{url}/health")).is_success:
                        return
                except httpx.HTTPError:
                    pass
                await anyio.sleep(LOOK_SECONDS)
