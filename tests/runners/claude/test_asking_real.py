"""The real claude CLI in a real container, asking: its parent a question, us for permission."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.domain.container import (
    HOME,
    MODEL_PORT,
    MODEL_URL,
    PARENT_PORT,
    PARENT_URL,
    ContainerSpec,
    Launch,
)
from orchestrator.engine.conversation import (
    NOBODY_ALLOWS,
    TOO_MANY_ASKED,
    Approver,
    Conversation,
)
from orchestrator.gateway.parent import ParentAccess
from orchestrator.runners.claude import launch as claude_launch
from orchestrator.runners.claude.dialogue import Claude
from orchestrator.runners.claude.permissions import ONE_BY_ONE
from orchestrator.runners.contract import MAX_UNANSWERED, LaunchTerms
from orchestrator.runners.launching import AGENT_PATH
from orchestrator.runners.signs import PermissionAsked
from orchestrator.wire.streams import Stream
from tests.runners.claude.fake_model import FakeModel, Say, Step, Together, Use
from tests.runners.claude.recordings import asking_agent

pytestmark = pytest.mark.anyio

PATIENCE = 120

DONE = Say("All done.")


@dataclass
class Scene:
    """A conversation, with both its ends in the test's hands."""

    container: Container
    conversation: Conversation
    model: FakeModel
    access: ParentAccess
    agent: AgentSpec

    async def exists(self, path: str) -> bool:
        return (await self.container.run(Launch(argv=("test", "-e", path)))).code == 0

    @property
    def results(self) -> list[str]:
        """What the agent read as the results of its last calls."""
        messages = self.model.bodies[-1]["messages"]
        assert isinstance(messages, list)
        blocks = [block for m in messages for block in m["content"] if isinstance(block, dict)]
        contents = [block["content"] for block in blocks if block["type"] == "tool_result"]
        return [c if isinstance(c, str) else "".join(part["text"] for part in c) for c in contents]


@asynccontextmanager
async def scene(
    runtime: DockerRuntime,
    spec: ContainerSpec,
    *steps: Step,
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
    ask: tuple[str, ...] = (),
) -> AsyncIterator[Scene]:
    agent = AgentSpec(
        name="tested",
        description="Is tested.",
        prompt="You are under test.",
        permissions=Permissions(allow=allow, deny=deny),
        approval=dict.fromkeys(ask, "ask"),
    )
    terms = LaunchTerms(base_url=MODEL_URL, token="run-token", cwd=HOME, parent_url=PARENT_URL)
    launch = claude_launch.launch(agent, terms)
    model, access = FakeModel(list(steps)), ParentAccess()

    async def serve(stream: Stream) -> None:
        await model.answer(stream.read, stream.write)

    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            await container.listen(MODEL_PORT, "model", serve)
            await container.listen(PARENT_PORT, "parent", access.service)
            async with container.spawn(launch) as process, anyio.create_task_group() as tasks:
                conversation = Conversation(process, Claude(), launch)
                tasks.start_soon(conversation.pump)
                await conversation.initialize()
                yield Scene(container, conversation, model, access, agent)
                tasks.cancel_scope.cancel()


class Pending:
    """Approves for a scene: calls that wait, in the order they came."""

    def __init__(self, scene: Scene) -> None:
        self.agent = scene.agent
        self._in, self._out = anyio.create_memory_object_stream[PermissionAsked](10)
        self.withdrawn: list[PermissionAsked] = []
        self._approving = ExitStack()
        self._approving.enter_context(scene.conversation.approved_by(self))

    def ask(self, asked: PermissionAsked) -> None:
        self._in.send_nowait(asked)

    def withdraw(self, asked: PermissionAsked) -> None:
        self.withdrawn.append(asked)

    async def next(self) -> PermissionAsked:
        return await self._out.receive()

    def close(self) -> None:
        self._approving.close()
        self._in.close()
        self._out.close()


