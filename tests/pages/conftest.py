"""The wheel, installed once for each worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.installed import build, install


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="session")
def bin_(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the installed `orchestrator` is."""
    return install(wheel, tmp_path_factory.mktemp("installed"))
