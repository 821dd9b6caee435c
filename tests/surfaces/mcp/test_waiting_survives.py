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


@asynccontextmanager
async def to_be_killed(stage: Stage) -> AsyncIterator[Caller]:
    """A server that is killed at the end of the block."""
    async with open_server(stage) as (client, pid):
        yield Caller(client, Memory())
        os.kill(pid, signal.SIGKILL)


async def ask(caller: Caller, agent: str, **arguments: object) -> Document:
    """What a server says of a run that waits."""
    return await caller.call("run_subagent", agent_name=agent, prompt="one", **arguments)


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


def answered(stage: Stage, run_id: str) -> list[tuple[object, ...]]:
    sql = "SELECT act, allowed, who FROM audit WHERE act IN ('answer', 'approve') AND run_id = "
    return rows(stage, f"{sql}'{run_id}'")


async def test_what_waits_for_a_word_gets_it_after_a_kill_and_completes(
    tmp_path: Path, image: str
) -> None:
    """Questions and tool calls, in a session and without one, of an agent that worked for another,
    and of one that had changed files before.
    """
    async with on_stage(tmp_path, image) as stage:
        last = {"text": "{last_tool_result}"}
        errand = {"agent_name": "helper", "prompt": "ask"}
        hands_on = {"tool": "mcp__parent__run_subagent", "input": errand}
        copy = {"permissions": {"allow": ["Bash"]}, "workspace": "copy"}
        stage.add_agent("asks", *ASKS, ask="parent")
        stage.add_agent("asks-on", *ASKS, ask="parent", session=True)
        stage.add_agent("careful", bash("echo one"), last, **CAREFUL)
        stage.add_agent("careful-on", bash("echo one"), last, session=True, **CAREFUL)
        stage.add_agent("helper", *ASKS, ask="parent", allowed_callers=["boss"])
        stage.add_agent("boss", hands_on, last, subagents=["helper"])
        stage.add_agent("edits", bash("echo b >> b"), *ASKS, ask="parent", **copy)
        work = stage.work / "project"
        work.mkdir()
        (work / "a").write_text("a\n")
        changes = stage.state / "changes"

        async with to_be_killed(stage) as caller:
            asking = {name: await ask(caller, name) for name in ("asks", "asks-on")}
            wanting = {name: await ask(caller, name) for name in ("careful", "careful-on")}
            boss = await ask(caller, "boss")
            edits = await ask(caller, "edits", workspace=str(work))
            with anyio.fail_after(PATIENCE):
                while not list(changes.glob(f"{edits['run_id']}.[0-9]*")):
                    await anyio.sleep(0.05)

        async with serving(stage) as caller:
            for name, asked in asking.items():
                await _is_answered(stage, caller, asked, WENT_ON if "-on" in name else BEGAN_AGAIN)
            for asked in wanting.values():
                await _is_approved(stage, caller, asked)
            await _is_answered_for_another(stage, caller, boss)
            await caller.call("reply_subagent", **_question(edits), answer="blue")
            done = await caller.ended(edits["run_id"])
        # What was changed before the kill is put aside, and said.
        assert [file["path"] for file in done["changed_files"]] == ["b"]
        assert (changes / f"{edits['run_id']}.before").is_dir()
        assert any(f"changes/{edits['run_id']}.before" in each for each in done["warnings"])
        assert stage.runtime is not None
        for info in await stage.runtime.list():
            await stage.runtime.forget(info.key)


def _question(asked: Document) -> Document:
    """The only one of a run, as a reply to it names it."""
    (question,) = asked["questions"]
    return {"run_id": asked["run_id"], "message_id": question["message_id"]}


