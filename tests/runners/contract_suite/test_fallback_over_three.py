"""One run over three runners, each with a provider of its own that has a reason not to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.gateway.model import bill
from orchestrator.gateway.model.money.price_table import ProviderName
from tests.engine.harness import Harness, Steps
from tests.runners.contract_suite.clis import CLIS
from tests.runners.contract_suite.play import Playing, ways_to

PATIENCE = 170


@pytest.fixture
def harness(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path
) -> Iterator[Harness]:
    made = Harness(runtime, runner_image, tmp_path)
    yield made
    made.store.close()


def models(**scripts: Steps) -> dict[ProviderName, Playing]:
    found: dict[ProviderName, Playing] = {}
    names: tuple[ProviderName, ...] = ("anthropic", "openai", "google")
    for name in names:
        if name in scripts:
            found[name] = Playing()
            found[name].play(scripts[name])
    return found


def runners(*names: str) -> dict[str, Any]:
    return {"runner": list(names), "models": {name: CLIS[name].model for name in names}}


async def test_an_overload_and_a_key_that_is_refused_lead_to_a_third_runner_with_all_work(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bill, "FAILURES_IN_A_ROW", 1)  # a CLI waits for long before it asks again
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    claude, codex, gemini = CLIS["claude"], CLIS["codex"], CLIS["gemini"]
    found = models(
        anthropic=[claude.command("echo one > a.txt"), {"error": 529, "repeat": True}],
        openai=[codex.command("echo two >> a.txt"), {"error": 401, "repeat": True}],
        google=[gemini.command("cat a.txt; echo three >> a.txt"), {"text": "Done."}],
    )
    harness.models = ways_to(found)
    service = harness.service(
        [{"text": "-"}], each_task=False, workspace="copy", **runners("claude", "codex", "gemini")
    )
    task = Task(agent="worker", prompt="Do it.", workspace=project)
    with anyio.fail_after(PATIENCE):
        result = await service.run(task, harness.events.append)

    assert (result.status, result.runner, result.result) == ("completed", "gemini", "Done."), result
    assert [(each.runner, each.model, each.reason) for each in result.tried] == [
        ("claude", claude.model, "api_overloaded"),
        ("codex", codex.model, "api_auth"),
    ]
    assert "+one\n+two\n+three\n" in result.patch
    assert [file.path for file in result.changed_files] == ["a.txt"]
    assert "one\\ntwo" in found["google"].bodies[-1]
    costs = [each.cost_usd for each in result.tried]
    assert all(cost > 0 for cost in costs)
    assert result.cost_usd > sum(costs)
    seen = [event for event in harness.events if event.kind == "model_request"]
    assert result.cost_usd == pytest.approx(sum(float(str(e.data["cost_usd"])) for e in seen))
    assert [event.data["next"] for event in harness.events if event.kind == "fallback"] == [
        "codex",
        "gemini",
    ]
    assert "Another agent has begun this task" in found["google"].bodies[0]


async def test_a_runner_without_a_credential_is_passed_over_and_that_is_told(
    harness: Harness,
) -> None:
    harness.models = ways_to(models(anthropic=[{"text": "Done."}]))
    with anyio.fail_after(PATIENCE):
        result = await harness.run([{"text": "-"}], **runners("codex", "claude"))

    assert (result.status, result.runner, result.result) == ("completed", "claude", "Done."), result
    assert any("codex" in said and "OPENAI_API_KEY" in said for said in result.warnings), result
