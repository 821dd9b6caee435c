"""Real clients after `orchestrator init --client`: each calls an agent, nothing done by hand.

The project and the home are empty before. What a person would say to a client's dialogues is said
in its flags and variables; the model behind each client is a script in its own wire format.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest

from orchestrator.surfaces.cli.setup.plugin import PLUGIN_DIR
from orchestrator.surfaces.cli.talk.asked import NOTHING_WAITS
from tests.npm_packages import npm_commands
from tests.surfaces.mcp.claude_parent import claude_executable
from tests.surfaces.mcp.client_models import (
    SAID,
    GenerateContent,
    Messages,
    Played,
    Responses,
    played,
)
from tests.surfaces.mcp.mcp_stage import COMMAND, PATIENCE, Stage, on_stage

pytestmark = pytest.mark.anyio

PACKAGES = Path(__file__).with_name("clients")

CLAUDE = "2.1.325"

ASKED = "Ask the agent hello which kernel this is."

HELLO = {"agent_name": "hello", "prompt": "Which kernel is this?"}

QUIET = {"DISABLE_AUTOUPDATER": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
QUIET |= {"CLAUDE_CODE_MAX_RETRIES": "0", "IS_SANDBOX": "1"}


class Scene(NamedTuple):
    """An empty project, an empty home, and an environment in which a person starts a client."""

    project: Path
    home: Path
    env: dict[str, str]
    stage: Stage

    async def init(self, *options: str) -> str:
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(
                [COMMAND, "init", *options], env=self.env, cwd=self.project, check=False
            )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()

    async def say(self, argv: list[str], env: Mapping[str, str], below: str = "") -> str:
        """What the client prints, which is started in the project or in a folder below it."""
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(
                argv,
                env={**self.env, **env},
                cwd=self.project / below,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()


@pytest.fixture
async def scene(tmp_path: Path, image: str) -> AsyncIterator[Scene]:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    async with on_stage(tmp_path, image) as stage:
        env = {k: v for k, v in stage.env.items() if k != "ORCHESTRATOR_AGENTS_DIR"}
        yield Scene(project, home, env | {"HOME": str(home)}, stage)


@pytest.fixture(scope="session")
def clients() -> Path:
    """The folder with the clients' commands."""
    return npm_commands(PACKAGES)


async def test_claude_calls_an_agent_after_init_from_a_folder_below(scene: Scene) -> None:
    said = await scene.init()
    (scene.project / "src").mkdir()
    assert 'choose "Use this MCP server"' in said
    async with played(Messages("mcp__subagents__run_subagent", HELLO)) as url:
        argv = [str(claude_executable(CLAUDE)), "-p", ASKED, "--allowedTools", "mcp__subagents"]
        key = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "worthless"}
        heard = await scene.say(argv, QUIET | key, below="src")
    _answered(scene, heard)


async def test_codex_calls_an_agent_after_init(scene: Scene, clients: Path) -> None:
    """Where it cannot ask a person, it takes the tools that the entry approves or that only look,
    and not the one that applies changes.
    """
    await scene.init("--client", "codex")
    said = {}
    for tool, arguments in (("run_subagent", HELLO), ("apply_changes", {"run_id": "r0"})):
        async with played(Responses("mcp__subagents", tool, arguments)) as url:
            provider = (
                f'{{name="it",base_url="{url}/v1",env_key="MODEL_KEY",wire_api="responses",'
                "request_max_retries=0,stream_max_retries=0,supports_websockets=false}"
            )
            trusted = f'{{"{scene.project}"={{trust_level="trusted"}}}}'
            argv = [
                *(str(clients / "codex"), "exec", "--skip-git-repo-check", "-m", "gpt-5.5"),
                *("-c", "model_provider=it", "-c", f"model_providers.it={provider}"),
                *("-c", f"projects={trusted}", "-c", "analytics.enabled=false"),
                *("-c", "check_for_update_on_startup=false", ASKED),
            ]
            said[tool] = await scene.say(argv, {"MODEL_KEY": "worthless"})
    _answered(scene, said["run_subagent"])
    assert "requires approval" in said["apply_changes"]


