"""The tools of older subagent servers."""

from __future__ import annotations

import pytest

from tests.surfaces.mcp.mcp_stage import ERAS, PATIENCE, call, text
from tests.surfaces.task_stage import ASKS, Serve, bash

pytestmark = pytest.mark.anyio

era = pytest.mark.parametrize("era", ERAS)


# Older names


async def test_older_names_are_offered_only_if_asked_for(serve: Serve) -> None:
    async with serve() as server:
        ours = {tool.name for tool in (await server.client.list_tools()).tools}
    async with serve(compat=True) as server:
        agent = server.agent("asks", *ASKS, ask="parent")
        both = {tool.name for tool in (await server.client.list_tools()).tools}
        assert both - ours == {
            *("check_subagent_status", "check_status", "get_subagent_logs", "check_message_status"),
            *("update_subagent_status", "update_status", f"run_subagent_{agent}"),
        }
        assert ours <= both


@era
async def test_a_question_is_seen_and_answered_under_the_older_names(
    serve: Serve, era: str
) -> None:
    async with serve(era, compat=True) as server:
        agent = server.agent("asks", *ASKS, ask="parent")
        run_id = (await server.call(f"run_subagent_{agent}", input="paint it"))["runId"]
        await server.call("wait_for_tasks", task_ids=run_id, timeout=PATIENCE)
        status = await call(server.client, "check_subagent_status", runId=run_id)
        assert f"Run ID: {run_id}\nAgent Name: {agent}\n" in text(status)
        assert "\nStatus: waiting_parent_reply\n" in text(status)
        assert "Which colour?" in text(status)
        assert status.structured_content is not None
        (message,) = status.structured_content["messages"]
        assert message["messageStatus"] == "pending_parent_reply"

        question = {"runId": run_id, "messageId": message["messageId"]}
        replied = await server.call("reply_subagent", **question, answer="blue")
        assert replied["success"] is True
        assert replied["updatedMetadata"]["runId"] == run_id
        (task,) = await server.ended(run_id)
        assert task["result"] == "it is blue"
        told = await server.call("check_message_status", **question)
        assert told["answerContent"] == "blue"
        assert told["messageStatus"] == "acknowledged_by_subagent"


async def test_an_ended_run_is_told_of_under_the_older_names_and_stays_ended(serve: Serve) -> None:
    async with serve(compat=True) as server:
        agent = server.agent("says", {"text": "painted"})
        run_id = (await server.call(f"run_subagent_{agent}", input="paint it"))["runId"]
        await server.ended(run_id)
        assert (await server.call("check_status", runId=run_id))["status"] == "success"
        logs = await call(server.client, "get_subagent_logs", runId=run_id)
        assert "painted" in text(logs)
        told = await server.call("update_status", runId=run_id, status="completed")
        assert told["runId"] == run_id
        _, said = await server.refused("update_subagent_status", runId=run_id, status="running")
        assert said.startswith(f"run {run_id} is success: ")


async def test_an_older_name_of_no_agent_is_refused(serve: Serve) -> None:
    async with serve(compat=True) as server:
        _, said = await server.refused("run_subagent_nobody", input="x")
        assert said.startswith("no agent 'nobody'")


# Agents made at call time


async def test_an_agent_is_made_at_call_time_inside_the_bounds_of_its_template(
    serve: Serve,
) -> None:
    async with serve() as server:
        template = server.agent(
            "template",
            bash("echo {last_user_text}"),
            {"text": "{last_tool_result}"},
            permissions={"allow": ["Bash", "Read"]},
        )
        names = [tool.name for tool in (await server.client.list_tools()).tools]
        assert "dynamic_subagent_task" not in names
    wish = {"description": "d", "instructions": "say-it", "tools": ["Bash"]}
    async with serve(template=template) as server:
        made = await server.call("dynamic_subagent_task", **wish, enable_sandbox=True)
        (done,) = await server.ended(made["task_id"])
        assert done["result"] == "say-it"
        more = {**wish, "tools": ["Bash", "Write"], "enable_sandbox": True}
        code, said = await server.refused("dynamic_subagent_task", **more)
        assert code == "run_refused"
        assert said.startswith("Write: not among the tools that may be given (Bash, Read)")
        _, said = await server.refused(
            "dynamic_subagent_task", **{**wish, "tools": []}, enable_sandbox=True
        )
        assert said.startswith("tools is empty")
        _, said = await server.refused(
            "dynamic_subagent_task", **wish, enable_sandbox=True, max_steps=5000
        )
        assert said == "max_steps must be at most 1000"

        made = await server.call("dynamic_subagent_task", **wish, enable_sandbox=False)
        (now,) = await server.ended(made["task_id"])
        assert now["status"] == "paused"
        done = await server.call(
            "resume_subagent_task", task_id=made["task_id"], approve_all=True, wait=True
        )
        assert done["result"] == "say-it"
