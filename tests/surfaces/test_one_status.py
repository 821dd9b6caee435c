"""One run has one status at one moment, whichever door it is seen through."""

from __future__ import annotations

import json

import anyio
import mcp.types as t
import pytest

from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage
from tests.surfaces.mcp.test_task_extension import Polls, ask
from tests.surfaces.task_stage import ASKS, Document, Serve, Server, bash

pytestmark = pytest.mark.anyio

ASKING = (ASKS, {"ask": "parent"})
CAREFUL = (
    (bash("echo done"), {"text": "{last_tool_result}"}),
    {"permissions": {"allow": ["Bash"]}, "approval": {"Bash": "ask"}},
)


@pytest.mark.parametrize(
    ("child", "status"),
    [(ASKING, "waiting_parent_reply"), (CAREFUL, "paused")],
    ids=["a question", "a tool call"],
)
async def test_a_parent_whose_child_waits_has_one_status_at_all_doors(
    serve: Serve, child: tuple[tuple[object, ...], Document], status: str
) -> None:
    async with serve(window=PATIENCE, compat=True, extensions=[Polls()]) as server:
        steps, fields = child
        lead, worker = f"lead-{server.caller}", f"worker-{server.caller}"
        server.stage.add_agent(worker, *steps, allowed_callers=[lead], **fields)
        errand = {"agent_name": worker, "prompt": "x"}
        server.agent(
            "lead",
            {"tool": "mcp__parent__run_subagent", "input": errand},
            {"text": "it is {last_tool_result}"},
            subagents=[worker],
        )
        started = await server.call("run_subagent", agent_name=lead, prompt="x")
        run_id = started["run_id"]
        assert (lead, "running", "") in server.stage.runs()  # as it is stored
        seen = {"run_subagent": started["status"], **await _tools(server, run_id, status)}
        seen |= await _resources(server, run_id)
        seen |= await _commands(server.stage, run_id, status)
        task = await ask(server.client, "tasks/get", run_id)
        seen["tasks/get"] = task["statusMessage"].removeprefix(f"{lead} is ").split(",")[0]
        seen["check_status"] = (await server.call("check_status", runId=run_id))["status"]
        assert seen == dict.fromkeys(seen, status)
        await server.call("cancel_task", task_id=run_id)


async def _tools(server: Server, run_id: str, status: str) -> dict[str, str]:
    """Tool -> the status that it tells of the run."""
    (waited,) = (await server.call("wait_for_tasks", task_ids=run_id))["tasks"]
    (listed,) = (await server.call("get_all_tasks"))["tasks"]
    (chosen,) = (await server.call("get_all_tasks", status=status))["tasks"]
    assert (await server.call("get_all_tasks", status="pending running"))["tasks"] == []
    return {
        "wait_for_tasks": waited["status"],
        "get_all_tasks": listed["status"],
        "get_all_tasks, chosen": chosen["status"],
        "get_task_details": (await server.call("get_task_details", task_id=run_id))["status"],
        "get_logs": (await server.call("get_logs", run_id=run_id))["status"],
    }


async def _resources(server: Server, run_id: str) -> dict[str, str]:
    listed = (await server.client.list_resources()).resources
    (title,) = (resource.title or "" for resource in listed if resource.name == run_id)
    (content,) = (await server.client.read_resource(f"orchestrator://runs/{run_id}")).contents
    assert isinstance(content, t.TextResourceContents)
    return {
        "the list of resources": title.partition(", ")[2].partition(":")[0],
        "the resource": json.loads(content.text)["status"],
    }


async def _commands(stage: Stage, run_id: str, status: str) -> dict[str, str]:
    """The same of the command line, which is another process."""
    listed = (await _command(stage, "runs"))["runs"]
    chosen = (await _command(stage, "runs", "--status", status))["runs"]
    (waited,) = (await _command(stage, "wait", run_id, "--timeout", "0"))["runs"]
    return {
        **{f"runs of {row['run_id']}": row["status"] for row in listed if row["run_id"] == run_id},
        "runs, chosen": next(row["status"] for row in chosen if row["run_id"] == run_id),
        "wait": waited["status"],
        "show": (await _command(stage, "show", run_id))["status"],
        "logs": (await _command(stage, "logs", run_id))["run"]["status"],
    }


async def _command(stage: Stage, *argv: str) -> Document:
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process([COMMAND, *argv, "--json"], env=stage.env, check=False)
    document: Document = json.loads(done.stdout)
    return document