async def test_copilot_calls_an_agent_after_init(scene: Scene, clients: Path) -> None:
    await scene.init("--client", "copilot")
    async with played(Messages("subagents-run_subagent", HELLO)) as url:
        flags = ["--trust-folder", "--allow-tool=subagents", "--no-auto-update"]
        env = {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_TYPE": "anthropic",
            "COPILOT_PROVIDER_BASE_URL": url,
            "COPILOT_PROVIDER_API_KEY": "worthless",
            "COPILOT_MODEL": "claude-sonnet-4.5",
        }
        heard = await scene.say([str(clients / "copilot"), "-p", ASKED, *flags], env)
    _answered(scene, heard)


async def test_gemini_calls_an_agent_after_init(scene: Scene, clients: Path) -> None:
    await scene.init("--client", "gemini")
    (scene.home / ".gemini").mkdir()
    login = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    quiet = {"privacy": {"usageStatisticsEnabled": False}}
    (scene.home / ".gemini/settings.json").write_text(json.dumps(login | quiet))
    tool = "mcp_subagents_run_subagent"
    async with played(GenerateContent(tool, HELLO)) as url:
        flags = ["-m", "gemini-2.5-pro", "--allowed-tools", tool]
        env = {
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_API_KEY": "worthless",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        heard = await scene.say([str(clients / "gemini"), *flags, "-p", ASKED], env)
    _answered(scene, heard)


def _answered(scene: Scene, heard: str) -> None:
    """The agent ran, and its answer is what the client's model was told."""
    assert SAID in heard
    assert "I run on Linux." in heard.partition(SAID)[2]
    assert scene.stage.runs() == [("hello", "completed", "ok")]


# The plugin


async def test_the_plugin_brings_the_server_a_command_and_a_word_about_what_waits(
    scene: Scene, tmp_path: Path
) -> None:
    """`/subagents TASK` has the model call an agent; that asks, and the hook says that it waits."""
    claude = claude_executable(CLAUDE)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/claude").symlink_to(claude)
    asks = [{"tool": "mcp__parent__ask_parent", "input": {"question": "Which colour?"}}]
    agent = scene.project / "agents/asker"
    agent.mkdir(parents=True)
    (agent / "agent.md").write_text(
        "---\nname: asker\ndescription: Asks.\nask: parent\n---\nAsk.\n"
    )
    (agent / "script.yaml").write_text(json.dumps({"steps": asks}))
    call = {"agent_name": "asker", "prompt": "Ask me."}
    model = _Heard(Messages("mcp__plugin_subagents_subagents__run_subagent", call))
    async with played(model) as url:
        env = {
            **QUIET,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "worthless",
            "PATH": f"{tmp_path / 'bin'}{os.pathsep}{scene.env['PATH']}",
        }
        scene.env.update(env)
        assert "installed" in await scene.init("--client", "claude-plugin")
        assert "installed" in await scene.init("--client", "claude-plugin")  # a second time too
        assert not (scene.project / ".mcp.json").exists()
        argv = [
            *("claude", "-p", "/subagents pick a colour", "--output-format", "stream-json"),
            *("--verbose", "--allowedTools", "mcp__plugin_subagents_subagents"),
        ]
        printed = await scene.say(argv, {})
    events = [json.loads(line) for line in printed.splitlines()]
    told = json.dumps(model.asked[0]["messages"])
    assert "asker" in told  # of `agents list`
    assert NOTHING_WAITS in told
    assert "The task: pick a colour" in told
    ended = next(event for event in events if event["type"] == "result")
    assert '"status":"waiting_parent_reply"' in ended["result"]
    assert "Which colour?" in ended["result"]
    lines = [event.get("content", "") for event in events if event["type"] == "system"]
    waits = "1 question of your subagents waits for you: `orchestrator pending` shows them"
    assert [line for line in lines if waits in str(line)]


async def test_claude_finds_nothing_wrong_with_the_plugin(scene: Scene) -> None:
    argv = [str(claude_executable(CLAUDE)), "plugin", "validate", "--strict", str(PLUGIN_DIR)]
    assert "Validation passed" in await scene.say(argv, QUIET)


class _Heard:
    """A model, and what it was asked."""

    def __init__(self, model: Played) -> None:
        self.asked: list[Any] = []
        self._model = model

    async def answer(self, request: Any) -> Any:
        if request.body:
            self.asked.append(json.loads(request.body))
        return await self._model.answer(request)
