"""Fixtures: a container with an empty volume for a copy, on the real engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import WORKSPACE, ContainerSpec, Volume


@pytest.fixture
async def container(runtime: DockerRuntime, spec: ContainerSpec) -> AsyncIterator[Container]:
    wanted = spec.model_copy(update={"mounts": (Volume(target=WORKSPACE),)})
    async with runtime.open(wanted) as opened:
        yield opened


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Where a copy goes that is made without a container."""
    path = tmp_path / "copy"
    path.mkdir()
    return path
