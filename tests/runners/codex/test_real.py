"""The real codex CLI in a real container, its model at the other end of the wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec, Asking, McpServer, Permissions
from orchestrator.domain.container import (
    HOME,
    MIB,
    MODEL_PORT,
    MODEL_URL,
    PARENT_PORT,
    PARENT_URL,
    WORKSPACE,
    ContainerSpec,
    File,
    Launch,
    Tmpfs,
)
from orchestrator.engine.conversation import Conversation
from orchestrator.engine.record import Record
from orchestrator.gateway.parent import ParentAccess
from orchestrator.runners.codex.runner import Codex
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.signs import PermissionAsked, Sign, ToolReturned, TurnEnded
from orchestrator.wire.streams import Stream
from tests.runners.claude.fake_model import Cut, Fail, Say, Stall, Use
from tests.runners.codex.fake_responses import FakeResponses, Patch

PATIENCE = 120

DONE = Say("All done.")

MODEL = "gpt-5.5"


@dataclass
class Scene:
    """A conversation with codex, with both its ends in the test's hands."""

    container: Container
    conversation: Conversation
    model: FakeResponses
    agent: AgentSpec
    signs: list[Sign]
    asked: list[PermissionAsked] = field(default_factory=list)

    def ask(self, asked: PermissionAsked) -> None:
        self.asked.append(asked)

    def withdraw(self, asked: PermissionAsked) -> None:
        pass

    async def turn(self, text: str) -> TurnEnded:
        await self.conversation.say(text)
        return await self.conversation.turn()

    async def exists(self, path: str) -> bool:
        return (await self.container.run(Launch(argv=("test", "-e", path)))).code == 0

    @property
    def results(self) -> list[str]:
        return [sign.text for sign in self.signs if isinstance(sign, ToolReturned)]

    @property
    def heard(self) -> str:
        """All that the model was sent."""
        return json.dumps(self.model.bodies)


def agent(**fields: object) -> AgentSpec:
    given = {"name": "tested", "description": "Is tested.", "prompt": "You are under test."}
    return AgentSpec.model_validate({**given, "model": MODEL, **fields})


@pytest.fixture
def spec(codex_image: str) -> ContainerSpec:
    tmpfs = tuple(Tmpfs(target=target, size_bytes=64 * MIB) for target in ("/tmp", HOME, WORKSPACE))
    return ContainerSpec(image=codex_image, tmpfs=tmpfs)


@asynccontextmanager
async def scene(
    runtime: DockerRuntime,
    spec: ContainerSpec,
    tested: AgentSpec,
    *steps: object,
    files: tuple[File, ...] = (),
) -> AsyncIterator[Scene]:
    terms = LaunchTerms(
        base_url=MODEL_URL,
        token="run-token",
        cwd=WORKSPACE,
        mcp_servers=tested.mcp_servers,
        parent_url=PARENT_URL if tested.parent_tools else None,
        files=files,
    )
    runner = Codex()
    launch = runner.launch(tested, terms)
    model, access = FakeResponses(list(steps)), ParentAccess()

    async def serve(stream: Stream) -> None:
        await model.answer(stream.read, stream.write)

    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            await container.listen(MODEL_PORT, "model", serve)
            await container.listen(PARENT_PORT, "parent", access.service)
            async with container.spawn(launch) as process, anyio.create_task_group() as tasks:
                conversation = Conversation(process, runner, launch)
                heard: list[Sign] = []
                hear = conversation._hear

                def listen(signs: list[Sign]) -> None:
                    heard.extend(signs)
                    print(*signs, sep="\n")
                    hear(signs)

                conversation._hear = listen
                tasks.start_soon(conversation.pump)
                played = Scene(container, conversation, model, tested, heard)
                with conversation.approved_by(played):
                    yield played
                print(conversation._stderr.decode())
                tasks.cancel_scope.cancel()


async def test_plain(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    async with scene(runtime, spec, agent(), Say("One."), Say("Two.")) as s:
        first = await s.turn("First question.")
        print(json.dumps(s.model.bodies[0])[:6000])
        print(s.model.requests, s.model.keys)
        second = await s.turn("Second question.")
    assert (first.reason, first.text, second.text) == ("ok", "One.", "Two.")


async def test_tools(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    a = agent(permissions=Permissions(allow=("Bash(touch:*)", "Write")))
    steps = (
        Use("exec_command", {"cmd": "touch a"}),
        Use("exec_command", {"cmd": "rm a"}),
        Patch("*** Begin Patch\n*** Add File: p.txt\n+hello\n*** End Patch\n"),
        DONE,
    )
    async with scene(runtime, spec, a, *steps) as s:
        ended = await s.turn("Go.")
        there = [await s.exists(f"{WORKSPACE}/{name}") for name in ("a", "p.txt")]
        print(json.dumps(s.model.bodies[-1]["input"], indent=1))
    assert there == [True, True]
    assert s.results == []
