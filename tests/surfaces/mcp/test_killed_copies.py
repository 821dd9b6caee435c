"""A server that is killed while an agent works on a copy: what it had changed is kept."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from tests.surfaces.mcp.killed_server import Caller, Memory, open_server
from tests.surfaces.mcp.mcp_stage import PATIENCE, on_stage
from tests.surfaces.task_stage import ASKS, bash

pytestmark = pytest.mark.anyio


async def test_what_an_agent_had_changed_before_it_asked_survives_its_server(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        file = stage.work / "greeting.txt"
        file.write_text("hello\n")
        fields = {"ask": "parent", "workspace": "copy", "permissions": {"allow": ["Bash"]}}
        stage.add_agent("edits", bash("echo late > greeting.txt"), *ASKS, **fields)
        async with open_server(stage) as (client, pid):
            caller = Caller(client, Memory())
            place = {"workspace": str(stage.work)}
            asked = await caller.call("run_subagent", agent_name="edits", prompt="x", **place)
            run = {"run_id": asked["run_id"]}
            with anyio.fail_after(PATIENCE):
                while "so far" not in str(await caller.look("get_logs", **run)):
                    await anyio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        async with open_server(stage) as (client, _):
            caller = Caller(client, Memory())
            lost = await caller.call("cancel_task", task_id=asked["run_id"])
            assert (lost["status"], lost["reason"]) == ("cancelled", "cancelled")
            assert f"`orchestrator apply {asked['run_id']}` applies it" in lost["message"]
            assert [changed["path"] for changed in lost["changed_files"]] == ["greeting.txt"]
            assert "-hello\n+late\n" in lost["patch"]
            assert file.read_text() == "hello\n"
            await caller.look("apply_changes", **run)
            assert file.read_text() == "late\n"
