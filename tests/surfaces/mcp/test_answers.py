"""What a model on the other end gets: errors that fit their schema, what to do next."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import mcp.types as t
import pytest
from mcp import Client

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.surfaces.mcp import server
from orchestrator.surfaces.mcp.answers.answer import (
    document,
    result_answer,
    run_answer,
    tasks_answer,
)
from orchestrator.surfaces.mcp.answers.shown_changes import SHOWN_FILES, SHOWN_PATCH_LINES
from orchestrator.surfaces.mcp.server import GREETED_AGENTS
from tests.answers_check import check_answer
from tests.surfaces.mcp.mcp_stage import ERAS, TOOLS, text
from tests.surfaces.task_stage import Document, Serve

era = pytest.mark.parametrize("era", ERAS)

PAGE = (Path(server.__file__).parent / "README.md").read_text()

DONE = RunResult(
    run_id="r1", agent="edit", caller="main", status="completed", reason="ok", result="done"
)

TEXT_PART = """diff --git a/add.py b/add.py
index 1..2 100644
--- a/add.py
+++ b/add.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""

BINARY_PART = """diff --git a/add.pyc b/add.pyc
new file mode 100644
index 0..1
GIT binary patch
literal 12
TcmZQzfB+^N3;+Nd0s#O32mk;8

literal 0
HcmV?d00001

"""


def edited(patch: str, *paths: str) -> RunResult:
    files = tuple(ChangedFile(path=path, change="modified") for path in paths)
    return DONE.model_copy(update={"changed_files": files, "patch": patch})


def content(answer: t.CallToolResult) -> Document:
    check_answer("test", answer)
    found: Document | None = answer.structured_content
    assert found is not None
    return found


# The structured content


def test_a_result_says_what_to_do_next_and_has_no_empty_fields() -> None:
    said = content(result_answer(edited(TEXT_PART, "add.py")))
    assert said == {
        "run_id": "r1",
        "agent": "edit",
        "caller": "main",
        "status": "completed",
        "reason": "ok",
        "result": "done",
        "attempts": 0,
        "duration_ms": 0,
        "cost_usd": 0.0,
        "usage": DONE.usage.model_dump(),
        "next": (
            "the agent worked on a copy, and nothing is applied yet: look at what it changed, then "
            'call apply_changes with run_id "r1"'
        ),
        "changed_files": [
            {"path": "add.py", "change": "modified", "added_lines": 1, "removed_lines": 1}
        ],
        "patch": TEXT_PART,
    }
    in_session = DONE.model_copy(update={"session": "s1", "result": ""})
    said = content(result_answer(in_session))
    assert said["result"] == ""  # an answer, if an empty one
    assert said["next"] == (
        "to go on in the same conversation, call run_subagent with agent_name "
        '"edit" and session "s1"'
    )
    assert "next" not in content(result_answer(DONE))


def test_binary_files_are_named_and_not_spelt_out() -> None:
    said = content(result_answer(edited(BINARY_PART + TEXT_PART, "add.pyc", "add.py")))
    assert said["patch"] == TEXT_PART
    assert said["patch_uri"] == "orchestrator://runs/r1/patch"
    assert [file["path"] for file in said["changed_files"]] == ["add.py", "add.pyc"]
    assert said["changed_files"][1] == {"path": "add.pyc", "change": "modified", "binary": True}


def test_a_long_patch_is_handed_over_by_reference_with_a_summary_by_file() -> None:
    lines = SHOWN_PATCH_LINES + 1
    more = "".join(f"+line {number}\n" for number in range(lines))
    head = "diff --git a/long b/long\n--- a/long\n+++ b/long\n@@ -0,0 +1 @@\n"
    said = content(result_answer(edited(head + more, "long")))
    assert "patch" not in said
    assert said["patch_uri"] == "orchestrator://runs/r1/patch"
    assert said["changed_files"][0]["added_lines"] == lines
    many = [f"f{number}" for number in range(SHOWN_FILES + 3)]
    said = content(result_answer(edited("", *many)))
    assert (len(said["changed_files"]), said["changed_files_more"]) == (SHOWN_FILES, 3)


