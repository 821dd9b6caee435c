"""Questions, approvals and words in between, through MCP clients of both eras."""

from __future__ import annotations

from typing import cast

import anyio
import mcp.types as t
import pytest

from orchestrator.domain.exchange import Approval
from orchestrator.engine.tasks.task_book import TaskView
from orchestrator.surfaces.mcp.answers.answer import details, document, run_answer
from tests.surfaces.mcp.mcp_stage import COMMAND, ERAS, PATIENCE, Stage, call, text, unfenced
from tests.surfaces.task_stage import ASKS, Document, Serve, bash

pytestmark = pytest.mark.anyio

era = pytest.mark.parametrize("era", ERAS)


# Questions


@era
async def test_a_question_ends_the_wait_and_its_answer_ends_the_task(
    serve: Serve, era: str
) -> None:
    async with serve(era) as server:
        agent = server.agent("asks", *ASKS, ask="parent")
        result = await call(server.client, "run_subagent", agent_name=agent, prompt="x")
        asked = result.structured_content
        assert asked is not None
        assert asked["status"] == "waiting_parent_reply"
        (question,) = asked["questions"]
        assert question["question"] == "Which colour?"
        run_id, message_id = asked["run_id"], question["message_id"]
        assert asked["next"] == (
            f'answer with reply_subagent(run_id="{run_id}", message_id="{message_id}", '
            'answer="...")'
        )
        asks = f"It asks ({message_id}):\n> Which colour?\nWithout an answer in time, "
        assert asks in text(result)
        again = await server.call("wait_for_tasks", task_ids=[run_id])
        assert again["tasks"][0]["questions"] == [question]

        answer = {"run_id": run_id, "message_id": message_id, "answer": "blue"}
        done = await server.call("reply_subagent", **answer, wait=True)
        assert (done["status"], done["result"]) == ("completed", "it is blue")

        code, said = await server.refused("reply_subagent", **answer)
        assert (code, said) == (
            "run_refused",
            f"run {run_id} has ended, so no agent is there to hear the answer",
        )
        _, said = await server.refused("reply_subagent", **{**answer, "message_id": "m0"})
        assert said == f"run {run_id} has asked no question 'm0'"


@pytest.mark.parametrize(("era", "action"), [("auto", "decline"), ("legacy", "accept")])
async def test_a_person_is_asked_where_the_author_wants_it(
    serve: Serve, era: str, action: str
) -> None:
    forms: list[str] = []

    async def person(ctx: object, params: t.ElicitRequestParams) -> t.ElicitResult:
        forms.append(params.message)
        if action == "accept":
            return t.ElicitResult(action="accept", content={"answer": "green"})
        return t.ElicitResult(action="decline")

    async with serve(era, elicitation_callback=person) as server:
        agent = server.agent("asks", *ASKS, ask="user")
        now = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert len(forms) == 1
        assert "asks:\n\nWhich colour?\n" in forms[0]
        if action == "accept":
            assert now["result"] == "it is green"
            return
        assert now["status"] == "waiting_parent_reply"
        answer = {"message_id": now["questions"][0]["message_id"], "answer": "red"}
        done = await server.call("reply_subagent", run_id=now["run_id"], **answer, wait=True)
        assert done["result"] == "it is red"


async def test_the_parent_is_asked_if_the_client_cannot_ask_a_person(
    serve: Serve,
) -> None:
    async with serve() as server:
        agent = server.agent("asks", *ASKS, ask="user")
        now = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert now["status"] == "waiting_parent_reply"
        await server.call("cancel_task", task_id=now["run_id"])


@pytest.mark.parametrize(("above", "below"), [("parent", "user"), ("user", "parent")])
async def test_whether_a_person_is_asked_is_up_to_the_author_of_the_agent_that_asks(
    serve: Serve, above: str, below: str
) -> None:
    forms: list[str] = []

    async def person(ctx: object, params: t.ElicitRequestParams) -> t.ElicitResult:
        forms.append(params.message)
        return t.ElicitResult(action="accept", content={"answer": "green"})

    async with serve(elicitation_callback=person) as server:
        lead, worker = f"lead-{server.caller}", f"worker-{server.caller}"
        server.stage.add_agent(worker, *ASKS, ask=below, allowed_callers=[lead])
        errand = {"agent_name": worker, "prompt": "x"}
        steps = ({"tool": "mcp__parent__run_subagent", "input": errand}, ASKS[-1])
        server.agent("lead", *steps, ask=above, subagents=[worker])
        now = await server.call("run_subagent", agent_name=lead, prompt="x")
        if below == "user":
            assert (len(forms), unfenced(now["result"])) == (1, "it is it is green")
            return
        assert (forms, len(now["questions"])) == ([], 1)
        await server.call("cancel_task", task_id=now["run_id"])


