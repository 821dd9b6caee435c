"""Three servers, a cap of 4 in all, 100 tasks, one server killed in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.engine.tasks.three_servers import CAP, SERVERS, in_order, trial
from tests.surfaces.mcp.mcp_stage import on_stage

TASKS = int(os.environ.get("TASKS", "100"))


@pytest.mark.timeout(3600)
async def test_one_cap_for_three_servers(tmp_path: Path, image: str) -> None:
    async with on_stage(tmp_path, image) as stage:
        seen = await trial(stage, TASKS)
    print(f"\n{seen.statuses}, at most {seen.most_at_once} at once")
    assert sum(seen.statuses.values()) == TASKS
    assert seen.most_at_once == CAP
    assert in_order(seen.begun)
    lost = seen.statuses.get("failed orchestrator_lost", 0)
    assert 0 < lost <= TASKS // SERVERS + 1
    assert seen.statuses == {"completed ok": TASKS - lost, "failed orchestrator_lost": lost}
