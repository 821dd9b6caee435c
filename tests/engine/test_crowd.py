"""Many runs at once through one service: each gets its own answer, in its turn."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.settings import Settings
from tests.engine.crowd import ECHO, MEMORY_GROWTH_BYTES, Crowd, resident_bytes, tasks_for
from tests.engine.staged import engine_of, open_service, write_agent

CROWD_SECONDS = 240

RUNS, CAP = 4, 2
"""`make soak` does it with 32 and 8."""

SLOW = [{"text": "at last", "delay_seconds": 3600}]
"""An answer that nobody waits for."""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    update = {
        "agents_dir": tmp_path / "agents",
        "scripted": True,
        "max_runs": CAP,
        "max_runs_per_agent": CAP,
    }
    return settings.model_copy(update=update)


async def test_a_crowd_is_served_in_order_a_few_at_a_time_and_leaves_no_memory_behind(
    settings: Settings,
) -> None:
    write_agent(settings, "echo", ECHO)
    with anyio.fail_after(CROWD_SECONDS):
        async with open_service(settings) as service:
            levels = []
            for _ in range(2):
                crowd, tasks = Crowd(service), tasks_for("echo", RUNS)
                await crowd.run(tasks)
                await crowd.check(tasks, CAP)
                levels.append(resident_bytes())
    assert levels[1] - levels[0] < MEMORY_GROWTH_BYTES


async def test_one_agent_has_a_cap_of_its_own_and_does_not_hold_up_another(
    settings: Settings,
) -> None:
    settings = settings.model_copy(update={"max_runs": 3, "max_runs_per_agent": 1})
    write_agent(settings, "slow", SLOW)
    write_agent(settings, "echo", ECHO)
    events: list[Event] = []
    with anyio.fail_after(CROWD_SECONDS):
        async with open_service(settings) as service, anyio.create_task_group() as slow:
            started = anyio.Event()

            def listen(event: Event) -> None:
                events.append(event)
                if event.kind == "started":
                    started.set()

            for task in tasks_for("slow", 3):
                slow.start_soon(service.run, task, listen)
            await started.wait()
            result = await service.run(Task(agent="echo", prompt="Me first."))
            assert result.result == "You said: Me first."
            assert len(await (await engine_of(service)).list()) == 1
            slow.cancel_scope.cancel()
    kinds = [event.kind for event in events]
    assert (kinds.count("queued"), kinds.count("starting")) == (3, 1)


async def test_a_run_that_waits_for_its_turn_can_be_cancelled_and_the_next_one_gets_it(
    settings: Settings,
) -> None:
    settings = settings.model_copy(update={"max_runs": 1})
    write_agent(settings, "slow", SLOW)
    write_agent(settings, "echo", ECHO)
    first, second = tasks_for("slow", 2)
    last = Task(agent="echo", prompt="And me?")
    scopes = {task.run_id: anyio.CancelScope() for task in (first, second, last)}
    heard: dict[str, list[str]] = {run_id: [] for run_id in scopes}
    happened = anyio.Condition()

    async def run(task: Task) -> None:
        def listen(event: Event) -> None:
            heard[event.run_id].append(event.kind)
            news.start_soon(tell)

        with scopes[task.run_id]:
            await service.run(task, listen)

    async def tell() -> None:
        async with happened:
            happened.notify_all()

    async def until(task: Task, kind: str) -> None:
        async with happened:
            while kind not in heard[task.run_id]:
                await happened.wait()

    with anyio.fail_after(CROWD_SECONDS):
        async with open_service(settings) as service:
            async with anyio.create_task_group() as news:
                news.start_soon(run, first)
                await until(first, "started")
                for task in (second, last):
                    news.start_soon(run, task)
                    await until(task, "queued")
                scopes[second.run_id].cancel()
                scopes[first.run_id].cancel()
            stored = {task.run_id: await service.store.run(task.run_id) for task in (first, second)}
            answered = await service.store.run(last.run_id)

    assert heard[second.run_id] == ["queued", "ended"]
    assert [run.status for run in stored.values() if run] == ["cancelled", "cancelled"]
    assert answered is not None
    assert answered.result is not None
    assert answered.result.result == "You said: And me?"
