"""A run that goes on with another runner, where the one before could not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.errors import ImageBuildFailed
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 170

QUOTA = {"error": 429, "means": "quota"}

BOTH: dict[str, object] = {
    "runner": ["claude", "codex"],
    "model": "sonnet",
    "models": {"codex": "gpt-5.5"},
}


@pytest.fixture
def harness(runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path) -> Harness:
    return Harness(runtime, runner_image, tmp_path)


def command(line: str) -> dict[str, object]:
    """As codex has it."""
    return {"tool": "exec_command", "input": {"cmd": line}}


class Models:
    """A service whose agent, on a runner with this model, finds that script."""

    def __init__(self, harness: Harness, scripts: dict[str, Steps], **fields: object) -> None:
        self.service = harness.service([{"text": "-"}], each_task=False, **(BOTH | fields))
        models = {
            name: ScriptedModel(Script.model_validate({"steps": list(steps)}))
            for name, steps in scripts.items()
        }
        staging = self.service._staging
        staging._gateway = replace(
            staging._gateway, script_of=lambda agent: models[agent.model].upstream()
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
    task = Task(agent="worker", prompt="Do it.", workspace=project)
    with anyio.fail_after(PATIENCE):
        result = await service.run(task, harness.events.append)

    assert (result.status, result.runner, result.model) == ("completed", "codex", "gpt-5.5"), result
    assert "one\na.txt\nd\nkept.sh" in str(result.result)
    (tried,) = result.tried
    assert (tried.runner, tried.model, tried.reason) == ("claude", "sonnet", "api_rate_limit")
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


async def test_a_runner_that_cannot_be_had_leaves_the_run_as_it_ended_on_the_one_before(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path
) -> None:
    def images(runner: str) -> str:
        if runner == "codex":
            raise ImageBuildFailed("npm is not here to fetch it")
        return runner_image(runner)

    harness = Harness(runtime, images, tmp_path)
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    scripts: dict[str, Steps] = {"sonnet": [bash("echo one > a.txt"), QUOTA]}
    service = Models(harness, scripts, workspace="copy").service
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt="Do it.", workspace=project))

    assert (result.status, result.reason, result.runner) == ("failed", "api_rate_limit", "claude")
    assert [file.path for file in result.changed_files] == ["a.txt"]
    assert any("codex cannot go on with the run" in warning for warning in result.warnings)
