"""A server that is killed while tasks are under way; `make soak` does it more often."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.surfaces.killed_server import Lives, add_agents
from tests.surfaces.mcp_stage import on_stage

pytestmark = pytest.mark.anyio

KILLS = 5


async def test_nothing_that_a_killed_server_has_acknowledged_is_lost(
    tmp_path: Path, image: str
) -> None:
    seed = random.SystemRandom().randrange(1, 2**32)
    print(f"seed {seed}")
    async with on_stage(tmp_path, image) as stage:
        add_agents(stage)
        lives = Lives(stage, seed)
        for _ in range(KILLS):
            await lives.live_and_die()
