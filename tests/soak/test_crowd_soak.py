"""32 runs at once through one service, 8 at a time, twice. SOAK_RUNS, SOAK_WAVES."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.settings import Settings
from tests.engine.crowd import ECHO, MEMORY_GROWTH_BYTES, Crowd, resident_bytes, tasks_for
from tests.engine.staged import open_service, write_agent

RUNS = int(os.environ.get("SOAK_RUNS", "32"))
WAVES = int(os.environ.get("SOAK_WAVES", "2"))
CAP = 8
WAVE_SECONDS = 600

pytestmark = pytest.mark.timeout(0)


async def test_32_concurrent_runs_finish_8_at_a_time_and_memory_returns_to_where_it_was(
    settings: Settings, tmp_path: Path
) -> None:
    update = {"agents_dir": tmp_path / "agents", "scripted": True, "max_runs": CAP}
    settings = settings.model_copy(update=update)
    write_agent(settings, "echo", ECHO)
    levels = []
    async with open_service(settings) as service:
        for wave in range(WAVES):
            crowd, tasks = Crowd(service), tasks_for("echo", RUNS)
            with anyio.fail_after(WAVE_SECONDS):
                began = anyio.current_time()
                await crowd.run(tasks)
            await crowd.check(tasks, CAP)
            levels.append(resident_bytes())
            seconds = anyio.current_time() - began
            print(f"wave {wave + 1}: {RUNS} runs in {seconds:.1f} s, {levels[-1] / 1e6:.1f} MB")
    assert levels[-1] - levels[0] < MEMORY_GROWTH_BYTES
