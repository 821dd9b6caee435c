"""Subagents made at call time, by a client that knows only the document that describes them: its
six tools, their arguments, and the seven states of a task.
"""

from __future__ import annotations

import json
import re

import anyio
import pytest

from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE, call, text
from tests.surfaces.task_stage import Document, Serve, Server, bash

pytestmark = pytest.mark.anyio

FINAL_STATES = ("completed", "failed", "cancelled", "timedout")

EVERYTHING = {"allow": ["Bash", "Read", "Grep", "Glob"]}


class DocumentClient:
    """Knows tasks by their ids, as the text of an answer tells them."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def start(self, instructions: str, *tools: str, **more: object) -> str:
        asked = {"description": "a task", "instructions": instructions, "tools": tools}
        made = await call(
            self._server.client,
            "dynamic_subagent_task",
            **{"enable_sandbox": True, **asked, **more},
        )
        assert not made.is_error, text(made)
        (task_id,) = re.findall(r"^Task ID: (\S+)$", text(made), re.MULTILINE)
        return str(task_id)

    async def wait(self, task_id: str) -> Document:
        """Until it is final or paused."""
        with anyio.fail_after(PATIENCE):
            while True:
                await self._server.call("wait_for_tasks", task_ids=[task_id], timeout=20)
                found = await self.details(task_id)
                if found["state"] in (*FINAL_STATES, "paused"):
                    return found

    async def details(self, task_id: str) -> Document:
        answer = await call(self._server.client, "get_task_details", task_id=task_id)
        found: Document | None = answer.structured_content
        assert found is not None
        return {**found, "state": found["status"].replace("_", "")}

    async def resume(self, task_id: str, **decided: object) -> None:
        await self._server.call("resume_subagent_task", task_id=task_id, **decided)


async def template_of(serve: Serve, *steps: object, **fields: object) -> str:
    """The operator's part."""
    async with serve() as server:
        return server.agent("template", *steps, **{"permissions": EVERYTHING, **fields})


async def test_the_tools_take_what_the_document_says(serve: Serve) -> None:
    template = await template_of(serve, {"text": "done"})
    async with serve(template=template) as server:
        tools = {tool.name: tool.input_schema for tool in (await server.client.list_tools()).tools}
        made = tools["dynamic_subagent_task"]
        required = {"description", "instructions", "tools", "enable_sandbox"}
        assert set(made["required"]) == required
        known = required | {"context", "max_steps"}
        assert set(made["properties"]) == known | {"working_directory"}
        resumed = tools["resume_subagent_task"]
        assert resumed["required"] == ["task_id"]
        known = {"approve", "reject", "approve_all", "reject_all", "input"}
        assert known <= set(resumed["properties"])
        wish: Document = {"description": "d", "tools": ["Read"], "enable_sandbox": True}
        _, said = await server.refused("dynamic_subagent_task", **wish, instructions=" ")
        assert said == "instructions is empty: say all that the agent has to know"
        _, said = await server.refused("dynamic_subagent_task", **wish)
        assert said.startswith("dynamic_subagent_task: instructions is missing. It takes ")


@pytest.mark.parametrize("era", ERAS)
async def test_a_task_is_started_waited_for_and_looked_at(serve: Serve, era: str) -> None:
    steps = ({"text": "{user_texts}", "delay_seconds": 1},)
    template = await template_of(serve, *steps)
    async with serve(era, template=template) as server:
        client = DocumentClient(server)
        task_id = await client.start("Count the files.", "Read", context="In /workspace.")
        assert (await client.details(task_id))["state"] in ("pending", "running")
        done = await client.wait(task_id)
        assert done["state"] == "completed"
        assert done["result"] == "Context:\nIn /workspace.\n\nTask:\nCount the files."
        told = {key: done[key] for key in ("description", "instructions", "context", "tools")}
        assert told == {
            "description": "a task",
            "instructions": "Count the files.",
            "context": "In /workspace.",
            "tools": ["Read"],
        }
        assert (done["enable_sandbox"], done["max_steps"]) == (True, 30)
        table = await call(server.client, "get_all_tasks")
        assert f"| {task_id} | completed |" in text(table)


