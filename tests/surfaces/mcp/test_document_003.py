"""Questions and replies between parent and subagent, by a client that knows only the document that
describes them: its tools, its arguments, its fields and its states.
"""

from __future__ import annotations

import json
import re

import anyio
import pytest

from tests.surfaces.mcp.mcp_stage import PATIENCE, call, text
from tests.surfaces.task_stage import ASKS, Document, Serve, Server, bash

pytestmark = pytest.mark.anyio

MESSAGE = {
    *("messageId", "questionContent", "questionTimestamp"),
    *("answerContent", "answerTimestamp", "messageStatus"),
}


class DocumentClient:
    """Reads structured content, or, as clients of then, nothing but text."""

    def __init__(self, server: Server, *, reads_text: bool) -> None:
        self._server = server
        self._reads_text = reads_text

    async def run(self, agent: str, task: str) -> str:
        started = await call(self._server.client, f"run_subagent_{agent}", input=task)
        (run_id,) = re.findall(r"Run ID: (\S+)", text(started))
        return str(run_id)

    async def status(self, run_id: str, tool: str = "check_status") -> Document:
        answer = await call(self._server.client, tool, runId=run_id)
        assert not answer.is_error, text(answer)
        if not self._reads_text:
            return answer.structured_content or {}
        said = text(answer)
        messages = re.findall(r"^Messages: (.*)$", said, re.MULTILINE)
        return {
            "status": re.findall(r"^Status: (.*)$", said, re.MULTILINE)[0],
            "messages": json.loads(messages[0]) if messages else [],
            "instructions": " ".join(re.findall(r"^Instructions: (.*)$", said, re.MULTILINE)),
        }

    async def until(self, run_id: str, *states: str) -> Document:
        with anyio.fail_after(PATIENCE):
            while True:
                found = await self.status(run_id)
                if found["status"] in states:
                    return found
                assert found["status"] in ("pending", "running", "parent_replied"), found
                await anyio.sleep(0.1)

    async def reply(self, run_id: str, message_id: str, answer: str) -> Document:
        question = {"runId": run_id, "messageId": message_id}
        replied = await call(self._server.client, "reply_subagent", **question, answer=answer)
        assert not replied.is_error, text(replied)
        read: Document | None = replied.structured_content
        if self._reads_text:
            read = json.loads(text(replied))
        assert read is not None
        return read


@pytest.mark.parametrize(
    ("era", "reads_text"), [("auto", False), ("legacy", True)], ids=["structured", "text"]
)
async def test_a_question_is_asked_answered_and_acknowledged(
    serve: Serve, era: str, reads_text: bool
) -> None:
    async with serve(era, compat=True) as server:
        client = DocumentClient(server, reads_text=reads_text)
        agent = server.agent("asks", *ASKS, ask="parent")
        run_id = await client.run(agent, "paint it")
        waiting = await client.until(run_id, "waiting_parent_reply")
        (message,) = waiting["messages"]
        assert set(message) >= MESSAGE
        assert message["questionContent"] == "Which colour?"
        assert (message["messageStatus"], message["answerContent"]) == (
            "pending_parent_reply",
            None,
        )
        assert "reply_subagent" in waiting["instructions"]
        assert message["messageId"] in waiting["instructions"]

        replied = await client.reply(run_id, message["messageId"], "blue")
        assert (replied["success"], replied["message"]) == (True, "Reply successfully recorded.")
        metadata = replied["updatedMetadata"]
        assert metadata["status"] == "parent_replied"
        (message,) = metadata["messages"]
        assert set(message) >= MESSAGE
        assert (message["messageStatus"], message["answerContent"]) == ("parent_replied", "blue")
        assert message["answerTimestamp"] is not None

        done = await client.until(run_id, "success")
        (message,) = done["messages"]
        assert message["messageStatus"] == "acknowledged_by_subagent"
        assert message["answerContent"] == "blue"
        # Before the tools went by the run alone, they were called by the agent, too.
        assert await client.status(run_id, f"check_subagent_{agent}_status") == done
        logs = await call(server.client, f"get_subagent_{agent}_logs", runId=run_id)
        assert "Which colour?" in text(logs)
        logs = await call(server.client, "get_logs", runId=run_id)
        assert not logs.is_error, text(logs)
        assert "Which colour?" in text(logs)


async def test_of_several_questions_each_gets_its_reply(serve: Serve) -> None:
    two = [
        {"tool": "mcp__parent__ask_parent", "input": {"question": question}}
        for question in ("Which colour?", "Which size?")
    ]
    async with serve(compat=True) as server:
        client = DocumentClient(server, reads_text=False)
        agent = server.agent("asks", two, {"text": "done"}, ask="parent")
        run_id = await client.run(agent, "paint it")
        with anyio.fail_after(PATIENCE):
            while len((await client.status(run_id))["messages"]) < 2:
                await anyio.sleep(0.1)
        first, second = (await client.status(run_id))["messages"]
        replied = await client.reply(run_id, first["messageId"], "blue")
        states = [message["messageStatus"] for message in replied["updatedMetadata"]["messages"]]
        assert replied["updatedMetadata"]["status"] == "parent_replied"
        assert states == ["parent_replied", "pending_parent_reply"]
        waiting = await client.status(run_id)
        assert waiting["status"] == "waiting_parent_reply"
        assert second["messageId"] in waiting["instructions"]
        assert first["messageId"] not in waiting["instructions"]
        await client.reply(run_id, second["messageId"], "large")
        done = await client.until(run_id, "success")
        assert [message["answerContent"] for message in done["messages"]] == ["blue", "large"]


