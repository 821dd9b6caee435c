"""The real claude CLI on both ends: a parent that delegates, a child in a container of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.surfaces.mcp.claude_parent import Document, Play, claude_plays, tool
from tests.surfaces.mcp.mcp_stage import PATIENCE, Stage, on_stage
from tests.surfaces.task_stage import ASKS, bash

pytestmark = pytest.mark.anyio

VERSION = "2.1.325"
"""Of the parent's CLI."""

BASH = {"permissions": {"allow": ["Bash"]}}


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def test_a_child_asks_and_finishes_with_what_its_parent_answers(
    stage: Stage, tmp_path: Path
) -> None:
    stage.add_agent("asks", *ASKS, ask="parent")
    seen: list[Document] = []

    async def play() -> Play:
        asked = yield tool("run_subagent", agent_name="asks", prompt="Paint it.")
        (question,) = asked["questions"]
        done = yield tool(
            "reply_subagent",
            run_id=asked["run_id"],
            message_id=question["message_id"],
            answer="blue",
            wait=True,
        )
        seen.extend((asked, done))
        yield {"text": f"The child says: {done['result']}"}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "The child says: it is blue"
    asked, done = seen
    assert (asked["status"], asked["questions"][0]["question"]) == (
        "waiting_parent_reply",
        "Which colour?",
    )
    assert (done["run_id"], done["status"]) == (asked["run_id"], "completed")
    assert stage.runs() == [("asks", "completed", "ok")]


async def test_a_tool_call_is_denied_and_the_next_allowed_with_other_input(
    stage: Stage, tmp_path: Path
) -> None:
    steps = (bash("echo one | tee f"), bash("echo two"), {"text": "I got {last_tool_result}"})
    stage.add_agent("careful", *steps, approval={"Bash": "ask"}, **BASH)
    seen: list[Document] = []

    async def play() -> Play:
        first = yield tool("run_subagent", agent_name="careful", prompt="Do it.")
        (wanted,) = first["pending_tool_calls"]
        run = {"task_id": first["run_id"], "wait": True}
        second = yield tool(
            "resume_subagent_task", **run, reject=[wanted["call_id"]], input="leave f alone"
        )
        (wanted,) = second["pending_tool_calls"]
        # What only its parent knows: the file must not be there.
        edited = {"command": "test ! -e f && echo three"}
        done = yield tool("resume_subagent_task", **run, edited_input={wanted["call_id"]: edited})
        seen.extend((first, second, done))
        yield {"text": f"The child says: {done['result']}"}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "The child says: I got three"
    commands = [each["pending_tool_calls"][0]["input"]["command"] for each in seen[:2]]
    assert commands == ["echo one | tee f", "echo two"]
    assert [each["status"] for each in seen] == ["paused", "paused", "completed"]
    decided = _rows(stage, "SELECT decision, message FROM approvals ORDER BY asked")
    assert decided == [("rejected", "leave f alone"), ("approved", "")]


async def test_children_in_the_background_are_waited_for_steered_and_cancelled(
    stage: Stage, tmp_path: Path
) -> None:
    stage.add_agent(
        "works", bash("tail -f /dev/null"), {"text": "I heard: {last_user_text}"}, **BASH
    )
    seen: list[Document] = []

    async def play() -> Play:
        begun = yield tool("run_subagent", agent_name="works", prompt="One.", background=True)
        one = begun["run_id"]
        begun = yield tool("run_subagent", agent_name="works", prompt="Two.", background=True)
        two = begun["run_id"]
        await _at_work(stage, one, two)
        waited = yield tool("wait_for_tasks", task_ids=[one, two], timeout=0.1)
        steered = yield tool("resume_subagent_task", task_id=one, input="Leave that.")
        first = yield tool("wait_for_tasks", task_ids=[one, two], until="any")
        second = yield tool("cancel_task", task_id=two)
        seen.extend((waited, steered, first, second))
        yield {"text": f"{first['tasks'][0]['result']} / {second['status']}"}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "I heard: Leave that. / cancelled"
    waited, steered, first, second = seen
    assert waited["running"] == [task["run_id"] for task in waited["tasks"]]  # both at work
    assert steered["status"] == "running"
    assert first["running"] == [second["run_id"]]
    ended = [("works", "cancelled", "cancelled"), ("works", "completed", "ok")]
    assert sorted(stage.runs()) == ended


async def _at_work(stage: Stage, *run_ids: str) -> None:
    """Wait until the agents of all these runs use a tool."""
    sql = "SELECT DISTINCT run_id FROM events WHERE kind = 'tool_call'"
    with anyio.fail_after(PATIENCE):
        while {run_id for (run_id,) in _rows(stage, sql)} < set(run_ids):
            await anyio.sleep(0.05)


def _rows(stage: Stage, sql: str) -> list[tuple[str, ...]]:
    db = sqlite3.connect(stage.state / "runs.sqlite")
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
