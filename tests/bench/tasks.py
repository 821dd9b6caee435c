"""What the record of runs costs: to list ten thousand, to write events, to keep a run."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.engine.tasks.news import News
from orchestrator.engine.tasks.task_book import TaskBook
from orchestrator.store.exchanges import Exchanges
from orchestrator.store.runs import Store
from tests.bench.row import Row, Target
from tests.bench.stage import Stage

RUNS = 10_000
EVENTS_PER_RUN = 10
ROUNDS = 30


async def tasks(stage: Stage) -> tuple[Row, ...]:
    """On a store of its own, with short results and ten events for each run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.sqlite"
        store = Store(path, owner="bench")
        try:
            book = TaskBook(store, Exchanges(store), News(), lambda _: True)
            began = time.perf_counter()
            for number in range(RUNS):
                await _add(store, number)
            seconds = time.perf_counter() - began
            size = sum(file.stat().st_size for file in path.parent.iterdir())
            times: dict[str, list[float]] = {"all": [], "chosen": [], "lost": []}
            for _ in range(stage.times(ROUNDS, 5)):
                times["all"].append(await _seconds(book))
                times["chosen"].append(await _seconds(book, chosen=True))
                began = time.perf_counter()
                await settle_lost(store, lambda _: True)
                times["lost"].append(time.perf_counter() - began)
            rate = await _events_per_second(store)
        finally:
            store.close()
    ms = {name: statistics.median(taken) * 1000 for name, taken in times.items()}
    target = Target(of="ours", how="<", value=50)
    return (
        Row(name="list 50 of 10,000 runs", unit="ms", ours=ms["all"], target=target),
        Row(
            name="list 50 of 10,000 runs, by caller, status and agent",
            unit="ms",
            ours=ms["chosen"],
            target=target,
        ),
        Row(name="look for lost runs among 10,000", unit="ms", ours=ms["lost"], target=target),
        Row(name="events into the store, 100 at once", unit="/s", ours=rate),
        Row(name="runs with ten events, begun to ended", unit="/s", ours=RUNS / seconds),
        Row(name="a run with ten events in the store", unit="MB", ours=size / RUNS / 1e6),
    )


async def _add(store: Store, number: int) -> None:
    task = Task(agent=f"agent{number % 7}", prompt="Do it. " * 20, caller=f"caller{number % 3}")
    await store.add_run(task)
    await store.set_status(task.run_id, "running")
    await store.add_events(_events(task.run_id, 1, EVENTS_PER_RUN))
    if number % 100:  # the others are under way
        result = RunResult(
            run_id=task.run_id,
            agent=task.agent,
            caller=task.caller,
            status="failed" if number % 10 == 0 else "completed",
            reason="ok",
            result="An answer. " * 50,
        )
        await store.finish(result)


def _events(run_id: str, first: int, count: int) -> list[Event]:
    return [
        Event(run_id=run_id, seq=seq, at=time.time(), kind="text", text="It works. " * 10)
        for seq in range(first, first + count)
    ]


async def _seconds(book: TaskBook, *, chosen: bool = False) -> float:
    began = time.perf_counter()
    if chosen:
        found = await book.list("caller1", statuses=("failed",), agent="agent3")
    else:
        found = await book.list()
    assert found
    return time.perf_counter() - began


async def _events_per_second(store: Store) -> float:
    task = Task(agent="a", prompt="p")
    await store.add_run(task)
    batches = 100
    began = time.perf_counter()
    for batch in range(batches):
        await store.add_events(_events(task.run_id, 1 + batch * 100, 100))
    return batches * 100 / (time.perf_counter() - began)
