"""Real CLIs in locked containers, each on a scripted model in its own format, through the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import HOME, MODEL_PORT, MODEL_URL, ContainerSpec, Launch
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import FAILURES_IN_A_ROW, ModelRequestSeen
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.runners.acp.opencode import FRESH_OPENCODE, OPENCODE_FOLDER
from orchestrator.runners.contract import WireFormat

pytestmark = pytest.mark.anyio

RUN_SECONDS = 240
"""One start of a CLI and a few turns, on a machine that is busy with other things."""

USAGE = {"input_tokens": 70, "output_tokens": 9, "cache_read_input_tokens": 30}
PATH = "/usr/local/bin:/usr/bin:/bin"


def codex(token: str, prompt: str) -> Launch:
    provider = (
        f'model_providers.gw={{name="gw",base_url="{MODEL_URL}/v1",env_key="RUN_TOKEN",'
        'wire_api="responses",request_max_retries=0,stream_max_retries=0}'
    )
    argv = ["codex", "exec", "--json", "--skip-git-repo-check", "--ephemeral", "-m", "gpt-5.5"]
    argv += ["--dangerously-bypass-approvals-and-sandbox", "-c", "model_provider=gw"]
    argv += ["-c", provider, "-c", "analytics.enabled=false", "-c", 'web_search="disabled"']
    argv += ["--disable", "apps", "--disable", "plugins", "--disable", "remote_plugin", prompt]
    return Launch(argv=tuple(argv), env={"RUN_TOKEN": token, "HOME": HOME, "PATH": PATH}, cwd=HOME)


def gemini(token: str, prompt: str) -> Launch:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
    }
    env = {
        "GEMINI_API_KEY": token,
        "GOOGLE_GEMINI_BASE_URL": MODEL_URL,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "SETTINGS": json.dumps(settings),
        "PROMPT": prompt,
        "HOME": HOME,
        "PATH": PATH,
    }
    command = (
        'mkdir -p "$HOME/.gemini" && echo "$SETTINGS" >"$HOME/.gemini/settings.json" && '
        'exec gemini -m gemini-2.5-pro -p "$PROMPT" --output-format stream-json --yolo'
    )
    return Launch(argv=("/bin/sh", "-c", command), env=env, cwd=HOME)


def copilot(token: str, prompt: str) -> Launch:
    env = {
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_CACHE_HOME": "/opt/copilot",
        "COPILOT_MODEL": "gpt-5.5",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_WIRE_API": "responses",
        "COPILOT_PROVIDER_BASE_URL": f"{MODEL_URL}/v1",
        "COPILOT_PROVIDER_API_KEY": token,
        "HOME": HOME,
        "PATH": PATH,
    }
    argv = ("copilot", "-p", prompt, "--output-format", "json", "--allow-all-tools")
    return Launch(argv=argv, env=env, cwd=HOME)


def opencode(token: str, prompt: str) -> Launch:
    options = {"baseURL": f"{MODEL_URL}/v1", "apiKey": token}
    limit = {"context": 200_000, "output": 8000}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": options,
        "models": {"gpt-5.5": {"limit": limit}},
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["gw"],
        "model": "gw/gpt-5.5",
        "small_model": "gw/gpt-5.5",
        "provider": {"gw": provider},
        "permission": {"*": "allow"},
    }
    switches = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "PROJECT_CONFIG")
    env = {
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
        **{f"OPENCODE_DISABLE_{name}": "1" for name in switches},
        **{f"XDG_{each.upper()}_HOME": f"{OPENCODE_FOLDER}/{each}" for each in ("config", "data")},
        "OPENCODE_PURE": "1",
        "HOME": HOME,
        "PATH": PATH,
    }
    run = ("opencode", "run", prompt, "--format", "json")
    argv = ("/bin/sh", "-c", FRESH_OPENCODE, OPENCODE_FOLDER, *run)
    return Launch(argv=argv, env=env, cwd=HOME)


CLIS: tuple[tuple[Callable[[str, str], Launch], WireFormat, str, dict[str, Any]], ...] = (
    (codex, "responses", "exec_command", {"cmd": "printf 'sum %s' 42"}),
    (copilot, "responses", "bash", {"command": "printf 'sum %s' 42", "description": "d"}),
    (gemini, "gemini", "run_shell_command", {"command": "printf 'sum %s' 42"}),
)


class Played:
    """One run of a CLI on a script."""

    def __init__(self, wire_format: WireFormat, *steps: dict[str, Any]) -> None:
        model = ScriptedModel(Script.model_validate({"steps": list(steps)}))
        self.access = ModelAccess(model.upstream(), wire_format=wire_format)
        self.seen: list[ModelRequestSeen] = []
        self.access.bind(budget_usd=1, on_request=self.seen.append)
        self.output = ""

    async def run(self, runtime: DockerRuntime, spec: ContainerSpec, launch: Launch) -> None:
        with anyio.fail_after(RUN_SECONDS):
            async with runtime.open(spec) as container:
                await container.wire.listen(MODEL_PORT, "model", self.access.service)
                done = await container.wire.run(launch)
        self.output = (done.stdout + done.stderr).decode(errors="replace")


@pytest.mark.parametrize(("cli", "wire_format", "tool", "given"), CLIS)
async def test_a_cli_uses_a_tool_and_answers_and_is_metered(
    cli: Callable[[str, str], Launch],
    wire_format: WireFormat,
    tool: str,
    given: dict[str, Any],
    runtime: DockerRuntime,
    spec: ContainerSpec,
    runner_image: Callable[[str], str],
) -> None:
    answer = {"text": "it said: {last_tool_result}; to {last_user_text}", "usage": USAGE}
    played = Played(wire_format, {"tool": tool, "input": given}, answer)
    image = spec.model_copy(update={"image": runner_image(cli.__name__)})
    await played.run(runtime, image, cli(played.access.token, "add 20 and 22"))

    assert "it said: " in played.output, played.output
    assert "sum 42" in played.output
    asked = [one for one in played.seen if one.input_tokens == 70]
    assert [(one.status, one.output_tokens, one.cache_read_tokens) for one in asked] == [
        (200, 9, 30)
    ]
    assert {(one.error_type, one.verdict, one.estimated_usd) for one in played.seen} == {
        ("", "", 0)
    }
    assert played.access.bill.usage.cost_usd > 0


@pytest.mark.waits
async def test_opencode_does_not_ask_again_without_end_after_answers_that_broke_off(
    runtime: DockerRuntime, spec: ContainerSpec, runner_image: Callable[[str], str]
) -> None:
    played = Played(
        "chat",
        {"tool": "bash", "input": {"command": "printf 'sum %s' 42", "description": "d"}},
        {"text": "half of an answer", "cut": True, "repeat": True},
    )
    image = spec.model_copy(update={"image": runner_image("opencode")})
    await played.run(runtime, image, opencode(played.access.token, "go on"))

    assert "sum 42" in played.output, played.output
    cut = [one for one in played.seen if one.verdict == "cut" and one.status == 200]
    assert len(cut) == FAILURES_IN_A_ROW
    assert played.seen[-1].error_type == "too_many_failures"
    assert "refused by the orchestrator: the model's answer broke off" in played.output
