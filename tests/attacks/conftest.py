"""Fixtures of the attacks: canaries, and runs that many attacks share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import HOME, MIB, ContainerSpec, Limits, Tmpfs
from orchestrator.settings import read_settings
from tests.attacks.canary import Canary, singing
from tests.attacks.rig import PATIENCE, Rig, staged
from tests.attacks.spoils import Spoils, work
from tests.engine.harness import Harness
from tests.gateway.secrets.git_server import Exchange, HttpsServer, https_server

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
            await opened.engine.remove(info.id)
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


@pytest.fixture
async def box(engine: DockerRuntime, image: str) -> AsyncIterator[Container]:
    """A container with small limits and the engine's own seccomp profile instead of ours.

    What is refused in it, the limits and the users refuse, and not our filter.
    """
    limits = Limits(memory_bytes=256 * MIB, pids=64, open_files=1024, shm_bytes=16 * MIB)
    scratch = tuple(Tmpfs(target=at, size_bytes=32 * MIB) for at in ("/tmp", HOME))
    with anyio.fail_after(PATIENCE):
        async with engine.open(ContainerSpec(image=image, limits=limits, tmpfs=scratch)) as opened:
            yield opened


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
            "allow_private": [
                hub.host,
                *(f"{name}.example:{canary.port}" for name in ("web", "turncoat", "denied")),
            ],
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


LINKS = """
ln -s {outside}/secret.txt stolen
ln -s /etc/passwd passwd
mkdir up; ln -s ../../outside up/outside
rm -r folder; ln -s /etc folder
echo x > plain
"""

MISCHIEF = r"""
mkfifo fifo
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
ln keep twin
for name in -rf '$(touch pwned)' '; touch pwned' "$(printf 'new\nline')"
do echo x > "./$name"; done
touch "$(printf 'no-text-\377')"
chmod 6777 tool
echo x > locked; chmod 000 locked
echo changed > folder/file

printf '#!/bin/sh\ntouch {pwned}\n' > evil.sh; chmod 755 evil.sh
for hook in pre-commit post-checkout post-index-change reference-transaction fsmonitor-watchman; do
    cp evil.sh .git/hooks/$hook
done
for key in core.fsmonitor core.sshCommand core.pager diff.external filter.evil.clean \
    filter.evil.smudge core.editor gpg.program alias.status
do git config $key "touch {pwned}"; done
git config core.hooksPath "$PWD/hooks"; mkdir hooks; cp evil.sh hooks/post-index-change
git config include.path ../evil.config; printf '[core]\n fsmonitor = touch {pwned}\n' > evil.config
git config core.worktree /etc
printf '* filter=evil diff=evil\n' > .gitattributes
mkdir -p sub other/.GIT/hooks 'third/.git ' nested/.git/hooks
mkdir -p "$(printf 'fourth/.g\xe2\x80\x8cit')"
echo 'gitdir: ../../outside' > sub/.git
cp evil.sh other/.GIT/hooks/pre-commit; cp evil.sh nested/.git/hooks/pre-commit
printf '[core]\n fsmonitor = touch {pwned}\n' > nested/.git/config
echo x > 'third/.git /config'; mkdir fifth; echo x > fifth/git~1
printf '[submodule "x"]\n path = sub\n url = ext::sh -c touch% {pwned}\n' > .gitmodules
"""


async def _spoilt(
    engine: DockerRuntime, image: str, folder: Path, script: str
) -> AsyncIterator[Spoils]:
    folder.mkdir()
    async with harnessed(engine, image, folder) as harness:
        outside, pwned = folder / "ground" / "outside", folder / "pwned"
        script = script.replace("{outside}", str(outside)).replace("{pwned}", str(pwned))
        yield await work(harness, script)


@pytest.fixture(scope="package")
async def linked(engine: DockerRuntime, image: str, ground: Path) -> AsyncIterator[Spoils]:
    """A copy that an agent has left links in which lead out."""
    async for spoils in _spoilt(engine, image, ground / "linked", LINKS):
        yield spoils


@pytest.fixture(scope="package")
async def spoiled(engine: DockerRuntime, image: str, ground: Path) -> AsyncIterator[Spoils]:
    """A copy that an agent has left everything else in, for files and for git."""
    async for spoils in _spoilt(engine, image, ground / "spoiled", MISCHIEF):
        yield spoils
