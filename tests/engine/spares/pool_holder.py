"""A process with paused spares that is there to be killed. It prints "paused" when they are."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from orchestrator.app import open_runtime
from orchestrator.domain.container import ContainerSpec
from orchestrator.engine.spares.shelf import PoolLimits
from orchestrator.engine.spares.spare import WaitingCli
from orchestrator.settings import read_settings
from tests.engine.spares.pool_stage import open_waiting
from tests.engine.spares.watched_pool import WatchedPool

SPARES = 2


async def main(state_dir: Path, image: str) -> None:
    settings = read_settings().model_copy(update={"state_dir": state_dir})
    limits = PoolLimits(pause_after_seconds=0, min_available_bytes=0)
    async with (
        open_runtime(settings, reap=False) as runtime,
        WatchedPool[WaitingCli](limits) as pool,
    ):
        spec = ContainerSpec(image=image)
        pool.want("key", SPARES, lambda: open_waiting(runtime, spec))
        await pool.until(lambda state: state.paused == SPARES)
        print("paused", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
