"""Spares of runs, with the real CLI: who asks finds it waiting, and gets it for himself."""

from __future__ import annotations

import io
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator import app
from orchestrator.containers import lazy_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import Launch
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from orchestrator.engine.spares import stock
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.stage import WaitingStage
from orchestrator.settings import Settings
from tests.engine.harness import Harness, Steps, bash
from tests.engine.spares.watched_pool import PoolState, WatchedPool
from tests.engine.staged import engine_of, open_service, write_agent
from tests.gateway.near import Client, connection
from tests.surfaces.mcp.mcp_stage import COMMAND, Stage, http_server, on_stage, raw_server

PATIENCE = 170

WHAT_IT_WAS_TOLD: Steps = [{"text": "{user_texts}"}]

ASKS_THE_MODEL = """
import os, urllib.error, urllib.request
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
request = urllib.request.Request(url, b"{}", {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as exc:
    print(exc.code)
"""


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.pool:
        yield harness


@asynccontextmanager
async def kept_warm(
    service: Service, pool: WatchedPool[WaitingStage], count: int
) -> AsyncIterator[None]:
    """Have spares made for as long as the block lasts, as a server does; so many wait at first."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(service.keep_warm)
        await until(pool, lambda state: state.waiting == count)
        yield
        tasks.cancel_scope.cancel()


async def until(pool: WatchedPool[WaitingStage], so: Callable[[PoolState], bool]) -> PoolState:
    with anyio.fail_after(PATIENCE):
        return await pool.until(so)


async def done(service: Service, **fields: object) -> RunResult:
    task = Task.model_validate({"agent": "worker", "prompt": "x", **fields})
    with anyio.fail_after(PATIENCE):
        result = await service.run(task)
    assert result.status == "completed", result
    return result


def one_spare(pool: WatchedPool[WaitingStage]) -> WaitingStage:
    (spare,) = (slot.spare for slot in pool._slots if slot.state == "waiting")
    return spare


async def test_a_run_takes_a_spare_that_waits_and_nobody_uses_it_or_a_dead_one(
    harness: Harness, runtime: DockerRuntime
) -> None:
    steps: Steps = [bash("hostname; touch ~/mark; ls ~/mark"), {"text": "{last_tool_result}"}]
    service = harness.service(steps, warm=1)
    async with kept_warm(service, harness.pool, 1):
        victim = one_spare(harness.pool).name
        await runtime.engine.call(runtime.engine.api.kill, victim)
        await until(harness.pool, lambda s: s.discarded.get("dead") == 1 and s.waiting == 1)
        waiting = one_spare(harness.pool).name
        assert waiting != victim

        task = Task(agent="worker", prompt="x")
        with anyio.fail_after(PATIENCE):
            first = await service.run(task, harness.events.append)
        assert first.status == "completed", first
        (started,) = (event for event in harness.events if event.kind == "started")
        assert started.text == f"claude in {waiting}"
        assert (harness.pool.state.claimed, harness.pool.state.cold) == (1, 0)

        second = await done(service)
        assert str(first.result).split()[0] != str(second.result).split()[0]


async def test_a_rehearsed_cli_has_no_memory_of_its_rehearsal(harness: Harness) -> None:
    service = harness.service(WHAT_IT_WAS_TOLD, warm=1)
    cold = await done(service, prompt="Say it.")
    async with kept_warm(service, harness.pool, 1):
        warm = await done(service, prompt="Say it.")
    assert harness.pool.state.claimed == 1
    assert (warm.result, warm.usage, warm.cost_usd) == ("Say it.", cold.usage, cold.cost_usd)
    events = await harness.store.events(warm.run_id)
    assert [event.kind for event in events].count("model_request") == warm.usage.requests == 1


async def test_a_waiting_spare_knows_nothing_of_runs_and_its_token_opens_nothing(
    harness: Harness, runtime: DockerRuntime
) -> None:
    mark = secrets.token_hex(8)
    service = harness.service(
        WHAT_IT_WAS_TOLD, warm=1, workspace="copy", allowed_callers=[f"caller-{mark}"]
    )
    workspace = harness._folder / "work" / "project"
    workspace.mkdir()
    (workspace / "file").write_text(mark)
    async with kept_warm(service, harness.pool, 1):
        fields = {"prompt": f"prompt {mark}", "caller": f"caller-{mark}", "workspace": workspace}
        first = await done(service, **fields)  # the next spare is made since this run was there
        await until(harness.pool, lambda state: state.waiting == 2)
        spares = [slot.spare for slot in harness.pool._slots if slot.state == "waiting"]
        search = "cat /proc/[0-9]*/environ; cat /proc/[0-9]*/cmdline; grep -ras . /tmp /home /work*"
        for spare in spares:
            seen = str(await runtime.engine.inspect(spare.name)).encode()
            inside = await spare.container.run(Launch(argv=("sh", "-c", search)))
            for secret in (mark, first.run_id):
                assert secret.encode() not in seen + inside.stdout
            assert b"ANTHROPIC_API_KEY=run-" in inside.stdout
            env = spare.process.launch.env
            asked = await spare.container.run(
                Launch(argv=("python3", "-c", ASKS_THE_MODEL), env=env)
            )
            assert asked.stdout == b"403\n", asked

        claimed = {spare.name: spare.stage.reach.model for spare in spares}
        second = await done(service, **fields)
        await until(harness.pool, lambda state: not (state.closing or state.in_use))
        (name,) = claimed.keys() - {info.name for info in await runtime.list()}
    access = claimed[name]
    async with connection(access.service) as near:
        header = {"x-api-key": access.token}
        answer = await Client(near).ask("POST", "/v1/messages", header, b"{}")
    assert answer.status == 401
    assert second.usage.requests == 1


async def test_spares_of_a_changed_agent_are_made_anew(harness: Harness) -> None:
    steps: Steps = [bash("echo $SHADE"), {"text": "{last_tool_result}"}]
    service = harness.service(steps, warm=1, env={"SHADE": "light"})
    async with kept_warm(service, harness.pool, 1):
        harness.service(steps, warm=1, env={"SHADE": "dark"})  # writes agent.md
        await until(harness.pool, lambda s: s.discarded.get("forgotten") == 1 and s.waiting == 1)
        path = harness.agents_dir / "worker" / "agent.md"
        path.write_text(path.read_text() + "Other words.\n")
        await until(harness.pool, lambda s: s.discarded.get("forgotten") == 2 and s.waiting == 1)
        result = await done(service)
    assert result.result == "dark"
    assert (harness.pool.state.claimed, harness.pool.state.cold) == (1, 0)


@pytest.mark.parametrize("mode", ["copy", "ro"])
async def test_the_next_run_on_the_same_workspace_finds_a_spare_and_what_is_there_now(
    harness: Harness, mode: str
) -> None:
    service = harness.service(
        [bash("cat file"), {"text": "{last_tool_result}"}], warm=1, workspace=mode
    )
    workspace = harness._folder / "work" / "project"
    workspace.mkdir()
    (workspace / "file").write_text("one")
    async with kept_warm(service, harness.pool, 1):
        assert (await done(service, workspace=workspace)).result == "one"
        await until(harness.pool, lambda state: state.waiting == 2)
        (workspace / "file").write_text("two")
        assert (await done(service, workspace=workspace)).result == "two"
        assert (harness.pool.state.claimed, harness.pool.state.cold) == (1, 1)

        await until(harness.pool, lambda state: state.waiting == 2)
        workspace.rename(workspace.with_name("before"))
        workspace.mkdir()  # another directory of the same name, which a mount does not notice
        (workspace / "file").write_text("three")
        assert (await done(service, workspace=workspace)).result == "three"


async def test_while_memory_is_short_spares_go_and_runs_start_cold(harness: Harness) -> None:
    left = [1 << 40]
    limits = PoolLimits(check_seconds=0.05)
    async with WatchedPool[WaitingStage](limits, available_bytes=lambda: left[0]) as harness.pool:
        service = harness.service(WHAT_IT_WAS_TOLD, warm=2)
        async with kept_warm(service, harness.pool, 2):
            left[0] = 0
            state = await until(harness.pool, lambda s: not (s.waiting or s.closing or s.making))
            assert state.discarded == {"memory": 2}
            await done(service)
            left[0] = 1 << 40
            state = await until(harness.pool, lambda state: state.waiting == 2)
    assert (state.claimed, state.cold) == (0, 1)


async def test_a_secret_is_asked_for_when_a_spare_is_claimed(harness: Harness) -> None:
    harness.secrets["ORCHESTRATOR_SECRET_PASS"] = "the-first-value"
    secret = {"name": "pass", "hosts": ["api.example"], "paths": ["/**"]}
    service = harness.service(WHAT_IT_WAS_TOLD, warm=1, secrets=[secret])
    async with kept_warm(service, harness.pool, 1):
        harness.secrets["ORCHESTRATOR_SECRET_PASS"] = "the-second-value"
        reach = one_spare(harness.pool).stage.reach
        assert reach.routes is None
        result = await done(service, prompt="not the-first-value but the-second-value")
        assert (harness.pool.state.claimed, harness.pool.state.cold) == (1, 0)
    assert result.result == "not the-first-value but [secret]"  # what the run knows as its secret


async def test_spares_of_an_image_that_has_changed_are_made_anew(
    settings: Settings, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "Pool", WatchedPool)
    monkeypatch.setattr(lazy_runtime, "IMAGE_SECONDS", 0.1)
    monkeypatch.setattr(stock, "STOCK_SECONDS", 0.1)
    name = f"orchestrator-test/{secrets.token_hex(6)}"
    update = {"agents_dir": tmp_path / "agents", "scripted": True}
    settings = settings.model_copy(update=update)
    steps: Steps = [bash("cat /colour 2>&1"), {"text": "{last_tool_result}"}]
    write_agent(settings, "worker", steps, warm=1, image=name, permissions={"allow": ["Bash"]})

    def build(colour: str) -> None:
        dockerfile = f"FROM {image}\nENV COLOUR={colour}\nUSER root\nRUN echo {colour} > /colour\n"
        for line in engine.api.build(
            fileobj=io.BytesIO(dockerfile.encode()), tag=name, decode=True, rm=True
        ):
            assert "error" not in line, line

    async with open_service(settings) as service:
        pool = service._staging.stock.pool
        assert isinstance(pool, WatchedPool)
        engine = (await engine_of(service)).engine
        try:
            await engine.call(build, "blue")
            async with kept_warm(service, pool, 1):
                await engine.call(build, "red")
                await until(pool, lambda s: s.discarded.get("forgotten") == 1 and s.waiting == 1)
                assert (await done(service)).result == "red"
                assert (pool.state.claimed, pool.state.cold) == (1, 0)
                (settings.agents_dir / "worker" / "agent.md").unlink()
                await until(pool, lambda state: not state.alive and not state.making)
        finally:
            await engine.call(engine.api.remove_image, name, force=True)


@pytest.fixture
async def stage(tmp_path: Path, image: str) -> AsyncIterator[Stage]:
    async with on_stage(tmp_path, image) as stage:
        stage.add_agent("ready", {"text": "{last_user_text}"}, warm=1)
        yield stage


async def test_a_server_keeps_spares_and_takes_them_with_it_when_it_is_killed(
    stage: Stage,
) -> None:
    async with raw_server(stage) as server:
        await server.initialize()
        await stage.has_containers(1)
        server.process.kill()
    await stage.has_containers(0)


async def test_an_http_server_keeps_spares_and_takes_them_with_it(stage: Stage) -> None:
    async with http_server(stage):
        await stage.has_containers(1)
    assert await stage.containers() == []


async def test_a_single_run_from_the_command_line_makes_no_spares(stage: Stage) -> None:
    most = 0
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(
            [COMMAND, "run", "ready", "hello"], env=stage.env
        ) as process:
            while process.returncode is None:
                # Besides, one without a process is made to look into an image not seen before.
                running = [n for n in await stage.containers() if not n.startswith("orch-bare-")]
                most = max(most, len(running))
                await anyio.sleep(0.02)
            assert await process.wait() == 0
    assert most == 1
