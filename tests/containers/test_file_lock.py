"""One process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.containers.file_lock import file_lock
from orchestrator.errors import OperatorError


def test_a_lock_is_free_again_when_its_holder_is_done(tmp_path: Path) -> None:
    waited: list[str] = []
    for _ in range(2):
        with file_lock(tmp_path / "new/lock", 0, lambda: waited.append("waited")):
            pass
    assert waited == []


def test_a_lock_that_stays_taken_is_said_after_its_bound(tmp_path: Path) -> None:
    waited: list[str] = []
    with (
        file_lock(tmp_path / "lock", 0, lambda: None),
        pytest.raises(OperatorError, match=r"lock has been locked by another process for 0 s"),
        file_lock(tmp_path / "lock", 0, lambda: waited.append("waited")),
    ):
        pytest.fail("it was held twice")
    assert len(waited) <= 1
