"""Runs as MCP tasks: what a client sees that declares the extension, and one that does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio
import mcp.types as t
import pytest
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from pydantic import ConfigDict

from orchestrator.domain.result import RunResult
from orchestrator.surfaces.mcp.answers.answer import result_answer
from orchestrator.surfaces.mcp.task_extension import TaskExtension
from tests.surfaces.mcp.mcp_stage import (
    ERAS,
    FOR_EVER,
    PATIENCE,
    Stage,
    call,
    http_server,
    raw_server,
    text,
)
from tests.surfaces.mcp.test_http import TOKEN_ENV, connected
from tests.surfaces.task_stage import ASKS, Document, Serve, Server, bash, serving

pytestmark = pytest.mark.anyio

METHODS = ("tasks/get", "tasks/update", "tasks/cancel")

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"extensions": {TaskExtension.identifier: {}}},
}
"""What each request of a client that declares the extension says of it."""

WINDOW = 2.0
"""Long enough for a run to begin, mostly."""

LATER = {"delay_seconds": WINDOW + 1}
"""Whatever happens in a run does so after the window."""

LATE = {"text": "at last", **LATER}

ASKS_LATE = ({**ASKS[0], **LATER}, ASKS[1])


class AnyResult(t.Result):
    """Of whatever shape."""

    model_config = ConfigDict(extra="allow")

    def document(self) -> Document:
        return self.model_dump(by_alias=True, mode="json", exclude={"meta"})


class Created(AnyResult):
    """What a call is answered with that has become a task."""

    result_type: Literal["task"]


class TaskRequest(t.Request[Document, str]):
    """As the SDK would send it, with its header."""

    name_param = "taskId"


class Polls(ClientExtension):
    """A client's end of the extension: a call ends when its task has."""

    identifier = TaskExtension.identifier

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self.resolve)]

    async def resolve(self, created: Created, ctx: ClaimContext) -> t.CallToolResult:
        task = created.document()
        while task["status"] != "completed":
            await anyio.sleep(task["pollIntervalMs"] / 1000)
            request = TaskRequest(method="tasks/get", params={"taskId": task["taskId"]})
            task = (await ctx.session.send_request(request, AnyResult)).document()
        return t.CallToolResult.model_validate(task["result"])


async def person(ctx: object, params: t.ElicitRequestParams) -> t.ElicitResult:
    """Makes a client say that it has forms; those of tasks are answered by the tests."""
    raise AssertionError("nobody asks in the middle of a call")


async def ask(client: Client, method: str, task_id: str, **more: object) -> Document:
    """Send one of the extension's requests."""
    request = TaskRequest(method=method, params={"taskId": task_id, **more})
    with anyio.fail_after(PATIENCE):
        return (await client.session.send_request(request, AnyResult)).document()


async def refused(client: Client, method: str, task_id: str, **more: object) -> int:
    """The code of the error that a request is answered with."""
    with pytest.raises(MCPError) as refusal:
        await ask(client, method, task_id, **more)
    return refusal.value.error.code


async def run(client: Client, agent: str) -> t.Result:
    arguments = {"agent_name": agent, "prompt": "x"}
    with anyio.fail_after(PATIENCE):
        return await client.session.call_tool("run_subagent", arguments, allow_claimed=True)


async def created(client: Client, agent: str) -> Document:
    """The task that a call has become."""
    result = await run(client, agent)
    assert isinstance(result, Created), result
    return result.document()


async def until(client: Client, task_id: str, *statuses: str) -> Document:
    with anyio.fail_after(PATIENCE):
        while (task := await ask(client, "tasks/get", task_id))["status"] not in statuses:
            await anyio.sleep(0.05)
    return task


# A task, from its beginning to its end


