"""A crowd: many runs at once through one service, and what could be seen of them."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path

import anyio

from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.service import Service
from tests.engine.staged import engine_of

ECHO = [{"text": "You said: {last_user_text}"}]
"""A model that gives everybody an answer of their own."""

MEMORY_GROWTH_BYTES = 8_000_000
"""From one wave to the next: what allocators and caches may keep, and no more."""


class Crowd:
    """Runs tasks all at once and counts how many of them are at work at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._at_work: set[str] = set()
        self.most_at_work = 0
        """By the runs' own word, from before their container is made until it is gone."""
        self.most_containers = 0
        """By the engine's word."""
        self.queued: list[str] = []
        """Run ids, in the order in which they came."""
        self.started: list[str] = []
        """And in the order in which their turns came."""
        self.results: dict[str, RunResult] = {}

    async def run(self, tasks: list[Task]) -> None:
        """Until the last one has ended."""
        runtime = await engine_of(self._service)

        async def look() -> None:
            self.most_containers = max(self.most_containers, len(await runtime.list()))

        async def one(task: Task) -> None:
            def listen(event: Event) -> None:
                if event.kind == "queued":
                    self.queued.append(event.run_id)
                elif event.kind == "starting":
                    self.started.append(event.run_id)
                    self._at_work.add(event.run_id)
                    self.most_at_work = max(self.most_at_work, len(self._at_work))
                elif event.kind == "started":
                    crowd.start_soon(look)
                elif event.kind == "ended":
                    self._at_work.discard(event.run_id)

            self.results[task.run_id] = await self._service.run(task, listen)

        async with anyio.create_task_group() as crowd:
            for task in tasks:
                crowd.start_soon(one, task)

    async def check(self, tasks: list[Task], cap: int) -> None:
        """Everybody has their own answer, in the store as well, and the cap held."""
        answers = {run_id: (r.status, r.result) for run_id, r in self.results.items()}
        assert answers == {t.run_id: ("completed", f"You said: {t.prompt}") for t in tasks}
        stored = await self._service.store.find_runs(limit=10 * len(tasks), results=True)
        mine = [run for run in stored if run.run_id in answers]
        assert Counter(run.status for run in mine) == {"completed": len(tasks)}
        assert {run.run_id: run.result for run in mine} == self.results
        assert self.started == self.queued
        assert self.most_at_work == cap
        assert 1 <= self.most_containers <= cap


def tasks_for(agent: str, count: int) -> list[Task]:
    return [
        Task(agent=agent, prompt=f"I am number {number} of {count}.") for number in range(count)
    ]


def resident_bytes() -> int:
    """What this process holds in memory now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
