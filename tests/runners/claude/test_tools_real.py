"""The tools of the claude CLI that is in the image, asked of itself."""

from __future__ import annotations

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.images.claude_binary import CLAUDE_VERSION
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.runners.claude.tools import (
    BUILT_IN_TOOLS,
    FORMER_TOOLS,
    OTHER_NAMES,
    TOOLS_VERSION,
)
from orchestrator.runners.signs import Ready
from tests.runners.claude.fake_model import Say
from tests.runners.claude.test_real import launch_of, talking


async def tools_of(runtime: DockerRuntime, spec: ContainerSpec, launch: Launch) -> set[str]:
    """What the CLI says that it has."""
    async with talking(runtime, spec, launch, Say("Hello.")) as talk:
        await talk.say("Hello.")
        (ready,) = [sign for sign in talk.signs if isinstance(sign, Ready)]
    return {OTHER_NAMES.get(tool, tool) for tool in ready.tools}


async def test_the_checker_knows_every_tool_of_the_cli_in_the_image(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    assert TOOLS_VERSION == CLAUDE_VERSION
    others = set(OTHER_NAMES.values())  # asked for by their other names
    names = (*sorted(BUILT_IN_TOOLS - others), *FORMER_TOOLS, *OTHER_NAMES, "NoSuchTool")
    assert await tools_of(runtime, spec, launch_of(allow=names)) == BUILT_IN_TOOLS
    usual = launch_of()
    argv = tuple("--tools=default" if arg == "--tools=" else arg for arg in usual.argv)
    assert argv != usual.argv
    by_itself = await tools_of(runtime, spec, usual.model_copy(update={"argv": argv}))
    assert by_itself <= BUILT_IN_TOOLS  # the checker would call others unknown