async def test_a_call_that_outlasts_its_window_becomes_a_task_with_the_answer_in_it(
    serve: Serve,
) -> None:
    async with serve(window=WINDOW, extensions=[Polls()]) as server:
        task = await created(server.client, server.agent("late", LATE))
        days = server.stage.settings.keep_days
        assert task == {
            "resultType": "task",
            "taskId": task["taskId"],
            "status": "working",
            "statusMessage": task["statusMessage"],
            "createdAt": task["createdAt"],
            "lastUpdatedAt": task["lastUpdatedAt"],
            "ttlMs": days * 86_400_000,
            "pollIntervalMs": 1000,
        }
        done = await until(server.client, task["taskId"], "completed")
        assert done["resultType"] == "complete"
        result = t.CallToolResult.model_validate(done["result"])
        assert text(result) == "at last"
        inline = result_answer(RunResult.model_validate(result.structured_content))
        assert result == inline
        (listed,) = (await server.call("get_all_tasks"))["tasks"]
        assert listed["run_id"] == task["taskId"]


async def test_a_client_that_waits_for_tasks_by_itself_gets_the_answer_of_its_call(
    serve: Serve,
) -> None:
    async with serve(window=WINDOW * 2, extensions=[Polls()]) as server:
        agent = server.agent("late", {"text": "at last", "delay_seconds": WINDOW * 2 + 1})
        done = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert (done["status"], done["result"]) == ("completed", "at last")


async def test_a_run_that_fails_is_a_task_that_completed_with_an_error(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()]) as server:
        schema = {"type": "object", "required": ["n"]}
        agent = server.agent("wrong", LATE, LATE, output_schema=schema, retries=0)
        task = await created(server.client, agent)
        done = await until(server.client, task["taskId"], "completed", "failed")
        assert done["status"] == "completed"
        assert done["statusMessage"] == f"{agent} failed (invalid_output)"
        assert done["result"]["isError"]
        assert done["result"]["structuredContent"]["reason"] == "invalid_output"


async def test_a_task_is_cancelled_and_again_without_complaint(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()]) as server:
        task_id = (await created(server.client, server.agent("slow", FOR_EVER)))["taskId"]
        for _ in range(2):
            assert await ask(server.client, "tasks/cancel", task_id) == {"resultType": "complete"}
        task = await ask(server.client, "tasks/get", task_id)
        assert (task["status"], "result" in task) == ("cancelled", False)
        details = await server.call("get_task_details", task_id=task_id)
        assert details["status"] == "cancelled"


async def test_a_task_is_known_to_the_server_that_comes_after(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()]) as server:
        slow = (await created(server.client, server.agent("slow", FOR_EVER)))["taskId"]
        late = (await created(server.client, server.agent("late", LATE)))["taskId"]
        before = await until(server.client, late, "completed")
    async with serve(extensions=[Polls()]) as server:
        assert await ask(server.client, "tasks/get", late) == before
        assert (await ask(server.client, "tasks/get", slow))["status"] == "cancelled"


async def test_a_task_whose_server_was_killed_completes_with_the_error_that_says_so(
    task_stage: Stage, serve: Serve
) -> None:
    async with serve(extensions=[Polls()]) as server:
        arguments = {"agent_name": server.agent("slow", FOR_EVER), "prompt": "x"}
        env = {"ORCHESTRATOR_CALLER": server.caller, "ORCHESTRATOR_WINDOW_SECONDS": "5"}
        async with raw_server(task_stage, **env) as raw:
            params = {"name": "run_subagent", "arguments": arguments, "_meta": META}
            task = await raw.ask("tools/call", params)
            assert (task["resultType"], task["status"]) == ("task", "working")
            raw.process.kill()
        done = await until(server.client, task["taskId"], "completed")
        assert done["result"]["isError"]
        assert done["result"]["structuredContent"]["reason"] == "orchestrator_lost"
        await task_stage.has_containers(0)


# What an agent asks meanwhile


