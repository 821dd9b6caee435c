"""Many runs at once through one service: each gets its own answer, in its turn."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.settings import Settings

RUN_SECONDS = 240

SLOW = [{"text": "at last", "delay_seconds": 3600}]
"""An answer that nobody waits for."""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    update = {"agents_dir": tmp_path / "agents", "scripted": True, "max_runs": 4}
    return settings.model_copy(update=update)
