"""The shipped web-search agent: it reaches one host with any program, and is told of the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.settings import Settings
from tests.engine.harness import Harness, bash
from tests.engine.shipped import place_shipped, shipped_fields
from tests.gateway.origin import Names, Origin, certificate, listening
from tests.node_binary import fetch_node

PATIENCE = 170

HOST, ELSEWHERE = "web.example", "evil.example"

NODE = """
const tell = async (url) => {
  try { const got = await fetch(url); console.log(got.status, await got.text()); }
  catch (error) { console.log(0, [error, error.cause, error.cause?.cause].join(" ")); }
};
(async () => { for (const url of process.argv.slice(1)) await tell(url); })();
"""

PYTHON = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as got:
            print(got.status, got.read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print(0, error)
"""

RESOLVE = """
import socket, sys
for name in sys.argv[1:]:
    try:
        print(name, socket.getaddrinfo(name, 80))
    except OSError as error:
        print(name, "does not resolve")
"""

DENIED = "blocked: not under network.allow in agent.md"


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def tools(settings: Settings) -> Path:
    """A directory with Node.js in it, for the agent to be shown."""
    folder = settings.allowed_roots[0] / "tools"
    folder.mkdir()
    shutil.copy(fetch_node(settings.cache_dir), folder / "node")
    return folder


async def test_every_program_reaches_the_allowed_host_and_no_other(
    harness: Harness, tools: Path, tmp_path: Path
) -> None:
    trusted, context = certificate(tmp_path, HOST)
    harness.ca_certificates = trusted.read_text()
    names = Names(web_example="127.0.0.1", evil_example="127.0.0.1")
    harness.dialer = Dialer(names)
    origin = Origin()
    async with listening(origin.talk) as plain, listening(origin.talk, context) as secure:
        urls = " ".join(
            (
                *(f"http://{HOST}:{plain}/", f"https://{HOST}:{secure}/"),
                *(f"http://{ELSEWHERE}/", f"https://{ELSEWHERE}/"),
            )
        )
        fetches = {
            "curl": f"curl -sS -w ' %{{http_code}} ' --max-time 20 {urls}",
            "node": f"/workspace/node -e '{NODE}' {urls}",
            "python": f"python3 -c '{PYTHON}' {urls}",
            "names": f"python3 -c '{RESOLVE}' {HOST} {ELSEWHERE} localhost.{HOST}",
        }
        steps = [bash(command) for command in fetches.values()]
        service = harness.service([*steps, {"text": "done"}])
        rules = shipped_fields("web-search")["permissions"]["allow"]
        place_shipped(
            tmp_path / "agents",
            "web-search",
            network={"allow_private": [f"{HOST}:{plain}", f"{HOST}:{secure}"]},
            workspace="ro",
            permissions={"allow": [*rules, "Bash(/workspace/node:*)", "Bash(python3:*)"]},
        )
        task = Task(agent="web-search", prompt="Fetch.", workspace=tools)
        with anyio.fail_after(PATIENCE):
            result = await service.run(task, harness.events.append)

    assert result.status == "completed", result
    texts = [event.text for event in harness.events if event.kind == "tool_result"]
    told = dict(zip(fetches, texts, strict=True))

    assert told["curl"].count("hello 200") == 2
    assert DENIED in told["curl"]
    assert "CONNECT tunnel failed, response 403" in told["curl"]
    for name in ("node", "python"):
        assert _lines(told[name])[:2] == ["200 hello", "200 hello"], told[name]
    *_, third, fourth = _lines(told["python"])
    assert third.startswith("403 ")
    assert DENIED in third
    assert DENIED in fourth
    # Node asks the proxy for a tunnel in any case, and repeats of its refusal the status alone.
    *_, third, fourth = _lines(told["node"])
    assert "Proxy response (403)" in third
    assert "Proxy response (403)" in fourth
    assert told["names"].count("does not resolve") == 3

    assert result.denied_hosts == (f"{ELSEWHERE}:80", f"{ELSEWHERE}:443")
    assert set(names.asked) == {HOST}, "what is denied is not even looked up"
    assert len(origin.heads) == 6


def _lines(text: str) -> list[str]:
    """One for each URL; a refusal's own line end is not the program's."""
    return [line for line in text.splitlines() if line[:1].isdigit()]