# Approvals and steering


async def test_tool_calls_are_rejected_and_approved_with_other_input(serve: Serve) -> None:
    async with serve() as server:
        agent = server.agent(
            "careful",
            bash("echo one"),
            bash("echo two"),
            {"text": "{last_tool_result}"},
            permissions={"allow": ["Bash"]},
            approval={"Bash": "ask"},
        )
        now = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert now["status"] == "paused"
        (wanted,) = now["pending_tool_calls"]
        assert (wanted["tool"], wanted["input"]["command"]) == ("Bash", "echo one")
        task = {"task_id": now["run_id"]}
        assert "resume_subagent_task" in now["next"]

        _, said = await server.refused("resume_subagent_task", **task, input="hurry")
        assert "waits for tool calls to be approved" in said
        _, said = await server.refused("resume_subagent_task", **task, approve=["other"])
        assert said.endswith(f"waiting: {wanted['call_id']}")
        _, said = await server.refused("resume_subagent_task", **task)
        assert said == "there is nothing to do; give approve, reject, or input"
        both = {"approve_all": True, "reject_all": True}
        _, said = await server.refused("resume_subagent_task", **task, **both)
        assert said.startswith("approve_all and reject_all are both true")
        _, said = await server.refused(
            "resume_subagent_task", **task, approve_all=True, input="and be quick", now=True
        )
        assert said.startswith("now would stop what is approved")

        now = await server.call(
            "resume_subagent_task", **task, reject_all=True, input="not that", wait=True
        )
        (wanted,) = now["pending_tool_calls"]
        assert wanted["input"]["command"] == "echo two"
        edited = {wanted["call_id"]: {"command": "echo three"}}
        done = await server.call("resume_subagent_task", **task, edited_input=edited, wait=True)
        assert (done["status"], done["result"]) == ("completed", "three")


async def test_a_running_agent_is_told_something(serve: Serve) -> None:
    async with serve() as server:
        agent = server.agent(
            "busy",
            bash("python3 -c 'import time; time.sleep(500)'"),
            {"text": "heard: {last_user_text}"},
            permissions={"allow": ["Bash"]},
        )
        run = await server.call("run_subagent", agent_name=agent, prompt="x", background=True)
        with anyio.fail_after(PATIENCE):
            while True:  # until it is at work
                log = await server.call("get_logs", run_id=run["run_id"])
                if "tool_call" in [event["kind"] for event in log["events"]]:
                    break
                await anyio.sleep(0.05)
        done = await server.call(
            "resume_subagent_task", task_id=run["run_id"], input="Stop that.", now=True, wait=True
        )
        assert done["result"] == "heard: Stop that."
        code, said = await server.refused(
            "resume_subagent_task", task_id=run["run_id"], input="And now?"
        )
        assert code == "run_refused"
        assert "its container is gone" in said


# Approvals that are a person's

CAREFUL: Document = {
    "permissions": {"allow": ["Bash"]},
    "approval": {"Bash": "ask"},
    "ask": "user",
}
STEPS = (bash("echo one"), {"text": "{last_tool_result}"})


@pytest.mark.parametrize(
    ("era", "action"), [("auto", "allow"), ("legacy", "refuse"), ("auto", "decline")]
)
async def test_a_person_decides_in_a_form_where_the_author_wants_it(
    serve: Serve, era: str, action: str
) -> None:
    forms: list[str] = []

    async def person(ctx: object, params: t.ElicitRequestParams) -> t.ElicitResult:
        forms.append(params.message)
        if action == "decline":
            return t.ElicitResult(action="decline")
        said = {"approve": action == "allow", "why": "not today"}
        return t.ElicitResult(action="accept", content=said)

    async with serve(era, elicitation_callback=person) as server:
        agent = server.agent("careful", *STEPS, **CAREFUL)
        done = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert len(forms) == 1
        assert "wants to use Bash:" in forms[0]
        assert "echo one" in forms[0]
        assert done["status"] == "completed"
        assert (done["result"] == "one") == (action == "allow")
        if action == "refuse":
            assert "not today" in done["result"]