async def test_a_question_is_a_form_and_its_answer_lets_the_task_go_on(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()], elicitation_callback=person) as server:
        agent = server.agent("asks", *ASKS_LATE, ask="parent")
        task_id = (await created(server.client, agent))["taskId"]
        task = await until(server.client, task_id, "input_required")
        ((key, form),) = task["inputRequests"].items()
        assert form["method"] == "elicitation/create"
        assert "asks:\n\nWhich colour?\n" in form["params"]["message"]
        assert list(form["params"]["requestedSchema"]["properties"]) == ["answer"]
        assert f'message_id="{key}"' in task["statusMessage"]  # for a model that has our tools

        for given in (
            {"never-asked": {"action": "accept", "content": {"answer": "red"}}},
            {key: {"action": "decline"}},  # which leaves it to others
        ):
            answer = await ask(server.client, "tasks/update", task_id, inputResponses=given)
            assert answer == {"resultType": "complete"}
            again = await ask(server.client, "tasks/get", task_id)
            assert again["inputRequests"] == task["inputRequests"]
        wrong = {key: {"action": "accept", "content": {"colour": "red"}}}
        code = await refused(server.client, "tasks/update", task_id, inputResponses=wrong)
        assert code == t.INVALID_PARAMS

        right = {key: {"action": "accept", "content": {"answer": "blue"}}}
        for _ in range(2):  # the second one comes too late, which is no fault
            await ask(server.client, "tasks/update", task_id, inputResponses=right)
        done = await until(server.client, task_id, "completed")
        assert done["result"]["structuredContent"]["result"] == "it is blue"


async def test_a_tool_call_is_a_form_that_allows_it_or_not(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()], elicitation_callback=person) as server:
        agent = server.agent(
            "careful",
            {**bash("echo one"), **LATER},
            bash("echo two"),
            bash("echo three"),
            {"text": "{last_tool_result}"},
            permissions={"allow": ["Bash"]},
            approval={"Bash": "ask"},
        )
        task_id = (await created(server.client, agent))["taskId"]
        seen: list[str] = []
        for command, response in {
            "echo one": {"action": "decline"},
            "echo two": {"action": "accept", "content": {"approve": False, "why": "not that"}},
            "echo three": {"action": "accept", "content": {"approve": True}},
        }.items():
            key = await _tool_call(server, task_id, command, seen)
            given = {key: response}
            await ask(server.client, "tasks/update", task_id, inputResponses=given)
            seen.append(key)
        done = await until(server.client, task_id, "completed")
        assert done["result"]["structuredContent"]["result"] == "three"
        assert len(set(seen)) == len(seen)
        log = await server.call("get_logs", run_id=task_id)
        decided = [e["text"] for e in log["events"] if e["kind"] == "approval_decided"]
        assert decided == ["Bash: rejected", "Bash: rejected", "Bash: approved"]


async def _tool_call(server: Server, task_id: str, command: str, seen: list[str]) -> str:
    """The key of the form that asks for it."""
    with anyio.fail_after(PATIENCE):
        while True:
            task = await until(server.client, task_id, "input_required")
            for key, form in task["inputRequests"].items():
                if key not in seen:
                    assert command in form["params"]["message"]
                    assert "wants to use Bash" in form["params"]["message"]
                    return str(key)


async def test_a_client_without_forms_is_told_which_tools_take_the_answer(serve: Serve) -> None:
    async with serve(window=WINDOW, extensions=[Polls()]) as server:
        agent = server.agent("asks", *ASKS_LATE, ask="parent")
        task_id = (await created(server.client, agent))["taskId"]
        with anyio.fail_after(PATIENCE):
            task = await ask(server.client, "tasks/get", task_id)
            while "It asks" not in task["statusMessage"]:
                await anyio.sleep(0.05)
                task = await ask(server.client, "tasks/get", task_id)
        assert (task["status"], "inputRequests" in task) == ("working", False)
        assert "answer with reply_subagent(" in task["statusMessage"]
        details = await server.call("get_task_details", task_id=task_id)
        answer = {"message_id": details["questions"][0]["message_id"], "answer": "blue"}
        await server.call("reply_subagent", run_id=task_id, **answer)
        done = await until(server.client, task_id, "completed")
        assert done["result"]["structuredContent"]["result"] == "it is blue"


