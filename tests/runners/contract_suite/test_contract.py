"""One set of promises for every runner: the real program, in a locked container, against a
scripted model in its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.task import Task
from orchestrator.engine import turns as turns_module
from orchestrator.runners.known import RUNNERS
from tests.engine.harness import Harness, Steps
from tests.runners.codex.test_real import MCP_SERVER
from tests.runners.contract_suite.clis import CLIS, ScriptedCli

PATIENCE = 300

COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.fixture(params=list(CLIS))
def cli(request: pytest.FixtureRequest) -> ScriptedCli:
    return CLIS[request.param]


@pytest.fixture
def harness(
    runtime: DockerRuntime, runner_image: Callable[[str], str], tmp_path: Path
) -> Iterator[Harness]:
    made = Harness(runtime, runner_image, tmp_path)
    yield made
    made.store.close()


def test_every_runner_is_in_the_suite() -> None:
    assert set(CLIS) == set(RUNNERS)


async def test_it_works_on_a_copy_within_its_rules_and_answers_as_its_schema_says(
    harness: Harness, cli: ScriptedCli, tmp_path: Path
) -> None:
    project = tmp_path / "work" / "project"
    project.mkdir(parents=True)
    (project / "old.txt").write_text("old\n")
    steps: Steps = [
        cli.command("touch new.txt"),
        cli.command("rm old.txt"),
        cli.server("srv", "env", {"name": "A"}),
        {"text": "no idea"},
        {"text": '{"n": 3}'},
    ]
    server = {"name": "srv", "command": "python3", "args": ["-c", MCP_SERVER], "env": {"A": "b"}}
    task = Task(agent="worker", prompt="Do it.", workspace=project)
    with anyio.fail_after(PATIENCE):
        result = await harness.run(
            steps,
            task,
            workspace="copy",
            permissions={"allow": ["Bash(cd:*)", "Bash(touch:*)"]},
            mcp_servers=[server],
            output_schema=COUNT,
            **cli.agent,
        )

    assert (result.status, result.result, result.attempts) == ("completed", {"n": 3}, 2), result
    assert (result.runner, result.tried) == (cli.runner, ())
    assert result.denied_tools == ("Bash",)
    assert [(file.path, file.change) for file in result.changed_files] == [("new.txt", "added")]
    returned = [event.text for event in harness.events if event.kind == "tool_result"]
    assert any("A=b" in text for text in returned), returned
    assert (result.usage.requests, result.failed_mcp_servers) == (5, ())
    assert result.cost_usd > 0
    assert {"started", "ready", "tool_call", "schema_failed"} <= set(harness.kinds())


QUOTA = {"error": 429, "means": "quota"}
AUTH = {"error": 401}
LENGTH = {"text": "It goes on and", "stop_reason": "max_tokens"}
CUT = {"text": "half an ans", "cut": True}


@pytest.mark.parametrize(
    ("runner", "step", "reason"),
    [  # those of claude are in tests/engine/test_endings.py
        *((runner, AUTH, "api_auth") for runner in ("codex", "copilot", "gemini")),
        *((runner, QUOTA, "api_rate_limit") for runner in ("codex", "gemini", "opencode")),
        *((runner, LENGTH, "max_tokens") for runner in ("codex", "copilot", "gemini")),
        *((runner, CUT, "stream_cut") for runner in ("codex", "copilot", "opencode")),
    ],
)
async def test_what_the_model_does_is_named(
    harness: Harness, runner: str, step: dict[str, object], reason: str
) -> None:
    with anyio.fail_after(PATIENCE):
        result = await harness.run([step | {"repeat": True}], **CLIS[runner].agent)

    assert (result.status, result.reason) == ("failed", reason), result
    assert result.usage.requests <= 5
    for of_the_inside in ("127.0.0.1", "refused by the orchestrator"):
        assert of_the_inside not in result.message


async def test_turns_and_money_are_limited_by_the_gateway(
    harness: Harness, cli: ScriptedCli
) -> None:
    again = cli.command("echo once more", repeat=True)
    dear = {"usage": {"input_tokens": 1_000_000, "output_tokens": 10}}
    with anyio.fail_after(PATIENCE):
        turns = await harness.run([again], max_turns=2, **cli.agent)
        money = await harness.run([again | dear], max_budget_usd=0.5, **cli.agent)

    assert (turns.status, turns.reason) == ("failed", "max_turns"), turns
    assert (money.status, money.reason) == ("failed", "budget"), money
    assert money.usage.requests == 1


@pytest.mark.parametrize("runner", ["codex", "copilot", "gemini"])
async def test_a_soft_deadline_breaks_off_the_turn_and_rescues_the_answer(
    harness: Harness, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "NUDGE_SECONDS", 225)
    monkeypatch.setattr(turns_module, "NUDGE_SHARE", 1.0)
    late = {"text": "Too late.", "delay_seconds": 500}
    steps: Steps = [late, {"text": "What I had.", "repeat": True}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, timeout_ms=240_000, **CLIS[runner].agent)

    assert (result.status, result.reason) == ("completed", "deadline"), result
    assert result.result == "What I had."
    assert "nudged" in harness.kinds()


async def test_a_session_remembers_over_three_calls_and_a_kill(
    harness: Harness, cli: ScriptedCli
) -> None:
    steps: Steps = [{"text": "I was told: {user_texts}", "repeat": True}]
    service = harness.service(steps, session=True, **cli.agent)

    async def call(prompt: str) -> str:
        result = await service.run(Task(agent="worker", prompt=prompt), harness.events.append)
        assert result.status == "completed", result
        assert result.session_note == ""
        return str(result.result)

    with anyio.fail_after(PATIENCE):
        async with harness.sessions:
            await call("first")
            second = await call("second")
            held = harness.sessions._live[harness.key]
            assert held.stage is not None
            held.stage.conversation.process.signal(9)
            await held.stage.conversation.process.wait()
            third = await call("third")
        for row in await harness.sessions.list():
            await harness.sessions.remove(row.key)

    assert all(word in second for word in ("first", "second"))
    assert all(word in third for word in ("first", "second", "third"))
