"""What containers that are held open cost this process: `python -m tests.bench.held IMAGE 50`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from orchestrator.app import open_runtime
from orchestrator.domain import Frozen
from orchestrator.domain.container import ContainerSpec
from orchestrator.settings import read_settings
from tests.bench.stage import LAUNCH

MEASURE_SECONDS = 300


class Held(Frozen):
    """Resident memory of a process before and while it holds containers open."""

    containers: int
    before_bytes: int
    after_bytes: int

    @property
    def mb_each(self) -> float:
        return (self.after_bytes - self.before_bytes) / self.containers / 1e6


def measure(image: str, count: int) -> Held:
    """In a fresh process."""
    argv = [sys.executable, "-m", "tests.bench.held", image, str(count)]
    done = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=MEASURE_SECONDS)
    return Held.model_validate_json(done.stdout)


async def _hold(image: str, count: int) -> Held:
    """Opened at once, so that the threads which that takes are counted as well."""
    with tempfile.TemporaryDirectory(prefix="orchestrator-bench-") as state:
        settings = read_settings().model_copy(update={"state_dir": Path(state)})
        async with open_runtime(settings, reap=False) as runtime:
            ready = anyio.Semaphore(0, max_value=count)
            measured = anyio.Event()

            async def hold_one() -> None:
                async with runtime.open(ContainerSpec(image=image)) as container:
                    await container.run(LAUNCH)
                    ready.release()
                    await measured.wait()

            before = _resident_bytes()
            async with anyio.create_task_group() as tasks:
                for _ in range(count):
                    tasks.start_soon(hold_one)
                for _ in range(count):
                    await ready.acquire()
                after = _resident_bytes()
                measured.set()
            return Held(containers=count, before_bytes=before, after_bytes=after)


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(anyio.run(_hold, sys.argv[1], int(sys.argv[2])).model_dump_json())