# Who gets no task


async def test_what_is_answered_in_time_or_asked_for_in_the_background_is_no_task(
    serve: Serve,
) -> None:
    async with serve(extensions=[Polls()]) as server:
        agent = server.agent("asks", *ASKS, ask="parent")
        asks = await server.call("run_subagent", agent_name=agent, prompt="x")
        assert asks["status"] == "waiting_parent_reply"
        now = await server.call("run_subagent", agent_name=agent, prompt="x", background=True)
        assert "wait_for_tasks" in now["next"]
        for run_id in (asks["run_id"], now["run_id"]):
            await ask(server.client, "tasks/cancel", run_id)
        code, _ = await server.refused("run_subagent", agent_name="nobody", prompt="x")
        assert code == "agent_not_found"


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_declares_nothing_sees_no_tasks(serve: Serve, era: str) -> None:
    async with serve(era, window=WINDOW) as server:
        result = await run(server.client, server.agent("slow", FOR_EVER))
        assert isinstance(result, t.CallToolResult)
        now = result.structured_content
        assert "wait_for_tasks" in now["next"]
        code = t.METHOD_NOT_FOUND if era == "legacy" else t.MISSING_REQUIRED_CLIENT_CAPABILITY
        for method in METHODS:
            assert await refused(server.client, method, now["run_id"], inputResponses={}) == code
        await server.call("cancel_task", task_id=now["run_id"])
        offered = server.client.server_capabilities.extensions
        assert offered == (None if era == "legacy" else {TaskExtension.identifier: {}})


async def test_who_wants_notices_of_tasks_must_declare_them(serve: Serve) -> None:
    async with serve() as server:
        wanted = {"notifications": {"taskIds": ["r1"]}}
        request = t.Request[Document, str](method="subscriptions/listen", params=wanted)
        with pytest.raises(MCPError) as refusal:
            await server.client.session.send_request(request, AnyResult)
        assert refusal.value.error.code == t.MISSING_REQUIRED_CLIENT_CAPABILITY


async def test_a_task_is_its_callers_alone(task_stage: Stage, serve: Serve) -> None:
    async with (
        serve(window=WINDOW, extensions=[Polls()]) as server,
        serving(task_stage, "somebody-else")(extensions=[Polls()]) as other,
    ):
        task_id = (await created(server.client, server.agent("slow", FOR_EVER)))["taskId"]
        for client, asked in ((other.client, task_id), (server.client, "r0")):
            for method in METHODS:
                code = await refused(client, method, asked, inputResponses={})
                assert code == t.INVALID_PARAMS
        assert (await ask(server.client, "tasks/get", task_id))["status"] == "working"
        await ask(server.client, "tasks/cancel", task_id)


async def test_over_http_the_header_has_to_name_the_task(task_stage: Stage) -> None:
    task_stage.add_agent("quick", {"text": "done"}, allowed_callers=["main"])

    class Elsewhere(TaskRequest):
        name_param = "other"

    async with (
        http_server(task_stage, **TOKEN_ENV) as (_, url),
        connected(url, "auto", extensions=[Polls()]) as client,
    ):
        done = await call(client, "run_subagent", agent_name="quick", prompt="x")
        assert done.structured_content is not None
        run_id = done.structured_content["run_id"]
        assert (await ask(client, "tasks/get", run_id))["status"] == "completed"
        request = Elsewhere(method="tasks/get", params={"taskId": run_id, "other": "r0"})
        with pytest.raises(MCPError) as refusal:
            await client.session.send_request(request, AnyResult)
        assert refusal.value.error.code == t.HEADER_MISMATCH
