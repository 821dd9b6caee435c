"""The size of the state directory, from which runs and uploads remove files meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.surfaces.http.routes import machine


def test_files_that_go_meanwhile_and_a_size_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).write_bytes(b"12345")
    walk = os.walk

    def walked(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(folder):
            (tmp_path / "gone").unlink(missing_ok=True)
            yield found

    monkeypatch.setattr(os, "walk", walked)
    assert machine._used(tmp_path) == 5
    (tmp_path / "more").write_bytes(b"1")
    assert machine._used(tmp_path) == 5
    monkeypatch.setattr(machine, "MEASURED_SECONDS", -1.0)
    assert machine._used(tmp_path) == 6
