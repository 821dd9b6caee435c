"""Many tasks in the background at once, with trivial agents. BENCH_TASKS says how many.

They are measured in a process of their own, which has seen nothing else:
`python -m tests.bench.queued IMAGE 1000`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from orchestrator.app import open_orchestrator
from orchestrator.domain import Frozen
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.tasks import Tasks
from tests.bench.row import Row
from tests.bench.runs import ANSWER, PROMPT, bench_settings, open_model
from tests.bench.stage import Stage

QUEUED = int(os.environ.get("BENCH_TASKS", "1000"))
QUICK_QUEUED = 32
AT_ONCE = 16

MEASURE_SECONDS = 3600
"""For all of them, on a slow machine."""

WAIT_SECONDS = 60.0
"""For one look at a task; then the next one."""


class Queued(Frozen):
    """What so many tasks took of this process and of the disk."""

    tasks: int
    seconds: float
    before_bytes: int
    queued_bytes: int
    """Resident memory when all of them were accepted."""
    peak_bytes: int
    store_bytes: int

    @property
    def mb_each(self) -> float:
        return (self.queued_bytes - self.before_bytes) / self.tasks / 1e6


async def queued(stage: Stage) -> tuple[Row, ...]:
    count = stage.times(QUEUED, min(QUEUED, QUICK_QUEUED))
    taken: Queued = await to_thread.run_sync(_measure, stage.image, count)
    each = f"{count} tasks queued, {AT_ONCE} at once"
    return (
        Row(name=f"{each}: until the last has ended", unit="s", ours=taken.seconds),
        Row(name=f"{each}: for each", unit="ms", ours=taken.seconds / count * 1000),
        Row(name=f"{each}: memory here for one that waits", unit="MB", ours=taken.mb_each),
        Row(name=f"{each}: memory here at most", unit="MB", ours=taken.peak_bytes / 1e6),
        Row(name=f"{each}: the store, for each", unit="MB", ours=taken.store_bytes / count / 1e6),
    )


def _measure(image: str, count: int) -> Queued:
    argv = [sys.executable, "-m", "tests.bench.queued", image, str(count)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=MEASURE_SECONDS)
    return Queued.model_validate_json(done.stdout)


async def _queue(image: str, count: int) -> Queued:
    """All of them at once, by whoever starts tasks in the background."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as folder:
        async with open_model() as model:
            limits = {"max_runs": AT_ONCE, "max_runs_per_agent": AT_ONCE}
            settings = bench_settings(Path(folder), image, model.url).model_copy(update=limits)
            async with open_orchestrator(settings, {}) as service, Tasks(service) as started:
                first = Task(agent="bench", prompt=PROMPT)
                await service.run(first)  # which loads what is loaded when first needed
                before = _resident_bytes()
                began = time.perf_counter()
                task = partial(Task, agent="bench", prompt=PROMPT)
                ids = [await started.start(task()) for _ in range(count)]
                queued = _resident_bytes()
                for run_id in ids:
                    await _completed(started, run_id)
                seconds = time.perf_counter() - began
        return Queued(
            tasks=count,
            seconds=seconds,
            before_bytes=before,
            queued_bytes=queued,
            peak_bytes=_peak_bytes(),
            store_bytes=_store_bytes(settings.state_dir),
        )


async def _completed(started: Tasks, run_id: str) -> None:
    while True:
        (view,) = await started.book.wait([run_id], "main", seconds=WAIT_SECONDS)
        if view.result is not None:
            assert view.result.result == ANSWER, view.result
            return


def _store_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("runs.sqlite*"))


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


if __name__ == "__main__":
    print(anyio.run(_queue, sys.argv[1], int(sys.argv[2])).model_dump_json())
