"""`orchestrator demo`: the MCP client, the server, the container and the CLI are all real."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

from orchestrator.surfaces.cli.setup.demo import demo_summary
from tests.runners.claude.fake_model import FakeModel, Say
from tests.surfaces.conftest import Project

COMMAND = [sys.executable, "-c", "from orchestrator.surfaces.cli.main import main; main()", "demo"]


def test_the_demo_shows_a_host_blocked_and_an_answer_sent_back(project: Project) -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("run_subagent('docs-reader', ")
    labels = [line.split()[2] for line in lines if " s  " in line and line.startswith(" ")]
    assert labels[:5] == ["connected", "queued", "starting", "started", "ready"]
    assert [label for label in labels if label in ("uses", "blocked", "sent", "ended")] == [
        *("uses", "blocked", "sent", "ended")
    ]
    assert "example.com:443 blocked: not under network.allow in agent.md" in done.stdout
    assert "/sources: 'none' is not of type 'array'" in done.stdout
    assert '  "sources": []' in lines
    assert lines[-1].startswith("valid after 2 attempts; ")
    assert lines[-1].endswith("; model: a script (set ANTHROPIC_API_KEY for the real one)")


def test_a_reader_that_leaves_ends_the_demo_quietly(project: Project) -> None:
    with subprocess.Popen(
        COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()  # as `head -1` does
        assert (process.stderr.read(), process.wait(120)) == ("", 141)


@pytest.mark.anyio
async def test_with_a_key_the_demo_asks_the_real_model(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = FakeModel([Say('{"answer": "3.11", "sources": []}')])
    monkeypatch.delenv("ORCHESTRATOR_SCRIPTED")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-the-operators")
    async with model.on_loopback() as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        done = await anyio.run_process(COMMAND, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert set(model.keys) == {"a-key-of-the-operators"}
    last = done.stdout.decode().splitlines()[-1]
    assert last.startswith("valid after 1 attempt; ")
    assert "model: claude-" in last


def test_without_an_engine_the_demo_fails_and_says_why(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent")
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=120)
    assert done.returncode == 6
    assert done.stderr.startswith("error: no container engine answers")


def test_the_last_line_names_the_model_and_what_it_cost() -> None:
    envelope = {"model": "claude-x", "attempts": 1, "cost_usd": 0.25}
    said = demo_summary(envelope, 2.04, scripted=False)
    assert said == "valid after 1 attempt; 2.0 s in all; model: claude-x, $0.2500"
