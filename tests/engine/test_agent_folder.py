"""An agent with a folder of its own: its files, its MCP servers, and a page on an allowed host."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.app import agent_files
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.errors import AgentInvalid
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.model.scripted import ScriptedUpstream
from orchestrator.gateway.model.upstream import UpstreamRequest, UpstreamResponse
from orchestrator.settings import read_settings
from orchestrator.state import open_agents
from tests.engine.harness import Harness, bash
from tests.gateway.origin import Names, Origin, certificate, listening

PATIENCE = 170

HOST = "web.example"

PAGE = b"<html><body><h1>The door is blue.</h1></body></html>"

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n%s" % (
    len(PAGE),
    PAGE,
)

SERVER = """
import json, os, sys
from words import HELLO
tools = [
    {"name": name, "description": name, "inputSchema": {"type": "object"}}
    for name in ("whoami", "drop_table")
]
for line in sys.stdin:
    call = json.loads(line)
    answers = {
        "initialize": {
            "protocolVersion": call.get("params", {}).get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "echo", "version": "1"},
        },
        "tools/list": {"tools": tools},
        "tools/call": {"content": [{"type": "text", "text": f"{HELLO} {os.getuid()}"}]},
    }
    if "id" in call:
        known = call["method"] in answers
        error = {"error": {"code": -32601, "message": "unknown"}}
        answer = {"result": answers[call["method"]]} if known else error
        print(json.dumps({"jsonrpc": "2.0", "id": call["id"], **answer}), flush=True)