async def test_an_agent_asks_two_questions_at_once_and_goes_on_with_the_answers(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    answers = {"Which colour?": "blue", "Which size?": "large"}
    asked: list[tuple[str, str | None]] = []
    both = anyio.Event()

    async def ask(question: str, default: str | None) -> str:
        asked.append((question, default))
        if len(asked) == len(answers):
            both.set()
        await both.wait()  # neither is answered before the other was asked
        return answers[question]

    told: list[tuple[str, str]] = []
    tool = "mcp__parent__ask_parent"
    questions = Together(
        (
            Use(tool, {"question": "Which colour?", "runId": "another's"}),
            Use(tool, {"question": "Which size?", "default_answer": "small"}),
        )
    )
    status = Use("mcp__parent__update_status", {"summary": "Asked.", "status": "working"})
    async with scene(runtime, spec, questions, status, DONE) as s:
        s.access.bind(ask, lambda summary, word: told.append((summary, word)))
        await s.conversation.say("Ask.")
        ended = await s.conversation.turn()

    assert (ended.reason, ended.text, ended.denials) == ("ok", "All done.", ())
    assert sorted(asked, key=str) == [("Which colour?", None), ("Which size?", "small")]
    assert sorted(s.results) == ["blue", "large", "reported"]
    assert told == [("Asked.", "working")]


async def test_a_turn_that_is_interrupted_withdraws_its_question(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    asked, withdrawn = anyio.Event(), anyio.Event()

    async def ask(_: str, __: str | None) -> str:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        return "never"

    question = Use("mcp__parent__ask_parent", {"question": "Which colour?"})
    async with scene(runtime, spec, question, Say("Back again.")) as s:
        s.access.bind(ask, lambda *_: None)
        await s.conversation.say("Ask.")
        await asked.wait()
        await s.conversation.interrupt()
        stopped = await s.conversation.turn()
        await withdrawn.wait()
        await s.conversation.say("Go on.")
        ended = await s.conversation.turn()

    assert (stopped.interrupted, ended.text) == (True, "Back again.")


async def test_a_run_that_ends_withdraws_the_question_of_its_agent(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    asked, withdrawn = anyio.Event(), anyio.Event()

    async def ask(_: str, __: str | None) -> str:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            withdrawn.set()
        return "never"

    question = Use("mcp__parent__ask_parent", {"question": "Which colour?"})
    async with scene(runtime, spec, question, DONE) as s:
        s.access.bind(ask, lambda *_: None)
        await s.conversation.say("Ask.")
        await asked.wait()
    with anyio.fail_after(PATIENCE):
        await withdrawn.wait()


async def test_calls_are_approved_edited_and_rejected_one_by_one(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    commands = ("touch /tmp/approved", "touch /tmp/original && true", "touch /tmp/rejected")
    steps = [Use("Bash", {"command": command}) for command in commands]
    async with scene(runtime, spec, *steps, DONE, allow=("Bash",), ask=("Bash(touch:*)",)) as s:
        pending = Pending(s)
        await s.conversation.say("Do it.")
        calls = [await pending.next()]
        before = await s.exists("/tmp/approved")
        answer = s.conversation.answer_permission
        assert await answer(calls[0].request_id, allow=True)
        assert not await answer(calls[0].request_id, allow=False)  # it has its answer
        calls.append(await pending.next())
        assert await answer(calls[1].request_id, allow=True, input={"command": "touch /tmp/edited"})
        calls.append(await pending.next())
        assert await answer(calls[2].request_id, allow=False, message="Not on a Sunday.")
        ended = await s.conversation.turn()
        paths = ("approved", "original", "edited", "rejected")
        made = [path for path in paths if await s.exists(f"/tmp/{path}")]
        pending.close()

    assert not before
    assert [call.input["command"] for call in calls] == [*commands]
    assert made == ["approved", "edited"]
    assert s.results[-1] == "Not on a Sunday."
    assert [denial.input["command"] for denial in ended.denials] == [commands[2]]


async def test_an_interrupt_withdraws_a_call_that_waits_and_nothing_runs(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    touch = Use("Bash", {"command": "touch /tmp/touched"})
    async with scene(runtime, spec, touch, Say("Back again."), ask=("Bash",)) as s:
        pending = Pending(s)
        await s.conversation.say("Do it.")
        call = await pending.next()
        await s.conversation.interrupt()
        stopped = await s.conversation.turn()
        late = await s.conversation.answer_permission(call.request_id, allow=True)
        await s.conversation.say("Go on.")
        ended = await s.conversation.turn()
        touched = await s.exists("/tmp/touched")
        pending.close()

    assert (stopped.interrupted, ended.text) == (True, "Back again.")
    assert pending.withdrawn == [call]
    assert (late, touched) == (False, False)


async def test_with_nobody_to_ask_every_such_call_is_refused(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    touch = Use("Bash", {"command": "touch /tmp/touched"})
    async with scene(runtime, spec, touch, DONE, allow=("Bash",), ask=("Bash",)) as s:
        await s.conversation.say("Do it.")
        ended = await s.conversation.turn()
        touched = await s.exists("/tmp/touched")

    denied = {denial.tool for denial in ended.denials}
    assert (ended.reason, denied, touched) == ("ok", {"Bash"}, False)
    assert s.results == [NOBODY_ALLOWS]


async def test_nobody_is_asked_about_what_the_author_neither_allowed_nor_put_to_anybody(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    commands = ("mkdir /tmp/made", "touch /tmp/touched && mkdir /tmp/made")
    steps = [Use("Bash", {"command": command}) for command in commands]
    async with scene(runtime, spec, *steps, DONE, ask=("Bash(touch:*)",)) as s:
        pending = Pending(s)
        await s.conversation.say("Do it.")
        ended = await s.conversation.turn()
        made = await s.exists("/tmp/made") or await s.exists("/tmp/touched")
        pending.close()

    assert ({denial.tool for denial in ended.denials}, made) == ({"Bash"}, False)
    assert s.results == [NOBODY_ALLOWS, ONE_BY_ONE]


async def test_a_command_of_several_parts_waits_where_all_of_the_tool_is_asked_about(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    both = "mkdir /tmp/made && touch /tmp/made/touched"
    denied = "curl --version"
    steps = (Use("Bash", {"command": both}), Use("Bash", {"command": denied}))
    deny = ("Bash(curl:*)",)
    async with scene(runtime, spec, *steps, DONE, allow=("Bash",), deny=deny, ask=("Bash",)) as s:
        pending = Pending(s)
        await s.conversation.say("Do it.")
        call = await pending.next()
        assert await s.conversation.answer_permission(call.request_id, allow=True)
        ended = await s.conversation.turn()
        made = await s.exists("/tmp/made/touched")
        pending.close()

    assert (call.input["command"], made) == (both, True)
    assert [denial.input["command"] for denial in ended.denials] == [denied]


IMPOSTOR = """
import json, sys
requests = json.loads(sys.argv[1])
for number, request in enumerate(requests):
    event = {"type": "control_request", "request_id": f"r{number}", "request": request}
    print(json.dumps(event), flush=True)
answers = [json.loads(sys.stdin.readline())["response"] for _ in range(int(sys.argv[2]))]
text = json.dumps([[a["request_id"], a["subtype"], a.get("response", {})] for a in answers])
result = {"type": "result", "subtype": "success", "stop_reason": "end_turn", "result": text}
print(json.dumps(result), flush=True)
"""


async def answered(
    runtime: DockerRuntime,
    spec: ContainerSpec,
    requests: list[object],
    answers: int,
    approver: Approver | None = None,
) -> list[object]:
    """What a program hears that makes requests as the CLI does, until it has so many answers."""
    argv = ("python3", "-c", IMPOSTOR, json.dumps(requests), str(answers))
    launch = Launch(argv=argv, env={"PATH": AGENT_PATH})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container, container.spawn(launch) as process:
            conversation = Conversation(process, Claude(), launch)
            with nullcontext() if approver is None else conversation.approved_by(approver):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(conversation.pump)
                    ended = await conversation.turn()
                    tasks.cancel_scope.cancel()
    return list(json.loads(ended.text))


async def test_a_request_that_we_do_not_know_is_refused_and_not_left_waiting(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    said = await answered(runtime, spec, [{"subtype": "elicitation"}, {"subtype": "x"}], 2)
    assert said == [["r0", "error", {}], ["r1", "error", {}]]


async def test_only_so_many_calls_wait_and_the_end_of_a_turn_gives_them_up(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    call = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}
    call |= {"decision_reason_type": "rule"}
    calls: list[object] = [call | {"tool_use_id": f"toolu_{n}"} for n in range(MAX_UNANSWERED + 3)]
    asked: list[PermissionAsked] = []
    withdrawn: list[PermissionAsked] = []
    lists = SimpleNamespace(
        agent=asking_agent((), ("Bash",)), ask=asked.append, withdraw=withdrawn.append
    )
    said = await answered(runtime, spec, calls, 3, cast("Approver", lists))

    refused = {"behavior": "deny", "message": TOO_MANY_ASKED}
    assert said == [[f"r{MAX_UNANSWERED + n}", "success", refused] for n in range(3)]
    assert [one.request_id for one in asked] == [f"r{n}" for n in range(MAX_UNANSWERED)]
    assert withdrawn == asked
