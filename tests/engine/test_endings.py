"""Every way a run can end, with the real CLI: the same envelope, a stable reason, nothing left."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine import turns as turns_module
from orchestrator.errors import AgentNotFound, CallerRefused, MountRefused
from orchestrator.settings import Settings
from tests.containers.docker.engine_proxy import engine_proxy
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 240
COUNT = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
LONG = bash("python3 -c 'import time; time.sleep(500)'")  # the CLI refuses a plain sleep


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Iterator[Harness]:
    made = Harness(runtime, image, tmp_path)
    yield made
    made.store.close()


async def kept(harness: Harness, result: RunResult) -> RunResult:
    """What the store kept, which must be what was returned."""
    record = await harness.store.run(result.run_id)
    assert record is not None
    assert record.result == result
    assert (record.status, record.reason) == (result.status, result.reason)
    events = await harness.store.events(result.run_id)
    assert list(events) == harness.events
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return result


async def test_success_is_the_answer_with_its_cost(harness: Harness) -> None:
    steps: Steps = [bash("echo hello from $(id -un)"), {"text": "It said: {last_tool_result}"}]
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run(steps))

    assert (result.status, result.reason, result.message) == ("completed", "ok", "")
    assert result.result == "It said: hello from agent"
    assert (result.attempts, result.usage.requests, result.caller) == (1, 2, "main")
    assert result.cost_usd > 0
    assert result.session_id
    assert result.log_tail == ()
    assert harness.kinds()[:3] == ["queued", "starting", "started"]
    assert {"ready", "tool_call", "tool_result", "text", "model_request"} <= set(harness.kinds())
    assert harness.kinds()[-1] == "ended"


async def test_an_answer_that_breaks_the_schema_is_sent_back_and_corrected(
    harness: Harness,
) -> None:
    steps: Steps = [{"text": '{"n": "three"}'}, {"text": '```json\n{"n": 3}\n```'}]
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run(steps, output_schema=COUNT))

    assert (result.status, result.result, result.attempts) == ("completed", {"n": 3}, 2)
    (failed,) = [event for event in harness.events if event.kind == "schema_failed"]
    assert failed.text == "/n: 'three' is not of type 'integer'"


async def test_an_answer_that_never_satisfies_the_schema_is_invalid_output(
    harness: Harness,
) -> None:
    steps: Steps = [{"text": "no idea", "repeat": True}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, output_schema=COUNT, retries=1)

    assert (result.status, result.reason, result.attempts) == ("failed", "invalid_output", 2)
    assert (result.partial_text, result.schema_errors) == ("no idea", ("the answer is not JSON",))
    assert result.log_tail


TOLD_BY_MODEL: list[tuple[dict[str, object], str]] = [
    ({"error": 529, "message": "overloaded"}, "api_overloaded"),
    ({"text": "I won't.", "stop_reason": "refusal"}, "refusal"),
    ({"text": "half an ans", "cut": True}, "stream_cut"),
    # The rest is in `make soak`: which reason it is, tests/gateway/model/test_verdicts.py tells.
    ({"error": 401, "message": "invalid x-api-key"}, "api_auth"),
    ({"error": 429, "message": "slow down"}, "api_rate_limit"),
    ({"error": 500, "message": "oops"}, "api_error"),
    ({"error": 400, "message": "prompt is too long"}, "api_error"),
    ({"text": "It goes on and", "stop_reason": "max_tokens"}, "max_tokens"),
]


@pytest.mark.parametrize(("step", "reason"), TOLD_BY_MODEL[:3])
async def test_what_the_model_does_is_named(
    harness: Harness, step: dict[str, object], reason: str
) -> None:
    await is_named(harness, step, reason)


async def is_named(harness: Harness, step: dict[str, object], reason: str) -> None:
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run([step | {"repeat": True}]))

    assert (result.status, result.reason) == ("failed", reason), result
    assert result.message
    for of_the_inside in ("127.0.0.1", "inference gateway", "CLAUDE_CODE_"):
        assert of_the_inside not in result.message
    assert result.result is None


async def test_turns_used_up_is_max_turns(harness: Harness) -> None:
    steps: Steps = [bash("echo once more") | {"repeat": True}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, max_turns=2)

    assert (result.status, result.reason) == ("failed", "max_turns"), result


async def test_a_budget_refuses_the_next_request(harness: Harness) -> None:
    dear = {"usage": {"input_tokens": 1_000_000, "output_tokens": 10}}
    steps: Steps = [bash("echo dear") | dear, {"text": "never asked for"}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, max_budget_usd=0.5)

    assert (result.status, result.reason) == ("failed", "budget"), result
    assert result.usage.requests == 1
    assert result.cost_usd > 0.5
    assert "raise max_budget_usd" in result.message


async def test_a_soft_deadline_rescues_the_answer(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "NUDGE_SHARE", 0.95)
    monkeypatch.setattr(turns_module, "NUDGE_SECONDS", 1000.0)
    steps: Steps = [LONG, {"text": "what I have"}]
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run(steps, timeout_ms=120_000))

    assert (result.status, result.reason, result.result) == ("completed", "deadline", "what I have")
    assert "nearly up" in result.message
    assert "nudged" in harness.kinds()


async def test_a_hard_deadline_keeps_what_was_said(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "NUDGE_SHARE", 0.3)
    steps: Steps = [LONG, {"text": "too late", "delay_seconds": 300}]
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run(steps, timeout_ms=9000))

    assert (result.status, result.reason) == ("timed_out", "deadline"), result
    assert result.result is None
    assert result.message.endswith("Ask for less, or raise timeout_ms in its agent.md")


async def test_a_caller_may_give_less_time_than_the_agent_has(harness: Harness) -> None:
    task = Task(agent="worker", prompt="Do it.", timeout_seconds=4)
    with anyio.fail_after(PATIENCE):
        result = await harness.run([LONG, LONG], task)

    assert (result.status, result.reason) == ("timed_out", "deadline"), result
    assert result.message.endswith("Ask for less, or allow more with --timeout")


async def test_cancelling_ends_the_run_and_is_kept(harness: Harness) -> None:
    task = Task(agent="worker", prompt="Do it.")
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:

            def cancel_at_work(event: Event) -> None:
                if event.kind == "tool_call":
                    tasks.cancel_scope.cancel()

            tasks.start_soon(harness.service([LONG]).run, task, cancel_at_work)
        record = await harness.store.run(task.run_id)

    assert record is not None
    assert (record.status, record.reason) == ("cancelled", "cancelled")


async def test_a_cli_that_dies_is_cli_crashed(harness: Harness) -> None:
    murder = (
        "for p in /proc/[0-9]*; do "
        "grep -qa 'stream-jso[n]' $p/cmdline && kill -9 ${p#/proc/}; done; tail -f /dev/null"
    )
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run([bash(murder)]))

    assert (result.status, result.reason) == ("failed", "cli_crashed"), result


async def test_a_cli_without_memory_is_out_of_memory(harness: Harness) -> None:
    hog = (
        "import os, time\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(15_000_000); time.sleep(500)\n"
        "time.sleep(500)"
    )
    small = {"memory_mb": 384, "scratch_mb": 16}
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(f"python3 -c '{hog}'")], resources=small)

    assert (result.status, result.reason) == ("failed", "oom_killed"), result
    assert "memory" in result.message


async def test_a_container_killed_from_outside_is_container_killed(
    harness: Harness, runtime: DockerRuntime
) -> None:
    steps: Steps = [LONG]
    outcome: list[RunResult] = []
    at_work = anyio.Event()

    def watch(event: Event) -> None:
        if event.kind == "tool_call":
            at_work.set()

    async def go() -> None:
        task = Task(agent="worker", prompt="Do it.")
        outcome.append(await harness.service(steps).run(task, watch))

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await at_work.wait()
            (info,) = await runtime.list()
            await runtime.engine.call(runtime.engine.api.kill, info.id)

    assert (outcome[0].status, outcome[0].reason) == ("failed", "container_killed"), outcome[0]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.waits
async def test_an_engine_that_goes_away_is_engine_lost(
    settings: Settings, runtime: DockerRuntime, image: str, tmp_path: Path
) -> None:
    async with engine_proxy(runtime.engine.address) as proxy:
        await proxy.serve_unix(tmp_path / "engine.sock")
        through = settings.model_copy(update={"engine_candidates": (proxy.address,)})
        with anyio.fail_after(PATIENCE):
            async with open_runtime(through) as other:
                harness = Harness(other, image, tmp_path)
                cut = anyio.Event()

                def watch(event: Event) -> None:
                    if event.kind == "tool_call":
                        cut.set()

                async def cut_off() -> None:
                    await cut.wait()
                    await proxy.cut_off()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(cut_off)
                    task = Task(agent="worker", prompt="Do it.")
                    result = await harness.service([LONG]).run(task, watch)
                harness.store.close()
    assert (result.status, result.reason) == ("failed", "engine_lost"), result
    with anyio.fail_after(PATIENCE):
        while await runtime.list():
            await anyio.sleep(0.05)
    gc.collect()  # docker-py does not close a socket that it could not connect


async def test_an_image_that_is_not_there_is_start_failed(harness: Harness) -> None:
    with anyio.fail_after(PATIENCE):
        result = await kept(harness, await harness.run([{"text": "x"}], image="no-such-image:1"))

    assert (result.status, result.reason) == ("failed", "start_failed")
    assert "orchestrator images build" in result.message


async def test_what_was_denied_is_in_the_envelope(harness: Harness) -> None:
    steps: Steps = [bash("touch /tmp/forbidden"), {"text": "done"}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, permissions={"allow": ["Bash(echo:*)"]})

    assert (result.status, result.denied_tools) == ("completed", ("Bash",)), result


async def test_an_mcp_server_that_does_not_start_is_reported(harness: Harness) -> None:
    servers = [{"name": "ghost", "command": "no-such-program"}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run([{"text": "fine"}], mcp_servers=servers)

    assert (result.status, result.failed_mcp_servers) == ("completed", ("ghost",)), result
    assert "mcp_failed" in harness.kinds()


async def test_a_workspace_is_shown_as_agent_md_says(harness: Harness, settings: Settings) -> None:
    work = settings.allowed_roots[0] / "project"
    work.mkdir()
    (work / "note").write_text("remember the milk")
    work.chmod(0o755)
    task = Task(agent="worker", prompt="Read.", workspace=work, context="be quick")
    steps: Steps = [bash("cat note; touch x"), {"text": "{last_tool_result} | {last_user_text}"}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task)

    assert isinstance(result.result, str)
    assert "remember the milk" in result.result
    assert "Read-only file system" in result.result
    assert not (work / "x").exists()


async def test_junk_on_the_clis_output_is_told_in_a_few_lines(harness: Harness) -> None:
    flood = (
        "for p in /proc/[0-9]*; do grep -qa 'stream-jso[n]' $p/cmdline && "
        "yes junk | head -c 400000 > $p/fd/1 2>/dev/null; done; echo done"
    )
    with anyio.fail_after(PATIENCE):
        result = await harness.run([bash(flood), {"text": "still here"}])

    assert (result.status, result.result) == ("completed", "still here"), result
    assert harness.kinds().count("warning") <= 21


async def test_a_variable_that_entered_the_container_does_not_come_out_in_the_record(
    harness: Harness,
) -> None:
    steps: Steps = [bash("echo $TOKEN"), {"text": "it is {last_tool_result}"}]
    harness.environ = {"TOKEN": "s3cret-value"}
    service = harness.service(steps, env={"TOKEN": "${TOKEN}"})
    with anyio.fail_after(PATIENCE):
        result = await service.run(Task(agent="worker", prompt="x"), harness.events.append)

    assert result.result == "it is [secret]"
    assert "s3cret-value" not in str(await harness.store.events(result.run_id))


async def test_what_the_caller_got_wrong_is_an_error_and_no_run(harness: Harness) -> None:
    service = harness.service([{"text": "x"}], workspace="none")
    with pytest.raises(AgentNotFound, match="did you mean 'worker'"):
        await service.run(Task(agent="worke", prompt="x"))
    with pytest.raises(CallerRefused, match="does not allow caller 'stranger'"):
        await service.run(Task(agent="worker", prompt="x", caller="stranger"))
    with pytest.raises(MountRefused, match="takes no workspace"):
        await service.run(Task(agent="worker", prompt="x", workspace=Path("/srv")))
    assert await harness.store.find_runs() == ()
