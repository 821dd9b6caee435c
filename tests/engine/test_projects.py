"""Projects: nothing of one reaches another; what was made before there were projects is offered."""

from __future__ import annotations

from pathlib import Path

from tests.engine.two_projects import trial

CALLS = 8


async def test_nothing_of_one_project_reaches_another(tmp_path: Path, image: str) -> None:
    ran = await trial(tmp_path, image, CALLS, seed=7)
    assert sum(ran) == CALLS
    assert min(ran) > 0
