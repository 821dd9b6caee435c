"""A server that is killed while a run waits for a word: the run is there to be answered, once."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.engine.live import BEGAN_AGAIN, WENT_ON
from orchestrator.engine.tasks.lost import SUSPENDED_MESSAGE
from tests.surfaces.mcp.killed_server import Caller, Memory, open_server
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage, on_stage
from tests.surfaces.task_stage import ASKS, Document, bash

pytestmark = pytest.mark.anyio

CAREFUL = {"approval": {"Bash": "ask"}, "permissions": {"allow": ["Bash"]}}


@asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[Caller]:
    async with open_server(stage) as (client, _):
        yield Caller(client, Memory())


async def killed_while_waiting(stage: Stage, agent: str, **arguments: object) -> Document:
    """What a server says of a run that waits, before it is killed."""
    async with open_server(stage) as (client, pid):
        caller = Caller(client, Memory())
        asked = await caller.call("run_subagent", agent_name=agent, prompt="one", **arguments)
        os.kill(pid, signal.SIGKILL)
    return asked


async def orchestrator(stage: Stage, *args: str) -> str:
    """What a command prints that goes well."""
    env = {**stage.env, "PATH": os.environ["PATH"]}
    with anyio.fail_after(PATIENCE):
        done = await anyio.run_process([COMMAND, *args], env=env, stderr=subprocess.STDOUT)
    return done.stdout.decode()


def rows(stage: Stage, sql: str) -> list[tuple[object, ...]]:
    db = sqlite3.connect(stage.state / "runs.sqlite")
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


async def forget_sessions(stage: Stage) -> None:
    assert stage.runtime is not None
    for info in await stage.runtime.list():
        await stage.runtime.forget(info.key)


def answered(stage: Stage) -> list[tuple[object, ...]]:
    return rows(stage, "SELECT act, allowed, who FROM audit WHERE act IN ('answer', 'approve')")


@pytest.mark.parametrize("session", [False, True])
async def test_a_question_is_answered_after_a_kill_and_the_run_completes(
    tmp_path: Path, image: str, session: bool
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", *ASKS, ask="parent", session=session)
        asked = await killed_while_waiting(stage, "asks")
        run_id, message_id = asked["run_id"], asked["questions"][0]["message_id"]
        async with serving(stage) as caller:
            now = await caller.call("get_task_details", task_id=run_id)
            assert now["status"] == "waiting_parent_reply"
            assert now["questions"][0]["message_id"] == message_id
            assert "deadline" not in now["questions"][0]
            reply = {"run_id": run_id, "message_id": message_id, "answer": "blue"}
            await caller.call("reply_subagent", **reply, wait=True)
            done = await caller.ended(run_id)
        assert (done["status"], done["result"]) == ("completed", "it is blue")
        assert SUSPENDED_MESSAGE in done["warnings"]
        assert (WENT_ON if session else BEGAN_AGAIN) in done["warnings"]
        assert done["usage"]["requests"] == 3  # one before the kill
        assert rows(stage, "SELECT status, answer FROM questions") == [
            ("acknowledged_by_subagent", "blue")
        ]
        assert answered(stage) == [("answer", 1, "main")]
        assert rows(stage, "SELECT run_id, status, suspended FROM runs") == [
            (run_id, "completed", None)
        ]
        numbers = [n for (n,) in rows(stage, "SELECT seq FROM events ORDER BY seq")]
        assert numbers == list(range(1, len(numbers) + 1))
        await forget_sessions(stage)


@pytest.mark.parametrize("session", [False, True])
async def test_a_tool_call_is_approved_after_a_kill_and_runs_once(
    tmp_path: Path, image: str, session: bool
) -> None:
    async with on_stage(tmp_path, image) as stage:
        last = {"text": "{last_tool_result}"}
        stage.add_agent("careful", bash("echo one"), last, session=session, **CAREFUL)
        asked = await killed_while_waiting(stage, "careful")
        run_id, call_id = asked["run_id"], asked["pending_tool_calls"][0]["call_id"]
        async with serving(stage) as caller:
            now = await caller.call("get_task_details", task_id=run_id)
            assert (now["status"], now["pending_tool_calls"][0]["call_id"]) == ("paused", call_id)
            edited = {call_id: {"command": "echo two"}}
            await caller.call("resume_subagent_task", task_id=run_id, edited_input=edited)
            done = await caller.ended(run_id)
        assert (done["status"], done["result"]) == ("completed", "two")
        assert rows(stage, "SELECT decision, told IS NULL FROM approvals") == [("approved", 0)]
        assert answered(stage) == [("approve", 1, "main")]
        await forget_sessions(stage)


async def test_a_question_is_answered_in_a_terminal_while_no_server_runs(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", *ASKS, ask="parent")
        asked = await killed_while_waiting(stage, "asks")
        run_id, message_id = asked["run_id"], asked["questions"][0]["message_id"]
        pending = await orchestrator(stage, "pending", "--all")
        assert f"({message_id}; waits: its orchestrator was killed)" in pending
        said = await orchestrator(stage, "reply", run_id, message_id, "red")
        assert "it goes on when `orchestrator serve` next starts in" in said
        assert "parent_replied" in await orchestrator(stage, "runs", "--all", "--json")
        async with serving(stage) as caller:
            done = await caller.ended(run_id)
        assert done["result"] == "it is red"
        assert answered(stage) == [("answer", 1, "operator")]


async def test_a_tool_call_is_rejected_in_a_terminal_while_a_server_runs(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("careful", bash("echo one"), {"text": "without"}, **CAREFUL)
        asked = await killed_while_waiting(stage, "careful")
        run_id, call_id = asked["run_id"], asked["pending_tool_calls"][0]["call_id"]
        dead = rows(stage, "SELECT owner FROM servers")
        async with serving(stage) as caller:
            await caller.call("get_task_details", task_id=run_id)
            with anyio.fail_after(PATIENCE):
                while not set(rows(stage, "SELECT owner FROM servers")) - set(dead):
                    await anyio.sleep(0.05)
            said = await orchestrator(stage, "reject", run_id, call_id, "--why", "no")
            assert "orchestrator serve" not in said
            done = await caller.ended(run_id)
        assert (done["status"], done["result"]) == ("completed", "without")
        assert rows(stage, "SELECT decision, message FROM approvals") == [("rejected", "no")]


async def test_a_question_of_an_agent_that_worked_for_it_survives_too(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        errand = {"agent_name": "asks", "prompt": "ask"}
        hands_on = {"tool": "mcp__parent__run_subagent", "input": errand}
        stage.add_agent("asks", *ASKS, ask="parent", allowed_callers=["boss"])
        stage.add_agent("boss", hands_on, {"text": "{last_tool_result}"}, subagents=["asks"])
        asked = await killed_while_waiting(stage, "boss")
        (question,) = asked["questions"]
        async with serving(stage) as caller:
            reply = {"run_id": asked["run_id"], "message_id": question["message_id"]}
            await caller.call("reply_subagent", **reply, answer="green")
            done = await caller.ended(asked["run_id"])
        assert "it is green" in done["result"]
        ends = rows(stage, "SELECT agent, status, reason FROM runs ORDER BY created")
        assert ends == [
            ("boss", "completed", "ok"),
            ("asks", "failed", "orchestrator_lost"),
            ("asks", "completed", "ok"),
        ]
        assert len(rows(stage, "SELECT message_id FROM questions")) == 1


async def test_a_run_that_waits_without_an_orchestrator_is_cancelled_at_once(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", *ASKS, ask="parent")
        asked = await killed_while_waiting(stage, "asks")
        assert "cancelled" in await orchestrator(stage, "cancel", asked["run_id"])
        assert rows(stage, "SELECT status, reason, suspended FROM runs") == [
            ("cancelled", "cancelled", None)
        ]
        assert "nothing waits" in await orchestrator(stage, "pending", "--all")


async def test_what_was_changed_before_a_kill_is_put_aside_and_said(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        work = stage.work / "project"
        work.mkdir()
        (work / "a").write_text("a\n")
        allowed = {"permissions": {"allow": ["Bash"]}, "workspace": "copy"}
        steps = (bash("echo b >> b"), *ASKS)
        stage.add_agent("edits", *steps, ask="parent", **allowed)
        async with open_server(stage) as (client, pid):
            caller = Caller(client, Memory())
            asked = await caller.call(
                "run_subagent", agent_name="edits", prompt="x", workspace=str(work)
            )
            run_id, changes = asked["run_id"], stage.state / "changes"
            with anyio.fail_after(PATIENCE):
                while not list(changes.glob(f"{run_id}.[0-9]*")):
                    await anyio.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        async with serving(stage) as caller:
            reply = {"run_id": run_id, "message_id": asked["questions"][0]["message_id"]}
            await caller.call("reply_subagent", **reply, answer="blue")
            done = await caller.ended(run_id)
        assert [file["path"] for file in done["changed_files"]] == ["b"]
        assert (changes / f"{run_id}.before").is_dir()
        assert any(f"changes/{run_id}.before" in warning for warning in done["warnings"])
