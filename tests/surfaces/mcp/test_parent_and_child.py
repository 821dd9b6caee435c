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

DECISIONS = "SELECT decision FROM approvals"

BASH = {"permissions": {"allow": ["Bash"]}}


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        yield stage


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
        steered = yield tool("resume_subagent_task", task_id=one, input="Leave that.", now=True)
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


# With nothing but the structured content


async def test_a_bug_is_fixed_in_a_copy_and_the_fix_is_applied(
    stage: Stage, tmp_path: Path
) -> None:
    place = stage.work / "project"
    place.mkdir()
    (place / "add.py").write_text("def add(a, b):\n    return a - b\n")
    fix = "sed -i 's/a - b/a + b/' add.py && python3 -m compileall -q . && ls __pycache__"
    stage.add_agent("fixer", bash(fix), {"text": "Fixed."}, workspace="copy", **BASH)
    seen: list[Document] = []

    async def play() -> Play:
        fixed = yield tool(
            "run_subagent", agent_name="fixer", prompt="Mend add.py.", workspace=str(place)
        )
        applied = yield as_told(fixed)
        seen.extend((fixed, applied))
        yield {"text": f"{len(applied['files'])} files are applied."}

    assert await claude_plays(stage, tmp_path / "home", play(), VERSION) == "2 files are applied."
    fixed, applied = seen
    assert "-    return a - b\n+    return a + b\n" in fixed["patch"]
    assert "GIT binary patch" not in fixed["patch"]
    source, compiled = fixed["changed_files"]
    assert (source["path"], source["added_lines"], source["removed_lines"]) == ("add.py", 1, 1)
    assert compiled["binary"] is True
    assert fixed["patch_uri"] == f"orchestrator://runs/{fixed['run_id']}/patch"
    assert "next" not in applied
    assert (place / "add.py").read_text() == "def add(a, b):\n    return a + b\n"


async def test_a_child_asks_and_its_child_asks_and_both_finish_with_what_is_answered(
    stage: Stage, tmp_path: Path
) -> None:
    stage.add_agent("worker", *ASKS, ask="parent", allowed_callers=["main", "lead"])
    errand = {"agent_name": "worker", "prompt": "Paint it."}
    steps = ({"tool": "mcp__parent__run_subagent", "input": errand}, ASKS[-1])
    stage.add_agent("lead", *steps, subagents=["worker"])
    seen: list[Document] = []

    async def play() -> Play:
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
        done = yield tool("wait_for_tasks", task_ids=[asked["run_id"]])
        seen.extend((asked, done))
        yield {"text": f"The child says: {seen[1]['result']}"}

    said = await claude_plays(stage, tmp_path / "home", play(), VERSION)
    assert said == "The child says: it is red"
    asked, answered, asked_below, done = seen
    assert (asked["status"], asked["questions"][0]["question"]) == (
        "waiting_parent_reply",
        "Which colour?",
    )
    assert (answered["run_id"], answered["status"]) == (asked["run_id"], "completed")
    assert asked_below["questions"][0]["run_id"] != asked_below["run_id"]
    assert done["tasks"][0]["status"] == "completed"
    assert "it is blue" in done["tasks"][0]["result"]
    ended = [("lead", "completed", "ok"), *[("worker", "completed", "ok")] * 2]
    assert sorted(stage.runs()) == ended


async def test_an_approval_that_is_a_persons_is_refused_to_the_parent(
    stage: Stage, tmp_path: Path
) -> None:
    steps = (bash("echo one"), {"text": "I got {last_tool_result}"})
    stage.add_agent("careful", *steps, approval={"Bash": "ask"}, approval_by="user", **BASH)
    seen: list[Document] = []

    async def play() -> Play:
        wanted = yield tool("run_subagent", agent_name="careful", prompt="Do it.")
        run_id, call_id = wanted["run_id"], wanted["pending_tool_calls"][0]["call_id"]
        refused = yield tool("resume_subagent_task", task_id=run_id, approve_all=True)
        assert [decision for (decision,) in _rows(stage, DECISIONS)] == ["pending"]
        await anyio.run_process([COMMAND, "approve", run_id, call_id], env=stage.env)
        done = yield as_told(wanted)
        seen.extend((wanted, refused, done))
        yield {"text": str(done["tasks"][0]["result"])}

    assert await claude_plays(stage, tmp_path / "home", play(), VERSION) == "I got one"
    wanted, refused, _ = seen
    assert (wanted["status"], wanted["pending_tool_calls"][0]["approval_by"]) == ("paused", "user")
    assert "`orchestrator approve " in wanted["next"]
    assert "only a person may allow this" in refused["error_text"]
    assert _rows(stage, DECISIONS) == [("approved",)]


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
