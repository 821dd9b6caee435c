"""A server that is killed while tasks are under way; `make soak` does it more often."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import anyio
import pytest

from tests.surfaces.mcp.killed_server import (
    AT_WORK,
    Caller,
    Lives,
    Memory,
    add_agents,
    kinds,
    open_server,
)
from tests.surfaces.mcp.mcp_stage import on_stage
from tests.surfaces.task_stage import bash

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


async def test_a_run_that_worked_in_a_session_can_be_gone_on_from_after_a_kill(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        works = {"permissions": {"allow": ["Bash"]}, "session": True}
        stage.add_agent("works", bash(AT_WORK), {"text": "{user_texts}"}, **works)
        async with open_server(stage) as (client, pid):
            caller = Caller(client, Memory())
            begun = await caller.call(
                "run_subagent", agent_name="works", prompt="one", background=True
            )
            while "tool_call" not in await kinds(caller, begun["run_id"]):
                await anyio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        async with open_server(stage) as (client, _):
            caller = Caller(client, Memory())
            lost = await caller.call("get_task_details", task_id=begun["run_id"])
            assert (lost["reason"], lost["session"]) == ("orchestrator_lost", "default")
            stage.add_agent("works", {"text": "{user_texts}"}, **works)
            resume = {"task_id": begun["run_id"], "input": "two", "wait": True}
            again = await caller.call("resume_subagent_task", **resume)
            done = await caller.ended(again["run_id"])
            assert done["result"].startswith("one; ")
            assert done["result"].endswith("two")
        assert stage.runtime is not None
        for info in await stage.runtime.list():
            await stage.runtime.forget(info.key)