"""

LOOK = textwrap.dedent("""\
    stat -c '%n %U %a' /agent /agent/guides /agent/guides/style.md /agent/run.sh
    /agent/run.sh
    echo more >> /agent/guides/style.md; touch /agent/new; rm -f /agent/run.sh
    mkdir /agent/guides/x
    ls -A /agent /agent/guides; which wget
    """)


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The agent's folder, with what the agent brings."""
    folder = tmp_path / "agents" / "worker"
    (folder / "guides").mkdir(parents=True)
    (folder / "guides" / "style.md").write_text("Be brief.\n")
    (folder / "server.py").write_text(SERVER)
    (folder / "words.py").write_text("HELLO = 'hello from'\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho it ran\n")
    (folder / "run.sh").chmod(0o700)
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the model is asked, as it leaves the gateway."""
    seen: list[dict[str, object]] = []
    send = ScriptedUpstream.send

    @asynccontextmanager
    async def noting(
        self: ScriptedUpstream, request: UpstreamRequest
    ) -> AsyncIterator[UpstreamResponse]:
        seen.append(json.loads(request.body))
        async with send(self, request) as answer:
            yield answer

    monkeypatch.setattr(ScriptedUpstream, "send", noting)
    return seen


FIELDS: dict[str, object] = {
    "files": ["server.py", "words.py", "run.sh", "guides/"],
    "mcp_servers": [
        {"name": "echo", "command": "python3", "args": ["/agent/server.py"]},
        {"name": "gone", "command": "no-such-server", "args": ["x"]},
        {
            "name": "cross",
            "command": "python3",
            "args": ["-c", "import os; raise SystemExit('no key: ' + os.environ['KEY'])"],
            "env": {"KEY": "${KEY}"},
        },
    ],
    "permissions": {"allow": ["Bash", "Read", "WebFetch", "mcp__echo__whoami", "MultiEdit"]},
}


async def test_an_agent_uses_the_files_of_its_folder_and_a_page_of_an_allowed_host(
    harness: Harness, folder: Path, tmp_path: Path, asked: list[dict[str, object]]
) -> None:
    trusted, context = certificate(tmp_path, HOST)
    harness.ca_certificates = trusted.read_text()
    harness.dialer = Dialer(Names(web_example="127.0.0.1"))
    harness.environ["KEY"] = "s3cret-value"
    origin = Origin(ANSWER)
    async with listening(origin.talk, context) as port:
        url = f"https://{HOST}:{port}/door"
        steps: list[dict[str, object]] = [
            {"tool": "mcp__echo__whoami", "input": {}},
            {"tool": "Read", "input": {"file_path": "/agent/guides/style.md"}},
            bash(LOOK),
            {"tool": "WebFetch", "input": {"url": url, "prompt": "Which colour is the door?"}},
            {"text": "It is blue."},  # what the CLI asks a small model about the page
            {"text": "done"},
        ]
        network = {"allow": [f"{HOST}:{port}"], "allow_private": [HOST]}
        with anyio.fail_after(PATIENCE):
            task = Task(agent="worker", prompt="Do it.", timeout_seconds=9999)
            result = await harness.run(steps, task, **FIELDS, network=network)

    assert (result.status, result.denied_tools, result.denied_hosts) == ("completed", (), ())
    who, style, looked, fetched = _results(harness)
    assert who == "hello from 1000"
    assert "Be brief." in style
    assert looked.splitlines()[:5] == [
        "/agent root 755",
        "/agent/guides root 755",
        "/agent/guides/style.md root 444",
        "/agent/run.sh root 555",
        "it ran",
    ]
    assert looked.count("Permission denied") == 4
    assert looked.split("/agent:\n")[1].split() == [
        *("guides", "run.sh", "server.py", "words.py"),
        *("/agent/guides:", "style.md", "/usr/bin/wget"),
    ]
    assert fetched == "It is blue."
    assert [head.split(b"\r\n")[0] for head in origin.heads] == [b"GET /door HTTP/1.1"]
    assert "The door is blue." in json.dumps(asked[4]["messages"])
    for request in (asked[0], asked[-1]):
        tools = {tool["name"] for tool in request["tools"]}  # type: ignore[attr-defined] # JSON
        assert tools == {"Bash", "Read", "WebFetch", "mcp__echo__whoami"}
    doubt, late, lost, gone, cross = result.warnings
    assert doubt.startswith("agent.md:2: permissions.allow[4]: claude 2.1.325 has no MultiEdit ")
    assert late.startswith(
        "9999 s were asked for, and the agent's own timeout counts, which is 120"
    )
    assert lost.startswith("no workspace was named: the agent works in an empty folder, and what ")
    assert gone.startswith("the MCP server gone did not start: ")
    assert gone.endswith("no-such-server: not found")
    assert cross.startswith("the MCP server cross did not start: no key: ")
    assert "s3cret-value" not in result.model_dump_json()
    assert set(result.failed_mcp_servers) == {"gone", "cross"}


async def test_files_are_there_in_sessions_and_spares_and_new_ones_in_their_place(
    harness: Harness, folder: Path
) -> None:
    look = bash("cat /agent/guides/*; ls /agent/guides")
    rules = ["Bash(cat:*)", "Bash(ls:*)"]  # with a pattern, the CLI keeps paths to its own places
    fields: dict[str, Any] = {"files": ["guides"], "permissions": {"allow": rules}}

    async def told(service: Service) -> str:
        harness.events.clear()
        task = Task(agent="worker", prompt="Look.")
        assert (await service.run(task, harness.events.append)).status == "completed"
        return _results(harness)[0]

    with anyio.fail_after(PATIENCE):
        async with harness.sessions:
            service = harness.service([look, {"text": "done"}] * 3, **fields, session=True)
            assert await told(service) == "Be brief.\nstyle.md"
            (folder / "guides" / "style.md").unlink()
            (folder / "guides" / "other.md").write_text("Be long.\n")
            assert await told(service) == "Be long.\nother.md"
            await harness.sessions.stop(harness.key)  # memory-backed space goes with that
            assert await told(service) == "Be long.\nother.md"
            await harness.sessions.remove(harness.key)
        async with harness.pool:
            service = harness.service([look, {"text": "done"}] * 2, **fields, warm=1)
            assert await told(service) == "Be long.\nother.md"


def _results(harness: Harness) -> list[str]:
    return [event.text for event in harness.events if event.kind == "tool_result"]


# What is refused before anything is made


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["nowhere.py"], "'nowhere.py' is not in the agent's folder; put it there, or correct"),
        (["link.md"], "'link.md' is a symbolic link; put the file itself there"),
        (["linked/x.md"], "'linked/x.md' is behind a symbolic link, or below a file; put the"),
        (["guides"], "'guides/link' is a symbolic link; put the file itself there"),
        (["fifo"], "'fifo' is neither a file nor a directory"),
        (["big"], "'big' is more than the 512 files or 16 MiB that an agent may bring; put them"),
        (["many"], "'many' is more than the 512 files or 16 MiB that an agent may bring; put them"),
        (["token"], "'token' holds a secret of the operator's, which no agent may see"),
    ],
)
def test_a_file_that_cannot_be_brought_stops_the_agent_before_it_runs(
    folder: Path, tmp_path: Path, names: list[str], said: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.md").write_text("not yours")
    (folder / "link.md").symlink_to(tmp_path / "outside" / "x.md")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "guides" / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    with (folder / "big").open("wb") as file:
        file.truncate(16 * 1024 * 1024 + 1)
    (folder / "many").mkdir()
    for number in range(513):
        (folder / "many" / str(number)).touch()
    (folder / "token").write_text("a-secret")
    (tmp_path / "secrets.yaml").write_text("github: {file: agents/worker/token}\n")
    (tmp_path / "secrets.yaml").chmod(0o600)
    head = {"name": "worker", "description": "Works.", "files": ["server.py", *names]}
    (folder / "agent.md").write_text(f"---\n{json.dumps(head)}\n---\nGo.\n")
    settings = read_settings(
        {
            "HOME": str(tmp_path),
            "ORCHESTRATOR_AGENTS_DIR": str(folder.parent),
            "ORCHESTRATOR_SECRETS_FILE": str(tmp_path / "secrets.yaml"),
        }
    )
    (broken,) = open_agents(settings).current().broken
    (problem,) = broken.problems
    assert str(problem).startswith(f"{folder}/agent.md:2: files[1]: {said}")
    with pytest.raises(AgentInvalid, match=r"files\[1\]"):
        agent_files(settings, AgentSpec.model_validate(head))
