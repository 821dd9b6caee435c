"""A server that is killed while tasks are under way; `make soak` does it more often."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests.surfaces.mcp.killed_server import Caller, Lives, Memory, add_agents, open_server
from tests.surfaces.mcp.mcp_stage import on_stage
from tests.surfaces.task_stage import ASKS

pytestmark = pytest.mark.anyio

KILLS = 2


async def test_nothing_that_a_killed_server_has_acknowledged_is_lost(
    tmp_path: Path, image: str
) -> None:
    seed = random.SystemRandom().randrange(1, 2**32)
    print(f"seed {seed}")
    async with on_stage(tmp_path, image) as stage:
        add_agents(stage)
        lives = Lives(stage, seed)
        for _ in range(KILLS):
            await lives.live_and_die()


async def test_a_run_that_waited_in_a_session_goes_on_there_after_a_kill(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", ASKS[0], {"text": "{user_texts}"}, ask="parent", session=True)
        async with open_server(stage) as (client, pid):
            caller = Caller(client, Memory())
            asked = await caller.call("run_subagent", agent_name="asks", prompt="one")
            assert asked["status"] == "waiting_parent_reply"
            os.kill(pid, signal.SIGKILL)
        async with open_server(stage) as (client, _):
            caller = Caller(client, Memory())
            lost = await caller.call("get_task_details", task_id=asked["run_id"])
            assert (lost["reason"], lost["session"]) == ("orchestrator_lost", "default")
            resume = {"task_id": asked["run_id"], "input": "two", "wait": True}
            again = await caller.call("resume_subagent_task", **resume)
            answer = {"message_id": again["questions"][0]["message_id"], "answer": "yes"}
            reply = {"run_id": again["run_id"], **answer, "wait": True}
            done = await caller.call("reply_subagent", **reply)
            assert done["result"] == "one; two"
        assert stage.runtime is not None
        for info in await stage.runtime.list():
            await stage.runtime.forget(info.key)