async def test_without_the_sandbox_only_what_changes_something_waits(serve: Serve) -> None:
    folder_file = {"tool": "Read", "input": {"file_path": "/workspace/note.txt"}}
    template = await template_of(
        serve, folder_file, bash("cat note.txt"), {"text": "{last_tool_result}; {user_texts}"}
    )
    async with serve(template=template) as server:
        (server.stage.work / "note.txt").write_text("a note")
        client = DocumentClient(server)
        task_id = await client.start(
            "Look.",
            *("Read", "Bash"),
            enable_sandbox=False,
            working_directory=str(server.stage.work),
        )
        paused = await client.wait(task_id)
        assert paused["state"] == "paused"
        (pending,) = paused["pending_tool_calls"]
        assert (pending["tool"], paused["enable_sandbox"]) == ("Bash", False)
        # A decision and a message in one call: the call runs, and then the agent reads the message.
        await client.resume(task_id, approve=[pending["call_id"]], input="And be brief.")
        done = await client.wait(task_id)
        assert (done["state"], done["result"]) == ("completed", "a note; Look.; And be brief.")


async def test_what_is_rejected_does_not_run(serve: Serve) -> None:
    template = await template_of(serve, bash("echo ran"), {"text": "{last_tool_result}"})
    async with serve(template=template) as server:
        client = DocumentClient(server)
        task_id = await client.start("Do it.", "Bash", enable_sandbox=False)
        assert (await client.wait(task_id))["state"] == "paused"
        await client.resume(task_id, reject_all=True, input="Leave it.")
        done = await client.wait(task_id)
        assert (done["state"], "Leave it." in done["result"]) == ("completed", True)


@pytest.mark.parametrize("session", [False, True])
async def test_a_completed_task_goes_on_with_its_input_under_its_id(
    serve: Serve, session: bool
) -> None:
    template = await template_of(serve, {"text": "{user_texts}"}, session=session)
    script = {"steps": [{"text": "{user_texts}"}], "each_task": True}
    async with serve(template=template) as server:
        (server.stage.agents / template / "script.yaml").write_text(json.dumps(script))
        client = DocumentClient(server)
        task_id = await client.start("Say one.", "Read")
        other_id = await client.start("Say more.", "Read")
        assert (await client.wait(task_id))["result"] == "Say one."
        assert (await client.wait(other_id))["result"] == "Say more."
        for word in ("two", "three"):
            await client.resume(task_id, input=f"Say {word}.")
            done = await client.wait(task_id)
            assert done["state"] == "completed"
            assert (done["tools"], done["description"]) == (["Read"], "a task")
        if session:
            assert done["result"] == "Say one.; Say two.; Say three."
        else:
            assert done["result"].endswith("Task:\nSay three.")
            assert all(said in done["result"] for said in ("Say one.", "Say two.", "You answered"))
        assert "Say more." not in done["result"]
        assert (await client.details(other_id))["result"] == "Say more."
    runtime = server.stage.runtime
    assert runtime is not None
    for info in await runtime.list():
        if info.kind == "kept":
            await runtime.forget(info.key)


async def test_a_task_is_cancelled_and_cannot_be_resumed(serve: Serve) -> None:
    template = await template_of(serve, bash("sleep 500"))
    async with serve(template=template) as server:
        client = DocumentClient(server)
        task_id = await client.start("Do it.", "Bash")
        await server.call("cancel_task", task_id=task_id)
        assert (await client.wait(task_id))["state"] == "cancelled"
        _, said = await server.refused("resume_subagent_task", task_id=task_id, input="Go on.")
        assert said.startswith(f"run {task_id} has ended")
