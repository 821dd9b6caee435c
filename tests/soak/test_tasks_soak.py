"""Servers killed at random points of conversations with their agents. SOAK_KILLS, SOAK_SEED."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.surfaces.mcp.killed_server import Lives, add_agents, approving, asking
from tests.surfaces.mcp.mcp_stage import Stage, on_stage

KILLS = int(os.environ.get("SOAK_KILLS", "200"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

PONDERS_SECONDS = 5.0
"""Before a caller answers, at most."""

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(0)]


async def test_nothing_is_lost_however_often_the_server_is_killed(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        await live_and_die(Lives(stage, SEED), stage)


async def test_whoever_waits_for_a_word_survives_however_often_the_server_is_killed(
    tmp_path: Path, image: str
) -> None:
    async with on_stage(tmp_path, image) as stage:
        await live_and_die(Lives(stage, SEED, (asking, approving), PONDERS_SECONDS), stage)


async def live_and_die(lives: Lives, stage: Stage) -> None:
    print(f"\n{KILLS} kills, seed {SEED}", flush=True)
    add_agents(stage)
    for number in range(1, KILLS + 1):
        await lives.live_and_die()
        if number % 10 == 0:
            print(f"{number}: {lives.told()}", flush=True)
    print(f"cut off after: {dict(lives.points.most_common())}", flush=True)
