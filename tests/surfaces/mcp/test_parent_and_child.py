"""The real claude CLI on both ends: a parent that delegates, a child in a container of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.surfaces.mcp.claude_parent import Document, Play, as_told, claude_plays, tool
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage, on_stage
from tests.surfaces.task_stage import ASKS, bash

pytestmark = pytest.mark.anyio

VERSION = "2.1.325"
"""Of the parent's CLI."""

BASH = {"permissions": {"allow": ["Bash"]}}


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


async def test_tool_calls_are_decided_on_and_a_fix_is_applied(stage: Stage, tmp_path: Path) -> None:
    """By a parent that has nothing but the structured content."""
    steps = (bash("echo one | tee f"), bash("echo two"), {"text": "I got {last_tool_result}"})
    stage.add_agent("careful", *steps, approval={"Bash": "ask"}, **BASH)
    guarded = {"approval": {"Bash": "ask"}, "approval_by": "user", **BASH}
    stage.add_agent("guarded", steps[1], steps[2], **guarded)
    fix = "sed -i 's/a - b/a + b/' add.py && python3 -m compileall -q . && ls __pycache__"
    stage.add_agent("fixer", bash(fix), {"text": "Fixed."}, workspace="copy", **BASH)
    place = stage.work / "project"
    place.mkdir()
    (place / "add.py").write_text("def add(a, b):\n    return a - b\n")
    seen: list[Document] = []

    async def play() -> Play:
        # A call is denied, and the next one allowed with other input.
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

        # A decision that is a person's is refused to the parent.
        first = yield tool("run_subagent", agent_name="guarded", prompt="Do it.")
        run_id, call_id = first["run_id"], first["pending_tool_calls"][0]["call_id"]
        refused = yield tool("resume_subagent_task", task_id=run_id, approve_all=True)
        seen.append({"decision": _decisions(stage)[-1]})
        await anyio.run_process([COMMAND, "approve", run_id, call_id], env=stage.env)
        done = yield as_told(first)
        seen.extend((first, refused, done))

        # A bug is fixed in a copy, and the fix is applied.
        fixed = yield tool(
            "run_subagent", agent_name="fixer", prompt="Mend add.py.", workspace=str(place)
        )
        applied = yield as_told(fixed)
        seen.extend((fixed, applied))
        yield {"text": f"{len(applied['files'])} files are applied."}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "2 files are applied."

    first, second, done = seen[:3]
    commands = [each["pending_tool_calls"][0]["input"]["command"] for each in (first, second)]
    assert commands == ["echo one | tee f", "echo two"]
    assert [each["status"] for each in seen[:3]] == ["paused", "paused", "completed"]
    assert done["result"] == "I got three"

    pending, wanted, refused, done = seen[3:7]
    assert pending["decision"] == ("pending", "")
    assert (wanted["status"], wanted["pending_tool_calls"][0]["approval_by"]) == ("paused", "user")
    assert "`orchestrator approve " in wanted["next"]
    assert "only a person may allow this" in refused["error_text"]
    assert done["tasks"][0]["result"] == "I got two"
    decided = [("rejected", "leave f alone"), ("approved", ""), ("approved", "")]
    assert _decisions(stage) == decided

    fixed, applied = seen[7:]
    assert "-    return a - b\n+    return a + b\n" in fixed["patch"]
    assert "GIT binary patch" not in fixed["patch"]
    source, compiled = fixed["changed_files"]
    assert (source["path"], source["added_lines"], source["removed_lines"]) == ("add.py", 1, 1)
    assert compiled["binary"] is True
    assert fixed["patch_uri"] == f"orchestrator://runs/{fixed['run_id']}/patch"
    assert "next" not in applied
    assert (place / "add.py").read_text() == "def add(a, b):\n    return a + b\n"


async def test_children_are_steered_and_cancelled_and_get_their_questions_answered(
    stage: Stage, tmp_path: Path
) -> None:
    """In the background; and those of a child that works for another, too."""
    heard = {"text": "I heard: {last_user_text}"}
    stage.add_agent("works", bash("tail -f /dev/null"), heard, **BASH)
    stage.add_agent("worker", *ASKS, ask="parent", allowed_callers=["main", "lead"])
    errand = {"agent_name": "worker", "prompt": "Paint it."}
    steps = ({"tool": "mcp__parent__run_subagent", "input": errand}, ASKS[-1])
    stage.add_agent("lead", *steps, subagents=["worker"])
    seen: list[Document] = []

    async def play() -> Play:
        begun = yield tool("run_subagent", agent_name="works", prompt="One.", background=True)
        one = begun["run_id"]
        begun = yield tool("run_subagent", agent_name="works", prompt="Two.", background=True)
        two = begun["run_id"]
        await _at_work(stage, one, two)
        waited = yield tool("wait_for_tasks", task_ids=[one, two], timeout=0.1)
        steered = yield tool("resume_subagent_task", task_id=one, input="Leave that.", now=True)
        first = yield tool("wait_for_tasks", task_ids=[one, two], until="any")
        second = yield tool("cancel_task", task_id=two)
        seen.extend((waited, steered, first, second))

        asked = yield tool("run_subagent", agent_name="worker", prompt="Paint it.")
        (question,) = asked["questions"]
        done = yield tool(
            "reply_subagent",
            run_id=asked["run_id"],
            message_id=question["message_id"],
            answer="red",
            wait=True,
        )
        seen.extend((asked, done))
        asked = yield tool("run_subagent", agent_name="lead", prompt="Have it painted.")
        yield as_told(asked, answer="blue")
        below = yield tool("wait_for_tasks", task_ids=[asked["run_id"]])
        seen.extend((asked, below))
        yield {"text": f"The child says: {done['result']}"}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "The child says: it is red"

    waited, steered, first, second = seen[:4]
    assert waited["running"] == [task["run_id"] for task in waited["tasks"]]  # both at work
    assert steered["status"] == "running"
    assert first["running"] == [second["run_id"]]
    (result,) = [task["result"] for task in first["tasks"] if task["status"] == "completed"]
    assert (result, second["status"]) == ("I heard: Leave that.", "cancelled")

    asked, answered, asked_below, done = seen[4:]
    assert (asked["status"], asked["questions"][0]["question"]) == (
        "waiting_parent_reply",
        "Which colour?",
    )
    assert (answered["run_id"], answered["status"]) == (asked["run_id"], "completed")
    assert asked_below["questions"][0]["run_id"] != asked_below["run_id"]
    assert done["tasks"][0]["status"] == "completed"
    assert "it is blue" in done["tasks"][0]["result"]
    ended = [
        ("lead", "completed", "ok"),
        *[("worker", "completed", "ok")] * 2,
        ("works", "cancelled", "cancelled"),
        ("works", "completed", "ok"),
    ]
    assert sorted(stage.runs()) == ended


async def _at_work(stage: Stage, *run_ids: str) -> None:
    """Wait until the agents of all these runs use a tool."""
    sql = "SELECT DISTINCT run_id FROM events WHERE kind = 'tool_call'"
    with anyio.fail_after(PATIENCE):
        while {run_id for (run_id,) in _rows(stage, sql)} < set(run_ids):
            await anyio.sleep(0.05)


def _decisions(stage: Stage) -> list[tuple[str, ...]]:
    return _rows(stage, "SELECT decision, message FROM approvals ORDER BY asked")


def _rows(stage: Stage, sql: str) -> list[tuple[str, ...]]:
    db = sqlite3.connect(stage.state / "runs.sqlite")
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()
