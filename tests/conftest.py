"""Fixtures for everybody: the image, a state directory of one's own, a runtime on the engine."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings

from orchestrator.app import open_runtime
from orchestrator.containers.docker.engine import connect
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.images.agent_image import build_agent_image
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.domain.container import ContainerSpec
from orchestrator.settings import Settings, read_settings
from tests.answers_check import checked_answers
from tests.image_looks import remembered_looks

JOIN_SECONDS = 5
"""For a thread that is on its way out when the test ends."""


# A loaded machine is slow, and slow is not wrong.
hypothesis_settings.register_profile("patient", deadline=None)
hypothesis_settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait begin first, on one worker: the others have the processors meanwhile, and
    none of them is left to wait for when all else is done.
    """
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def _every_answer_fits_its_schema() -> Iterator[None]:
    with checked_answers():
        yield


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # anyio keeps its worker threads for the next call and ends them with the loop.
    left = [t for t in set(threading.enumerate()) - before if "AnyIO worker" not in t.name]
    for thread in left:
        thread.join(JOIN_SECONDS)
    left = [thread for thread in left if thread.is_alive()]
    assert not left, f"threads left behind: {left}"


@pytest.fixture(scope="session")
def image() -> str:
    """The agent image; built if it is missing, which `make test` has done before."""
    settings = read_settings()
    engine = connect(settings)
    try:
        return build_agent_image(engine, settings, DEFAULT_RUNNER, lambda _: None)
    finally:
        engine.close()


@pytest.fixture(scope="session")
def runner_image() -> Callable[[str], str]:
    """A runner -> its image; built if it is missing, which `make test` has done before."""

    @cache
    def find(runner: str) -> str:
        settings = read_settings()
        engine = connect(settings)
        try:
            return build_agent_image(engine, settings, runner, lambda _: None)
        finally:
            engine.close()

    return find


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    with remembered_looks(tmp_path / "state"):
        yield tmp_path / "state"


@pytest.fixture
def settings(tmp_path: Path, state_dir: Path) -> Settings:
    """Settings with a state directory of the test's own: nobody else's containers are in sight."""
    work = tmp_path / "work"
    work.mkdir()
    update = {
        "state_dir": state_dir,
        "allowed_roots": (work,),
        "home": tmp_path / "home",
        "trusted": (tmp_path,),  # whatever a test's own agents want to reach
    }
    return read_settings().model_copy(update=update)


@pytest.fixture
async def runtime(settings: Settings) -> AsyncIterator[DockerRuntime]:
    """A runtime on the real engine; the test fails if it leaves a container behind."""
    async with open_runtime(settings) as opened:
        yield opened
        left = await opened.list()
        for info in left:
            if info.kind == "kept":
                await opened.forget(info.key)
            else:
                await opened.engine.remove(info.id)
        assert not left, f"containers left behind: {[info.name for info in left]}"


@pytest.fixture
def spec(image: str) -> ContainerSpec:
    return ContainerSpec(image=image)