async def test_a_model_may_refuse_what_a_person_is_meant_to_allow_and_waits_for_the_person(
    serve: Serve,
) -> None:
    async with serve() as server:
        agent = server.agent("careful", bash("echo none | tee f"), *STEPS, **CAREFUL)
        now = await server.call("run_subagent", agent_name=agent, prompt="x")
        (wanted,) = now["pending_tool_calls"]
        assert (now["status"], wanted["approval_by"]) == ("paused", "user")
        task, call_id = {"task_id": now["run_id"]}, wanted["call_id"]
        for given in (
            {"approve": [call_id]},
            {"approve_all": True},
            {"edited_input": {call_id: {"command": "echo two"}}},
        ):
            code, said = await server.refused("resume_subagent_task", **task, **given)
            assert code == "run_refused"
            assert f"`orchestrator approve {now['run_id']} {call_id}`" in said
        refuse = {"reject_all": True, "input": "leave it", "wait": True}
        now = await server.call("resume_subagent_task", **task, **refuse)
        log = await server.call("get_logs", run_id=now["run_id"])
        (refused,) = [each["text"] for each in log["events"] if each["kind"] == "tool_result"]
        assert "leave it" in refused

        (wanted,) = now["pending_tool_calls"]
        waited = await server.call("wait_for_tasks", task_ids=[now["run_id"]], timeout=0.1)
        assert waited["tasks"][0]["status"] == "paused"
        approve = (server.stage, now["run_id"], wanted["call_id"])
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(_approve_in_a_terminal, *approve)
                (done,) = await server.ended(now["run_id"])
        assert (done["status"], done["result"]) == ("completed", "one")


async def _approve_in_a_terminal(stage: Stage, run_id: str, call_id: str) -> None:
    done = await anyio.run_process([COMMAND, "approve", run_id, call_id], env=stage.env)
    assert b"approved" in done.stdout


async def test_a_question_of_a_subagent_is_answered_by_either_run(serve: Serve) -> None:
    async with serve() as server:
        lead, worker = f"lead-{server.caller}", f"worker-{server.caller}"
        server.stage.add_agent(worker, ASKS[0], *ASKS, ask="parent", allowed_callers=[lead])
        errand = {"agent_name": worker, "prompt": "x"}
        steps = ({"tool": "mcp__parent__run_subagent", "input": errand}, ASKS[-1])
        server.agent("lead", *steps, subagents=[worker])
        now = await server.call("run_subagent", agent_name=lead, prompt="x")
        (first,) = now["questions"]
        assert first["run_id"] != now["run_id"]
        answer = {"message_id": first["message_id"], "answer": "red"}
        now = await server.call("reply_subagent", run_id=now["run_id"], **answer, wait=True)
        if not now.get("questions"):  # the worker is on its way to the second
            now = (await server.call("wait_for_tasks", task_ids=[now["run_id"]]))["tasks"][0]
        (second,) = now["questions"]
        assert second["message_id"] != first["message_id"]
        answer = {"message_id": second["message_id"], "answer": "blue"}
        await server.call("reply_subagent", run_id=second["run_id"], **answer)
        (done,) = await server.ended(now["run_id"])
        assert unfenced(done["result"]) == "it is it is blue"


# What it says meanwhile


async def test_what_an_agent_is_saying_can_be_read_and_is_kept_when_it_is_cancelled(
    serve: Serve,
) -> None:
    async with serve() as server:
        said = "The first part. The second part. The third part."
        agent = server.agent("slow", {"text": said, "pause_seconds": 3600})
        run = await server.call("run_subagent", agent_name=agent, prompt="x", background=True)
        with anyio.fail_after(PATIENCE):
            while True:
                now = await server.call("get_task_details", task_id=run["run_id"])
                if "partial_text" in now:
                    break
                await anyio.sleep(0.05)
        assert now["status"] == "running"
        assert now["partial_text"] == said[: len(said) // 3]
        assert any(line.startswith("ready: ") for line in now["log_tail"])
        ended = await server.call("cancel_task", task_id=run["run_id"])
        assert (ended["status"], ended["partial_text"]) == ("cancelled", now["partial_text"])
        assert ended["message"] == "the caller cancelled the run"


def test_a_tool_call_that_is_too_long_to_show_is_said_to_be_cut() -> None:
    command = "echo " + "harmless " * 2000 + "; rm -rf ."
    call = Approval(call_id="t1", run_id="r1", tool="Bash", input={"command": command})
    view = TaskView(run_id="r1", agent="a", caller="main", status="paused", approvals=(call,))
    (shown,) = cast("list[Document]", document(view)["pending_tool_calls"])
    assert shown["input"]["cut"] == "get_task_details shows all of it"
    assert "get_task_details shows all of it" in text(run_answer(view))
    (whole,) = cast("list[Document]", details(view)["pending_tool_calls"])
    assert whole["input"] == call.input
