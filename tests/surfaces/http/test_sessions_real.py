"""Sessions on a real engine with a real CLI, by a client that knows only their document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from pydantic import SecretStr

from orchestrator.app import open_orchestrator
from orchestrator.engine.tasks.tasks import Tasks
from orchestrator.surfaces.http.api import Behind
from tests.surfaces.http.api_stage import PATIENCE, serving_api
from tests.surfaces.http.session_client import SessionClient
from tests.surfaces.mcp.mcp_stage import Stage
from tests.surfaces.task_stage import bash

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-sessions"


@asynccontextmanager
async def on_real_api(stage: Stage, template: str) -> AsyncIterator[SessionClient]:
    """A client of a server that runs agents."""
    update = {"dynamic_template": template, "http_tokens": {"main": SecretStr(TOKEN)}}
    settings = stage.settings.model_copy(update=update)

    async def at_once() -> None:
        pass

    async with open_orchestrator(settings) as service, Tasks(service) as tasks:
        behind = Behind(settings, service, tasks, at_once, service.note_stranger)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            serving_api(behind) as (_, url),
            httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as http,
        ):
            yield SessionClient(http)


async def test_a_client_of_the_document_does_all_that_it_says(task_stage: Stage) -> None:
    task_stage.add_agent(
        "sessions",
        bash("sleep 1; echo ran"),
        {"text": "{last_tool_result}; {user_texts}"},
        permissions={"allow": ["Bash", "Read"]},
    )
    async with on_real_api(task_stage, "sessions") as client:
        parent = await client.create("the master")
        session = await client.create("a subagent", parent_session_id=parent)
        run = await client.send(session, "Do it.", allowed_tools=["Bash"], max_steps=5)
        async with client.events(session) as events:
            (call,) = (await events.until("ToolCallsProposed", "RunError"))["tool_calls"]
            assert (call["name"], await client.state(session)) == ("Bash", "running")
            assert await client.pending(session) == [call]
            await client.decide(session, run, **{call["id"]: {"action": "accept"}})
            await events.until("ToolExecutionStarted")
            await client.send(session, "Be brief.", type="steering", run_id=run)
            done = await events.until("ToolExecutionCompleted")
            assert (done["result"], done["is_error"]) == ("ran", False)
            assert (await events.until("TextComplete"))["text"] == "ran; Do it.; Be brief."
            end = await events.until("RunCompleted", "RunError")
            assert (end["stop_reason"], end["total_turns"]) == ("completed", 2)
            assert end["total_usage"]["total_tokens"] > 0

            again = await client.send(session, "Once more.", type="follow_up", run_id=run)
            (call,) = (await events.until("ToolCallsProposed"))["tool_calls"]
            refused = {"action": "custom_result", "content": "Nothing ran."}
            await client.decide(session, again, **{call["id"]: refused})
            await events.until("ToolRejected")
            said = (await events.until("TextComplete"))["text"]
            assert "Nothing ran." in said
            await events.until("RunCompleted")

            last = await client.send(session, "And now?")
            await events.until("ToolCallsProposed")
            body = {"run_id": last}
            await client.call("POST", f"sessions/{session}/cancel", body)
            assert (await events.until("RunCompleted"))["stop_reason"] == "cancelled"
        listed = await client.call("GET", f"sessions?parent_session_id={parent}")
        assert [each["id"] for each in listed["sessions"]] == [session]
        beyond = {
            "message": {"role": "user", "content": "go"},
            "allowed_tools": ["Write"],
        }
        refused_code = await client.refused("POST", f"sessions/{session}/messages", beyond)
        assert refused_code == (409, "run_refused")
        texts = [
            each["content"]
            for each in (await client.call("GET", f"sessions/{session}/messages"))["messages"]
            if each["role"] == "user"
        ]
        assert texts == ["Do it.", "Be brief.", "Once more.", "And now?"]
        await client.call("DELETE", f"sessions/{session}")


async def test_a_kept_conversation_goes_on_with_what_the_next_message_allows(
    task_stage: Stage,
) -> None:
    task_stage.add_agent(
        "kept",
        bash("echo ran"),
        {"text": "{last_tool_result}"},
        permissions={"allow": ["Bash", "Read"]},
        session=True,
    )
    async with on_real_api(task_stage, "kept") as client:
        session = await client.create()
        async with client.events(session) as events:
            await client.send(session, "One.", auto_approve=True)
            assert (await events.until("TextComplete"))["text"] == "ran"
            await events.until("RunCompleted", "RunError")
            await client.send(session, "Two.", auto_approve=True, allowed_tools=["Read"])
            assert (await events.until("TextComplete"))["text"] != "ran"
            assert (await events.until("RunCompleted"))["stop_reason"] == "completed"
        await client.call("DELETE", f"sessions/{session}")