def test_what_a_subagent_asks_carries_its_own_run() -> None:
    asked = Question(
        message_id="m1", run_id="below", question="Which?", default_answer="The first one."
    )
    call = Approval(call_id="t1", run_id="below", tool="Bash", input={"command": "ls"})
    view = TaskView(
        run_id="above",
        agent="lead",
        caller="main",
        status="waiting_parent_reply",
        questions=(asked,),
        approvals=(call,),
    )
    said = content(run_answer(view))
    assert said["questions"][0]["run_id"] == said["pending_tool_calls"][0]["run_id"] == "below"
    assert said["questions"][0]["default_answer"] == "The first one."
    assert 'reply_subagent(run_id="below", message_id="m1"' in said["next"]
    assert 'resume_subagent_task(task_id="below", approve=["t1"])' in said["next"]


def test_a_model_is_told_that_a_person_has_to_decide_and_how() -> None:
    call = Approval(call_id="t1", run_id="r1", tool="Bash", approval_by="user")
    view = TaskView(run_id="r1", agent="a", caller="main", status="paused", approvals=(call,))
    said = content(run_answer(view))
    assert said["pending_tool_calls"][0]["approval_by"] == "user"
    assert "resume_subagent_task" not in said["next"]
    assert "`orchestrator approve r1 t1`" in said["next"]
    assert 'call wait_for_tasks with task_ids ["r1"]' in said["next"]


def test_a_task_that_has_not_begun_is_not_said_to_run() -> None:
    views = [
        TaskView(run_id="r1", agent="a", caller="main", status="pending"),
        TaskView(run_id="r2", agent="a", caller="main", status="running"),
    ]
    answer = tasks_answer(views)
    said = content(answer)
    assert (said["pending"], said["running"]) == (["r1"], ["r2"])
    assert said["next"] == 'call wait_for_tasks with task_ids ["r1", "r2"]'
    assert "Still running: r2.\nNot begun yet: r1.\nNext: " in text(answer)


def test_the_page_names_every_field_of_a_result() -> None:
    section = PAGE.partition("## Results")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    added = {"next", "unheard", "patch_uri", "changed_files_more"}
    assert listed == set(RunResult.model_fields) | added


# Errors


WRONG: dict[str, Document] = {
    "run_subagent": {"agent_name": "nobody", "prompt": "x"},
    "delegate_task": {"agent": "nobody", "task": "x", "working_directory": "here"},
    "apply_changes": {"run_id": "r0"},
    "run_subagents": {"tasks": [{"agent_name": "nobody", "prompt": "x"}]},
    "wait_for_tasks": {"task_ids": ["r0"]},
    "get_all_tasks": {"status": "gone"},
    "get_task_details": {"task_id": "r0"},
    "get_logs": {"run_id": "r0"},
    "cancel_task": {"task_id": "r0"},
    "reply_subagent": {"run_id": "r0", "message_id": "m0", "answer": "x"},
    "resume_subagent_task": {"task_id": "r0", "input": "x"},
}
"""A call of each tool that cannot be served."""


@era
@pytest.mark.anyio
async def test_the_errors_of_every_tool_fit_what_it_declares(serve: Serve, era: str) -> None:
    async with serve(era) as server:
        tools = (await server.client.list_tools()).tools
        assert {tool.name for tool in tools} == set(TOOLS) == {"list_agents", *WRONG}
        for tool in tools:
            assert tool.output_schema is not None, tool.name
        for name, arguments in WRONG.items():
            await server.refused(name, **arguments)
            code, said = await server.refused(name, **arguments, surprise=1)
            assert code == "caller_error"
            assert said.startswith(f"{name}: there is no argument surprise. It takes ")
            code, said = await server.refused(name, **dict.fromkeys(arguments, 7.5))
            assert code == "caller_error"
            assert "pydantic" not in said
        _, said = await server.refused("run_subagent", agentname="x", prompt="y")
        assert said == (
            "run_subagent: agent_name is missing; there is no argument agentname. It takes "
            "agent_name, prompt [context, workspace, session, background]"
        )


# Who is there


@era
@pytest.mark.anyio
async def test_the_instructions_list_the_agents(serve: Serve, era: str) -> None:
    async with serve(era) as server:
        for number in range(GREETED_AGENTS + 2):
            server.agent(f"a{number:02}", {"text": "x"}, description="Long. " * 100)
        async with serve(era) as later:
            said = _instructions(later.client)
    lines = said.partition("\nAgents:\n")[2].splitlines()
    assert len(lines) == GREETED_AGENTS + 1
    assert lines[0].startswith("- a00-")
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "(2 more: list_agents)"


def _instructions(client: Client) -> str:
    return cast("str", client.instructions)


def test_documents_of_runs_under_way_have_no_empty_fields() -> None:
    view = TaskView(run_id="r1", agent="a", caller="main", status="running")
    assert set(document(view)) == {"run_id", "agent", "caller", "status", "next"}