async def test_a_reply_to_what_is_not_asked_is_refused_with_a_sentence(serve: Serve) -> None:
    async with serve(compat=True) as server:
        client = DocumentClient(server, reads_text=False)
        agent = server.agent("asks", *ASKS, ask="parent")
        run_id = await client.run(agent, "paint it")
        waiting = await client.until(run_id, "waiting_parent_reply")
        question = {"runId": run_id, "messageId": waiting["messages"][0]["messageId"]}
        await client.reply(run_id, question["messageId"], "blue")
        await client.until(run_id, "success")
        wrong: list[tuple[Document, str]] = [
            ({**question, "answer": "red"}, "no agent is there to hear the answer"),
            ({**question, "messageId": "m0", "answer": "red"}, "has asked no question 'm0'"),
            ({**question, "runId": "r0", "answer": "red"}, "there is no run 'r0'"),
            ({"runId": run_id, "answer": "red"}, "runId and messageId are needed"),
        ]
        for arguments, why in wrong:
            _, said = await server.refused("reply_subagent", **arguments)
            assert why in said
        code, said = await server.refused("get_logs")
        assert (code, "run_id is missing" in said) == ("caller_error", True)
        code, said = await server.refused("check_status", run=run_id)
        expected = "check_status: runId is missing; there is no argument run. It takes runId"
        assert (code, said) == ("caller_error", expected)


async def test_a_question_without_an_answer_has_none(serve: Serve) -> None:
    async with serve(compat=True) as server:
        client = DocumentClient(server, reads_text=False)
        agent = server.agent("asks", *ASKS, ask={"whom": "parent", "answer_seconds": 1})
        run_id = await client.run(agent, "paint it")
        with anyio.fail_after(PATIENCE):
            while (await client.status(run_id))["status"] != "success":
                await anyio.sleep(0.1)
        (message,) = (await client.status(run_id))["messages"]
        assert (message["messageStatus"], message["answerContent"]) == ("unanswered", None)
        again = await server.call("get_task_details", task_id=run_id)
        (asked,) = again["asked_before"]
        assert (asked["status"], asked["answer"]) == ("unanswered", None)


async def test_what_the_subagent_reports_is_its_summary_until_it_has_answered(
    serve: Serve,
) -> None:
    report = {"summary": "half way", "status": "working"}
    steps = ({"tool": "mcp__parent__update_status", "input": report}, ASKS[0])
    async with serve(compat=True) as server:
        client = DocumentClient(server, reads_text=False)
        last = {"text": json.dumps({"colour": ["blue"]})}
        agent = server.agent("reports", *steps, last, ask="parent", output_format="json")
        run_id = await client.run(agent, "paint it")
        waiting = await client.until(run_id, "waiting_parent_reply")
        assert waiting["summary"] == "half way"
        await client.reply(run_id, waiting["messages"][0]["messageId"], "blue")
        done = await client.until(run_id, "success")
        assert json.loads(done["summary"]) == {"colour": ["blue"]}
        status = await server.call("update_status", runId=run_id, status="completed", summary="x")
        assert status["status"] == "success"


async def test_a_paused_run_says_so_and_what_to_do(serve: Serve) -> None:
    async with serve(compat=True) as server:
        client = DocumentClient(server, reads_text=False)
        fields: Document = {"permissions": {"allow": ["Bash"]}, "approval": {"Bash": "ask"}}
        agent = server.agent("careful", bash("echo one"), {"text": "{last_tool_result}"}, **fields)
        run_id = await client.run(agent, "do it")
        paused = await client.until(run_id, "paused")
        (pending,) = paused["pendingToolCalls"]
        assert (pending["tool"], pending["input"]["command"]) == ("Bash", "echo one")
        assert "resume_subagent_task" in paused["instructions"]
        assert pending["toolCallId"] in paused["instructions"]
        await server.call("resume_subagent_task", task_id=run_id, approve_all=True, wait=True)
        assert (await client.status(run_id))["summary"] == "one"


@pytest.mark.parametrize(("era", "compat"), [("auto", True), ("legacy", False)])
async def test_an_agent_id_says_who_calls_and_makes_nobody_somebody_else(
    serve: Serve, era: str, compat: bool
) -> None:
    async with serve(era, compat=compat) as server:
        agent = server.agent("says", {"text": "done"})
        task = {"agent_name": agent, "prompt": "x"}
        done = await server.call("run_subagent", **task, agent_id=server.caller)
        assert done["result"] == "done"
        for tool, arguments in (("run_subagent", task), ("get_all_tasks", {})):
            code, said = await server.refused(tool, **arguments, agent_id="main")
            assert code == "caller_refused"
            expected = f"agent_id is 'main', but you call as {server.caller!r}"
            assert said.startswith(expected)
