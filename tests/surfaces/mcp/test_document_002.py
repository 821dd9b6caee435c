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


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        look = {"tool": "Bash", "input": {"command": "cat note.txt; touch x || true"}}
        persona(stage, "reviewer", look, {"text": "{last_tool_result}"})
        persona(stage, "broken", {"error": 401, "message": "no", "repeat": True})
        (stage.work / "note.txt").write_text("it rains\n")
        yield stage


def persona(stage: Stage, name: str, *steps: object) -> None:
    (stage.agents / f"{name}.yaml").write_text(PERSONA)
    script = stage.agents / name / "script.yaml"
    script.parent.mkdir()
    script.write_text(json.dumps({"steps": steps}))


async def call(raw: Raw, name: str, **arguments: object) -> Message:
    """The whole message that answers a call."""
    number = await raw.send("tools/call", {"name": name, "arguments": arguments})
    return await raw.until(lambda message: message.get("id") == number)


async def test_a_client_that_knows_only_the_document_gets_through(stage: Stage) -> None:
    async with raw_server(stage, ORCHESTRATOR_COMPATIBILITY="1") as raw:
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
        agents = [{"name": name, "description": about} for name in ("broken", "reviewer")]
        assert (listed["type"], json.loads(listed["text"])) == ("text", {"agents": agents})

        link = stage.agents.parent / "link"
        link.symlink_to(stage.work)
        task = {"agent": "reviewer", "task": "look", "working_directory": str(link)}
        done = (await call(raw, "delegate_task", **task))["result"]
        (said,) = done["content"]
        assert said["text"].startswith("it rains\n"), done
        assert "Read-only file system" in said["text"]  # as in the sandbox that it is written for
        assert not done.get("isError")

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
