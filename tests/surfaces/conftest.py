"""A project of the test's own: agents with scripts in the model's place, a state directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.labels import ContainerInfo
from orchestrator.settings import CREDENTIAL_VARIABLES, read_settings
from tests.image_looks import remembered_looks
from tests.surfaces.mcp.mcp_stage import Stage, on_stage
from tests.surfaces.task_stage import Serve, serving


class Project:
    """A directory with agents/, in which the test stands."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def agent(self, name: str, script: str, fields: str = "") -> None:
        """An agent, and what the model says in its runs."""
        folder = self.path / "agents" / name
        folder.mkdir(parents=True)
        head = f"name: {name}\ndescription: Does {name}.\n{fields}"
        (folder / "agent.md").write_text(f"---\n{head}\n---\nYou do {name}.\n")
        (folder / "script.yaml").write_text(script)


@pytest.fixture
def project(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """No key, no settings of the machine's; the test fails if it leaves a container behind."""
    path = tmp_path / "project"
    (path / "agents").mkdir(parents=True)
    monkeypatch.chdir(path)
    for name in (*CREDENTIAL_VARIABLES, "ORCHESTRATOR_AGENTS_DIR", "ORCHESTRATOR_CALLER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORCHESTRATOR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("ORCHESTRATOR_AGENT_IMAGE", image)
    monkeypatch.setenv("ORCHESTRATOR_SCRIPTED", "1")
    monkeypatch.setenv("ORCHESTRATOR_TRUSTED", str(tmp_path))
    with remembered_looks(tmp_path / "state"):
        yield Project(path)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    used = (tmp_path / "state" / "id").exists()  # or nobody has looked for an engine
    left = anyio.run(_containers) if used else ()
    assert not left, f"containers left behind: {[info.name for info in left]}"


async def _containers() -> tuple[ContainerInfo, ...]:
    async with open_runtime(read_settings(), reap=False) as runtime:
        return await runtime.list()


@pytest.fixture(scope="module")
async def task_stage(tmp_path_factory: pytest.TempPathFactory, image: str) -> AsyncIterator[Stage]:
    """One for all tests of a module."""
    async with on_stage(tmp_path_factory.mktemp("stage"), image) as stage:
        yield stage


@pytest.fixture
def serve(task_stage: Stage, request: pytest.FixtureRequest) -> Serve:
    """Servers for a caller that is this test's own."""
    return serving(task_stage, f"c{abs(hash(request.node.name)) % 10**8}")