async def _is_answered(stage: Stage, caller: Caller, asked: Document, how: str) -> None:
    run_id, reply = asked["run_id"], _question(asked)
    now = await caller.call("get_task_details", task_id=run_id)
    assert now["status"] == "waiting_parent_reply"
    assert _question(now) == reply
    assert "deadline" not in now["questions"][0]
    await caller.call("reply_subagent", **reply, answer="blue", wait=True)
    done = await caller.ended(run_id)
    assert (done["status"], done["result"]) == ("completed", "it is blue")
    assert SUSPENDED_MESSAGE in done["warnings"]
    assert how in done["warnings"]
    assert done["usage"]["requests"] == 3  # one before the kill
    of = f"WHERE run_id = '{run_id}'"
    assert rows(stage, f"SELECT status, answer FROM questions {of}") == [
        ("acknowledged_by_subagent", "blue")
    ]
    assert answered(stage, run_id) == [("answer", 1, "main")]
    assert rows(stage, f"SELECT status, suspended FROM runs {of}") == [("completed", None)]
    numbers = [n for (n,) in rows(stage, f"SELECT seq FROM events {of} ORDER BY seq")]
    assert numbers == list(range(1, len(numbers) + 1))


async def _is_approved(stage: Stage, caller: Caller, asked: Document) -> None:
    run_id, call_id = asked["run_id"], asked["pending_tool_calls"][0]["call_id"]
    now = await caller.call("get_task_details", task_id=run_id)
    assert (now["status"], now["pending_tool_calls"][0]["call_id"]) == ("paused", call_id)
    edited = {call_id: {"command": "echo two"}}
    await caller.call("resume_subagent_task", task_id=run_id, edited_input=edited)
    done = await caller.ended(run_id)
    assert (done["status"], done["result"]) == ("completed", "two")
    sql = f"SELECT decision, told IS NULL FROM approvals WHERE run_id = '{run_id}'"
    assert rows(stage, sql) == [("approved", 0)]
    assert answered(stage, run_id) == [("approve", 1, "main")]


async def _is_answered_for_another(stage: Stage, caller: Caller, asked: Document) -> None:
    before = rows(stage, "SELECT message_id FROM questions")
    await caller.call("reply_subagent", **_question(asked), answer="green")
    done = await caller.ended(asked["run_id"])
    assert "it is green" in done["result"]
    sql = "SELECT agent, status, reason FROM runs WHERE agent IN ('boss', 'helper')"
    assert rows(stage, f"{sql} ORDER BY created") == [
        ("boss", "completed", "ok"),
        ("helper", "failed", "orchestrator_lost"),
        ("helper", "completed", "ok"),
    ]
    assert rows(stage, "SELECT message_id FROM questions") == before


async def test_what_waits_for_a_word_gets_it_in_a_terminal_after_a_kill(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("asks", *ASKS, ask="parent")
        stage.add_agent("careful", bash("echo one"), {"text": "without"}, **CAREFUL)
        async with to_be_killed(stage) as caller:
            asked, left = await ask(caller, "asks"), await ask(caller, "asks")
            wanted = await ask(caller, "careful")

        # Without a server, an answer waits for one, and a run is cancelled at once.
        run_id, message_id = _question(asked).values()
        pending = await orchestrator(stage, "pending", "--all")
        assert f"({message_id}; waits: its orchestrator was killed)" in pending
        said = await orchestrator(stage, "reply", run_id, message_id, "red")
        assert "it goes on when `orchestrator serve` next starts in" in said
        assert "parent_replied" in await orchestrator(stage, "runs", "--all", "--json")
        assert "cancelled" in await orchestrator(stage, "cancel", left["run_id"])
        sql = f"SELECT status, reason, suspended FROM runs WHERE run_id = '{left['run_id']}'"
        assert rows(stage, sql) == [("cancelled", "cancelled", None)]

        dead = rows(stage, "SELECT owner FROM servers")
        async with serving(stage) as caller:
            done = await caller.ended(run_id)
            assert done["result"] == "it is red"
            assert answered(stage, run_id) == [("answer", 1, "operator")]

            # With one, a decision is heard.
            with anyio.fail_after(PATIENCE):
                while not set(rows(stage, "SELECT owner FROM servers")) - set(dead):
                    await anyio.sleep(0.05)
            call_id = wanted["pending_tool_calls"][0]["call_id"]
            said = await orchestrator(stage, "reject", wanted["run_id"], call_id, "--why", "no")
            assert "orchestrator serve" not in said
            done = await caller.ended(wanted["run_id"])
        assert (done["status"], done["result"]) == ("completed", "without")
        assert rows(stage, "SELECT decision, message FROM approvals") == [("rejected", "no")]
        assert "nothing waits" in await orchestrator(stage, "pending", "--all")
