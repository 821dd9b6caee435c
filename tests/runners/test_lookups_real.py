"""Which names the real CLIs want looked up, in a container in which a resolver of ours hears it.

In the images of agents the C library asks no name server at all. Here it does, and so do programs
that bring a resolver of their own: the one on loopback writes down each name and knows none.
"""

from __future__ import annotations

import io
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.domain.container import (
    MODEL_PORT,
    MODEL_URL,
    WORKSPACE,
    ContainerSpec,
    Launch,
    Volume,
)
from orchestrator.engine.conversation import Conversation, open_cli
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.runners.acp.gemini import Gemini
from orchestrator.runners.acp.opencode import Opencode
from orchestrator.runners.claude.dialogue import Claude
from orchestrator.runners.codex.runner import Codex
from orchestrator.runners.contract import LaunchTerms, Runner
from orchestrator.runners.copilot.runner import Copilot
from orchestrator.runners.launching import PLAIN_ENVIRONMENT
from orchestrator.runners.signs import PermissionAsked

PATIENCE = 240

LISTENER = """
import socket
heard = open("/tmp/names", "a", buffering=1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 53))
    heard.write("listening\\n")
    while True:
        asked, client = server.recvfrom(512)
        at, labels = 12, []
        while asked[at]:
            labels.append(asked[at + 1 : at + 1 + asked[at]].decode(errors="replace"))
            at += 1 + asked[at]
        heard.write(".".join(labels) + "\\n")
        server.sendto(asked[:2] + b"\\x81\\x83" + asked[4:6] + bytes(6) + asked[12:], client)
"""
"""Answers every question with "there is no such name"."""

DOCKERFILE = """
ARG BASE
FROM ${BASE}
USER root
RUN sed -i 's/^hosts:.*/hosts: files dns/' /etc/nsswitch.conf
USER agent
"""

CLIS: dict[str, Runner] = {
    runner.name: runner for runner in (Claude(), Codex(), Copilot(), Gemini(), Opencode())
}

TOOLS: dict[str, tuple[str, dict[str, str], str]] = {
    "claude": ("Bash", {"command": "echo one"}, "claude-sonnet-5-5"),
    "codex": ("exec_command", {"cmd": "echo one"}, "gpt-5.5"),
    "copilot": ("bash", {"command": "echo one", "description": "d"}, "claude-sonnet-5-5"),
    "gemini": ("run_shell_command", {"command": "echo one"}, "gemini-2.5-pro"),
    "opencode": ("bash", {"command": "echo one", "description": "d"}, "claude-sonnet-5-5"),
}
"""Runner -> how it calls its shell, and a model of its own."""


class Approver:
    """Says yes to what the rules leave open, which is nothing here."""

    def __init__(self, agent: AgentSpec) -> None:
        self.agent = agent

    def ask(self, asked: PermissionAsked) -> None:
        raise AssertionError(asked)

    def withdraw(self, asked: PermissionAsked) -> None:
        raise AssertionError(asked)


@pytest.fixture(params=list(CLIS))
def runner(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def hearing(
    runner: str, runtime: DockerRuntime, runner_image: Callable[[str], str]
) -> Iterator[str]:
    """The runner's image, but for its C library, which asks a name server."""
    name = f"test-lookups/{runner}:{uuid.uuid4().hex[:12]}"
    with io.BytesIO() as context:
        with tarfile.open(fileobj=context, mode="w") as archive:
            info = tarfile.TarInfo("Dockerfile")
            info.size = len(DOCKERFILE)
            archive.addfile(info, io.BytesIO(DOCKERFILE.encode()))
        context.seek(0)
        api = runtime.engine.api
        given: dict[str, Any] = {"fileobj": context, "custom_context": True, "rm": True}
        base = {"BASE": runner_image(runner)}
        said = list(api.build(tag=name, buildargs=base, decode=True, **given))
    assert not [each for each in said if "error" in each], said
    yield name
    api.remove_image(name)


async def test_a_cli_looks_up_no_name(runner: str, hearing: str, runtime: DockerRuntime) -> None:
    async with at_work(runner, hearing, runtime) as (container, talk):
        await talk.say("Go.")
        ended = await talk.turn()
        # That something would have been heard, of what is asked by the C library at least.
        look = "import socket; socket.getaddrinfo('control.example', 80)"
        await container.run(Launch(argv=("python3", "-c", look), env=PLAIN_ENVIRONMENT))
        names = (await container.run(Launch(argv=("cat", "/tmp/names")))).stdout.decode().split()
    assert (ended.reason, ended.text) == ("ok", "done")
    assert names[0] == "listening"
    assert set(names[1:]) == {"control.example"}, names


@asynccontextmanager
async def at_work(
    runner: str, image: str, runtime: DockerRuntime
) -> AsyncIterator[tuple[Any, Conversation]]:
    """A CLI in a container, with a scripted model, and with the listener beside it."""
    tool, given, model = TOOLS[runner]
    cli = CLIS[runner]
    agent = AgentSpec(
        name="tested",
        description="Is tested.",
        prompt="You are under test.",
        model=model,
        permissions=Permissions(allow=("Bash",)),
    )
    steps = [{"tool": tool, "input": given}, {"text": "done"}]
    upstream = ScriptedModel(Script.model_validate({"steps": steps})).upstream()
    access = ModelAccess(upstream, wire_format=cli.wire_formats[0])
    access.bind(budget_usd=None, on_request=None)
    spec = ContainerSpec(
        image=image,
        mounts=(Volume(target=WORKSPACE),),
        seccomp=await runtime.seccomp_profile(),
    )
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            await container.listen(MODEL_PORT, "model", access.service)
            listener = Launch(argv=("python3", "-c", LISTENER), env=PLAIN_ENVIRONMENT)
            async with container.spawn(listener):
                while (
                    b"listening"
                    not in (await container.run(Launch(argv=("cat", "/tmp/names")))).stdout
                ):
                    await anyio.sleep(0.05)
                terms = LaunchTerms(base_url=MODEL_URL, token=access.token, cwd=WORKSPACE)
                launch = cli.launch(agent, terms)
                async with open_cli(container, launch, cli) as talk:
                    with talk.approved_by(Approver(agent)):
                        yield container, talk
