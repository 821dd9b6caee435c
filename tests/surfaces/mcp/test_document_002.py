"""Personas handed a task by a client that knows only the document that describes their server: two
tools over stdio, the protocol of 2024-11-05, and errors of JSON-RPC.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.surfaces.mcp.mcp_stage import Message, Raw, Stage, on_stage, raw_server

pytestmark = pytest.mark.anyio

METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32601, -32602, -32603

PERSONA = """\
persona: |
  You are a reviewer. Say what is wrong.
description: Reviews what it is shown
"""

RUNNERS = """\
runners:
  - name: codex
    priority: 1
    models: ["gpt-5.5"]
  - name: another-cli-of-theirs
    priority: 2
  - name: claude
    priority: 3
"""


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        look = {"tool": "Bash", "input": {"command": "cat note.txt; touch x || true"}}
        persona(stage, "reviewer", look, {"text": "{last_tool_result}"}, model="sonnet")
        persona(stage, "broken", {"error": 401, "message": "no", "repeat": True})
        look = {"tool": "exec_command", "input": {"cmd": "cat note.txt; touch x || true"}}
        persona(stage, "coder", look, {"text": "{last_tool_result}"}, model="gpt-5.5")
        (tmp_path / "runners.yaml").write_text(RUNNERS)
        (tmp_path / "link-to-agents").symlink_to(stage.agents)
        (stage.work / "note.txt").write_text("it rains\n")
        yield stage


def persona(stage: Stage, name: str, *steps: object, model: str = "") -> None:
    (stage.agents / f"{name}.yaml").write_text(PERSONA + f"model: {model}\n" * bool(model))
    script = stage.agents / name / "script.yaml"
    script.parent.mkdir()
    script.write_text(json.dumps({"steps": steps}))


async def call(raw: Raw, name: str, **arguments: object) -> Message:
    """The whole message that answers a call."""
    number = await raw.send("tools/call", {"name": name, "arguments": arguments})
    return await raw.until(lambda message: message.get("id") == number)


async def test_a_client_that_knows_only_the_document_gets_through(
    stage: Stage, tmp_path: Path
) -> None:
    flags = [
        *("--agents-dir", str(tmp_path / "link-to-agents"), "--runner", "codex"),
        *("--runner-config", str(tmp_path / "runners.yaml")),
    ]
    async with raw_server(stage, *flags, ORCHESTRATOR_COMPATIBILITY="1") as raw:
        hello = await raw.initialize("2024-11-05")
        assert hello["protocolVersion"] == "2024-11-05"
        assert "tools" in hello["capabilities"]
        assert set(hello["serverInfo"]) >= {"name", "version"}

        tools = {tool["name"]: tool for tool in (await raw.ask("tools/list"))["tools"]}
        assert tools["list_agents"]["inputSchema"]["type"] == "object"
        schema = tools["delegate_task"]["inputSchema"]
        assert set(schema["required"]) == {"agent", "task", "working_directory"}

        (listed,) = (await call(raw, "list_agents"))["result"]["content"]
        about = "Reviews what it is shown"
        agents = [{"name": name, "description": about} for name in ("broken", "coder", "reviewer")]
        assert (listed["type"], json.loads(listed["text"])) == ("text", {"agents": agents})

        link = stage.agents.parent / "link"
        link.symlink_to(stage.work)
        task = {"agent": "reviewer", "task": "look", "working_directory": str(link)}
        for agent, runner in (("reviewer", "claude"), ("coder", "codex")):
            answer = await call(raw, "delegate_task", **{**task, "agent": agent})
            done = answer.get("result") or pytest.fail(str(answer))
            (said,) = done["content"]
            assert "it rains\n" in said["text"], done
            assert "Read-only file system" in said["text"]  # as in the sandbox it is written for
            assert not done.get("isError")
            assert done["structuredContent"]["runner"] == runner

        wrong: list[tuple[Message, int, str]] = [
            ({**task, "agent": "nobody"}, INVALID_PARAMS, "no agent 'nobody'"),
            ({**task, "task": ""}, INVALID_PARAMS, "prompt must not be empty"),
            ({**task, "working_directory": ""}, INVALID_PARAMS, "working_directory is empty"),
            ({**task, "working_directory": "work"}, INVALID_PARAMS, "not an absolute path"),
            ({**task, "working_directory": "/"}, INVALID_PARAMS, "is the whole machine"),
            ({**task, "working_directory": str(link / "no")}, INVALID_PARAMS, "does not exist"),
            ({"agent": "reviewer"}, INVALID_PARAMS, "task is missing"),
            ({**task, "agent": "broken"}, INTERNAL_ERROR, "api_auth"),
        ]
        for arguments, code, why in wrong:
            error = (await call(raw, "delegate_task", **arguments))["error"]
            assert (error["code"], why in error["message"]) == (code, True), error
        assert (await call(raw, "expand"))["error"]["code"] == METHOD_NOT_FOUND
        number = await raw.send("agents/list")
        answer = await raw.until(lambda message: message.get("id") == number)
        assert answer["error"]["code"] == METHOD_NOT_FOUND
        await raw.stdin.aclose()
