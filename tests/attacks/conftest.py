"""Fixtures of the attacks: canaries, and runs that many attacks share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.docker_runtime import DockerRuntime
from orchestrator.settings import read_settings
from tests.attacks.canary import Canary, singing
from tests.attacks.rig import Rig, staged
from tests.engine.harness import Harness
from tests.gateway.git_server import Exchange, HttpsServer, https_server

# Shared by the attacks of a package and not made for each: a container takes most of a second.


@pytest.fixture(scope="package")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("attacks")


@pytest.fixture(scope="package")
async def canary() -> AsyncIterator[Canary]:
    async with singing() as canary:
        yield canary


@pytest.fixture(scope="package")
async def engine(ground: Path) -> AsyncIterator[DockerRuntime]:
    """A runtime for all; fails if a container is left behind."""
    settings = read_settings().model_copy(
        update={"state_dir": ground / "state", "allowed_roots": (ground,)}
    )
    async with open_runtime(settings) as opened:
        yield opened
        left = await opened.list()
        for info in left:
            await opened.remove(info.id)
        assert not left, f"containers left behind: {[info.name for info in left]}"


@asynccontextmanager
async def harnessed(engine: DockerRuntime, image: str, folder: Path) -> AsyncIterator[Harness]:
    harness = Harness(engine, image, folder)
    try:
        yield harness
    finally:
        harness.store.close()


@pytest.fixture(scope="package")
async def closed(
    engine: DockerRuntime, image: str, ground: Path, canary: Canary
) -> AsyncIterator[Rig]:
    """A run with nothing allowed: what an agent.md that says nothing gets."""
    async with (
        harnessed(engine, image, ground / "closed") as harness,
        staged(harness, canary) as rig,
    ):
        yield rig


@pytest.fixture(scope="package")
def hub_secret() -> str:
    return f"ghp_{secrets.token_hex(18)}"


@pytest.fixture(scope="package")
def hub(ground: Path) -> Iterator[HttpsServer]:
    """An HTTPS server that there is a secret for; a test says how it answers."""
    with https_server(ground / "hub", plainly) as server:
        yield server


def plainly(exchange: Exchange) -> None:
    exchange.received.body = b"".join(exchange.body())
    exchange.say(200, {"content-type": "text/plain"}, b"hub")


@pytest.fixture(scope="package")
async def allowed(
    engine: DockerRuntime,
    image: str,
    ground: Path,
    canary: Canary,
    hub: HttpsServer,
    hub_secret: str,
) -> AsyncIterator[Rig]:
    """A run that may reach a few hosts, and a part of one of them with a secret."""
    async with harnessed(engine, image, ground / "allowed") as harness:
        harness.secrets = {"ORCHESTRATOR_SECRET_HUB_TOKEN": hub_secret}
        network = {
            "mode": "allow",
            "allow": ["public.example", "*.wild.example"],
            "allow_private": [f"web.example:{canary.port}", f"turncoat.example:{canary.port}"]
            + [f"denied.example:{canary.port}", hub.host],
            "deny": ["denied.example"],
        }
        secret = {
            "name": "hub-token",
            "hosts": [hub.host],
            "methods": ["GET", "POST"],
            "paths": ["/acme/widget/**"],
        }
        async with staged(
            harness, canary, trust=hub.context, network=network, secrets=[secret]
        ) as rig:
            rig.book.answers |= {
                "web.example": [("127.0.0.1",)],
                "denied.example": [("127.0.0.1",)],
                "git.test": [("127.0.0.1",)],
            }
            yield rig


@pytest.fixture
async def harness(
    engine: DockerRuntime, image: str, ground: Path, tmp_path: Path
) -> AsyncIterator[Harness]:
    """For attacks that need a run of their own."""
    folder = ground / tmp_path.name
    folder.mkdir()
    async with harnessed(engine, image, folder) as harness:
        yield harness


@pytest.fixture
def web(allowed: Rig) -> Iterator[Rig]:
    """The shared run; the canary answers as usual again when the test is over."""
    answer = allowed.canary.answer
    yield allowed
    allowed.canary.answer = answer
