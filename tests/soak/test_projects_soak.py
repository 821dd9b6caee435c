"""200 random calls in two projects with agents of the same names: nothing crosses over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.engine.two_projects import trial

CALLS = int(os.environ.get("CALLS", "200"))
SEED = int(os.environ.get("SEED", "14"))


@pytest.mark.timeout(3600)
async def test_two_projects(tmp_path: Path, image: str) -> None:
    began = time.monotonic()
    ran = await trial(tmp_path, image, CALLS, SEED)
    assert sum(ran) == CALLS
    print(f"\n{ran[0]} and {ran[1]} calls, seed {SEED}: {time.monotonic() - began:.0f} s")
