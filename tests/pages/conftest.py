"""The wheel, built and installed once for all workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.containers.file_lock import file_lock
from tests.pages.installed import build, install

MAKING_SECONDS = 240
"""For another worker, which builds and installs it."""


@pytest.fixture(scope="session")
def wheel(bin_: Path) -> Path:
    (wheel,) = (bin_.parents[1] / "wheel").iterdir()
    return wheel


@pytest.fixture(scope="session")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the installed `orchestrator` is."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pages"
    folder.mkdir(exist_ok=True)
    with file_lock(folder / "lock", MAKING_SECONDS, lambda: None):
        if not (folder / "made").exists():
            install(build(folder / "wheel", "wheel"), folder / "installed")
            (folder / "made").touch()
    return folder / "installed/bin"
