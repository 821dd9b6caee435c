"""A run that goes on with another runner, where the one before could not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.images.fetching import Progress
from orchestrator.domain.task import Task
from orchestrator.errors import ImageBuildFailed
from orchestrator.gateway.model.fallback import OF_THE_PROVIDER, next_ways
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.runners.choice import RunnerWay
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 170

QUOTA = {"error": 429, "means": "quota"}

THREE: dict[str, object] = {
    "runner": ["claude", "copilot", "codex"],
    "model": "sonnet",
    "models": {"codex": "gpt-5.5", "copilot": "claude-sonnet-4-5"},
}


CLAUDE = RunnerWay(runner="claude", model="claude-x", wire_format="anthropic")
COPILOT = RunnerWay(runner="copilot", model="claude-x", wire_format="anthropic")
CODEX = RunnerWay(runner="codex", model="gpt-x", wire_format="responses")
OPENCODE = RunnerWay(runner="opencode", model="gpt-x", wire_format="chat")
GEMINI = RunnerWay(runner="gemini", model="gemini-x", wire_format="gemini")


def test_a_runner_whose_provider_has_nothing_for_the_account_is_passed_over() -> None:
    found = next_ways((COPILOT, CODEX, OPENCODE), {"anthropic": "quota"})
    assert found.ways == (CODEX, OPENCODE)
    (over,) = found.passed_over
    assert (over.runner, over.reason, over.passed_over) == ("copilot", "api_rate_limit", True)
    assert over.message == (
        "passed over: it would ask Anthropic too, whose account has nothing left to use"
    )
    both = next_ways((COPILOT, CODEX, GEMINI), {"anthropic": "auth", "openai": "quota"})
    assert both.ways == (GEMINI,)
    assert [each.runner for each in both.passed_over] == ["copilot", "codex"]
    assert next_ways((COPILOT,), {"anthropic": "auth"}).ways == ()


def test_a_runner_whose_provider_is_busy_comes_last() -> None:
    for verdict in ("rate_limit", "overloaded"):
        found = next_ways((COPILOT, CODEX, GEMINI), {"anthropic": verdict})
        assert found == ((CODEX, GEMINI, COPILOT), ())


def test_what_the_model_makes_of_a_task_holds_for_every_provider() -> None:
    assert {"quota", "overloaded"} < OF_THE_PROVIDER
    assert not OF_THE_PROVIDER & {"", "context", "cut", "refusal"}


@pytest.fixture
def harness(runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path) -> Harness:
    return Harness(runtime, runner_image, tmp_path)


def command(line: str) -> dict[str, object]:
    """As codex has it."""
    return {"tool": "exec_command", "input": {"cmd": line}}


class Models:
    """A service whose agent, on a runner with this model, finds that script."""

    def __init__(self, harness: Harness, scripts: dict[str, Steps], **fields: object) -> None:
        self.service = harness.service([{"text": "-"}], each_task=False, **(THREE | fields))
        models = {
            name: ScriptedModel(Script.model_validate({"steps": list(steps)}))
            for name, steps in scripts.items()
        }
        staging = self.service._staging
        staging._gateway = replace(
            staging._gateway, script_of=lambda agent, _: models[agent.model].upstream()
        )


async def test_a_run_out_of_quota_goes_on_with_the_next_runner_and_what_is_done_of_it(
    harness: Harness, tmp_path: Path
) -> None:
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (project / "old.txt").write_text("old\n")
    (project / "kept.sh").write_text("true\n")
    begun = "echo one > a.txt; rm old.txt; chmod +x kept.sh; mkdir d; ln -s a.txt d/l"
    scripts: dict[str, Steps] = {
        "sonnet": [bash(begun), QUOTA],
        "gpt-5.5": [
            command("cat a.txt; ls; echo two >> a.txt"),
            {"text": "{last_tool_result}"},
        ],
    }
    service = Models(harness, scripts, workspace="copy").service
    engine = service._staging.planner._engine
    found = engine.agent_image

    async def made(runner: str, progress: Progress = lambda _: None) -> str:
        if runner == "codex":
            progress("making codex")
        return await found(runner)

    engine.agent_image = made  # type: ignore[method-assign]
    task = Task(agent="worker", prompt="Do it.", workspace=project)
    with anyio.fail_after(PATIENCE):
        result = await service.run(task, harness.events.append)

    assert (result.status, result.runner, result.model) == ("completed", "codex", "gpt-5.5"), result
    assert "one\na.txt\nd\nkept.sh" in str(result.result)
    tried, over = result.tried
    assert (tried.runner, tried.model, tried.reason) == ("claude", "sonnet", "api_rate_limit")
    assert (over.runner, over.passed_over, tried.passed_over) == ("copilot", True, False)
    assert {file.path: file.change for file in result.changed_files} == {
        "a.txt": "added",
        "old.txt": "deleted",
        "kept.sh": "mode",
        "d/l": "added",
    }
    assert "+one\n+two\n" in result.patch
    seen = [event for event in harness.events if event.kind == "model_request"]
    assert result.usage.requests == 4
    assert result.usage.output_tokens == sum(
        int(str(event.data["output_tokens"])) for event in seen
    )
    (fallback,) = [event for event in harness.events if event.kind == "fallback"]
    assert (fallback.data["runner"], fallback.data["next"]) == ("claude", "codex")
    told = [event.text for event in harness.events if event.kind == "workspace"]
    assert any("that the runner before had changed are in the copy" in line for line in told)
    assert {path.name for path in (tmp_path / "changes").iterdir()} == {
        result.run_id,
        f"{result.run_id}.tried-1",
    }
    assert [event.text for event in harness.events if event.kind == "image"] == ["making codex"]


@pytest.mark.parametrize("missing", ["fetched", "started"])
async def test_a_runner_that_cannot_be_had_leaves_what_was_done_on_the_one_before(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path, missing: str
) -> None:
    def images(runner: str) -> str:
        if runner == "codex" and missing == "fetched":
            raise ImageBuildFailed("npm is not here to fetch it")
        return runner_image(runner) if runner == "claude" else "no-such-image:1"

    harness = Harness(runtime, images, tmp_path)
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    scripts: dict[str, Steps] = {
        "sonnet": [bash("echo one > a.txt"), QUOTA],
        "gpt-5.5": [{"text": "never"}],
    }
    service = Models(harness, scripts, workspace="copy").service
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt="Do it.", workspace=project))

    if missing == "fetched":
        ended = ("failed", "api_rate_limit", "claude")
        assert any("codex cannot go on with the run" in warning for warning in result.warnings)
    else:
        ended = ("failed", "start_failed", "codex")
    assert (result.status, result.reason, result.runner) == ended
    assert [file.path for file in result.changed_files] == ["a.txt"]
    assert [each.path for each in harness.copies.changes(result.run_id).files] == ["a.txt"]
    assert "copilot" in [each.runner for each in result.tried if each.passed_over]
