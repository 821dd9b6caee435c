"""What goes wrong outside: engines that vanish, images that lie, limits that are too small.

Each is one clear error, told to whoever can act on it, and leaves nothing behind.
"""

from __future__ import annotations

import gc
import io
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.docker.engine import Engine, connect
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import HOME, MIB, ContainerSpec, Launch, Limits, Tmpfs, User
from orchestrator.errors import (
    EngineUnreachable,
    MemoryTooSmall,
    OrchestratorError,
    SpecRefused,
    WireLost,
)
from orchestrator.settings import Settings
from orchestrator.wire import warden as w
from tests.containers.docker.engine_proxy import EngineProxy, engine_proxy

PATIENCE = 120


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    engine = connect(settings)
    yield engine
    engine.close()


async def nothing_left(runtime: DockerRuntime) -> bool:
    with anyio.fail_after(PATIENCE):
        while await runtime.list():
            await anyio.sleep(0.05)
    return True


# Engines


async def test_an_engine_that_does_not_answer_is_one_clear_error(settings: Settings) -> None:
    nowhere = settings.model_copy(update={"engine_candidates": ("unix:///nowhere/docker.sock",)})
    with pytest.raises(EngineUnreachable, match=r"start Docker or Podman, or set DOCKER_HOST"):
        async with open_runtime(nowhere):
            pass


async def test_a_socket_that_nobody_serves_is_one_clear_error(
    settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "s").touch()
    dead = settings.model_copy(update={"engine_candidates": (f"unix://{tmp_path}/s",)})
    with pytest.raises(EngineUnreachable, match="no container engine answers"):
        async with open_runtime(dead):
            pass


async def test_the_first_engine_that_answers_is_used(settings: Settings, engine: Engine) -> None:
    both = ("unix:///nowhere/docker.sock", engine.address)
    async with open_runtime(settings.model_copy(update={"engine_candidates": both})) as runtime:
        assert runtime.engine.address == engine.address


async def test_a_wire_works_over_tcp_as_well(
    settings: Settings, engine: Engine, spec: ContainerSpec
) -> None:
    async with engine_proxy(engine.address) as proxy:
        await proxy.serve_tcp()
        remote = settings.model_copy(update={"engine_candidates": (proxy.address,)})
        with anyio.fail_after(PATIENCE):
            async with open_runtime(remote) as runtime, runtime.open(spec) as container:
                done = await container.run(Launch(argv=("cat",)), b"x" * 3_000_000)

    assert len(done.stdout) == 3_000_000


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_vanishes_ends_the_run_and_the_container(
    settings: Settings, engine: Engine, spec: ContainerSpec, runtime: DockerRuntime, tmp_path: Path
) -> None:
    async with engine_proxy(engine.address) as proxy:
        await proxy.serve_unix(tmp_path / "engine.sock")
        through = settings.model_copy(update={"engine_candidates": (proxy.address,)})
        with anyio.fail_after(PATIENCE), pytest.raises(EngineUnreachable, match="does not answer"):
            await _run_while_the_engine_vanishes(through, spec, proxy)
    assert await nothing_left(runtime)
    gc.collect()  # docker-py does not close a socket that it could not connect


async def _run_while_the_engine_vanishes(
    settings: Settings, spec: ContainerSpec, proxy: EngineProxy
) -> None:
    async with (
        open_runtime(settings) as runtime,
        runtime.open(spec) as container,
        container.spawn(Launch(argv=("sleep", "inf"))) as process,
    ):
        await proxy.cut_off()
        with pytest.raises(WireLost, match="ended by the container or its engine"):
            await process.wait()
        failure = await container.failure()
        assert failure is not None
        assert failure.whose == "engine"


# Containers that are ended by somebody else


@pytest.mark.parametrize(
    ("signal", "says"), [("SIGKILL", "killed from outside"), ("SIGTERM", "stopped from outside")]
)
async def test_a_container_that_somebody_kills_is_told_so(
    runtime: DockerRuntime, spec: ContainerSpec, signal: str, says: str
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            await runtime.engine.call(runtime.engine.api.kill, container.name, signal)
            failure = await container.failure()
            with pytest.raises(WireLost):
                await container.run(Launch(argv=("true",)))

    assert failure is not None
    assert (failure.whose, says in failure.message) == ("engine", True)


async def test_a_container_that_reached_its_lifetime_is_told_so(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    short = spec.model_copy(update={"lifetime_seconds": 0.5})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(short) as container:
            with pytest.raises(WireLost):
                await container.run(Launch(argv=("sleep", "inf")))
            failure = await container.failure()

    assert failure is not None
    assert (failure.whose, failure.message) == (
        "agent",
        "the container reached the end of its lifetime",
    )


# Specs and images


async def test_less_memory_than_the_image_needs_is_one_clear_error(
    runtime: DockerRuntime, engine: Engine, image: str
) -> None:
    limits = Limits(memory_bytes=32 * MIB, shm_bytes=MIB)
    scratch = (Tmpfs(target="/tmp", size_bytes=MIB), Tmpfs(target=HOME, size_bytes=MIB))
    with (
        lying_image(engine, image, "x = bytearray(100_000_000)") as hungry,
        anyio.fail_after(PATIENCE),
        pytest.raises(MemoryTooSmall, match="a memory limit of 32 MiB is too small for it"),
    ):
        async with runtime.open(ContainerSpec(image=hungry, limits=limits, tmpfs=scratch)):
            pass
    assert await nothing_left(runtime)


async def test_an_unknown_oci_runtime_is_one_clear_error(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    odd = spec.model_copy(update={"oci_runtime": "no-such-runtime"})
    with pytest.raises(SpecRefused, match="no-such-runtime"):
        async with runtime.open(odd):
            pass
    assert await nothing_left(runtime)


async def test_a_broken_seccomp_profile_is_one_clear_error(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    with pytest.raises(OrchestratorError, match="seccomp"):
        async with runtime.open(spec.model_copy(update={"seccomp": "not json"})):
            pass
    assert await nothing_left(runtime)


async def test_the_agent_can_be_another_user(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    someone = spec.model_copy(update={"user": User(uid=4242, gid=4343)})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(someone) as container:
            done = await container.run(Launch(argv=("sh", "-c", "id -u; id -g; id -G; touch ~/x")))

    assert done.stdout.split() == [b"4242", b"4343", b"4343"]


WARDENS = {
    "garbage": "os.write(1, b'\\xff' * 100000); time.sleep(600)",
    "text": "print('Hello, I am not a warden'); sys.stdout.flush(); time.sleep(600)",
    "exits": "sys.exit('I have no time for this')",
    "another version": "os.write(1, b' ' + bytes([0]*4) + bytes([0,0,0,7]) + b'\\0\\0\\0\\3999')",
}


@contextmanager
def lying_image(engine: Engine, image: str, code: str) -> Iterator[str]:
    """An image whose PID 1 does something else than it should."""
    tag = f"orchestrator-test:{secrets.token_hex(6)}"
    source = f"import os, sys, time\n{code}\n"
    dockerfile = (
        f"FROM {image}\nLABEL of={tag}\nUSER root\nCOPY w.py /opt/orchestrator/w.py\n"
        'RUN python3 -c "import py_compile as p; '
        "p.compile('/opt/orchestrator/w.py', '/opt/orchestrator/warden.pyc')\"\n"
    )
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        for name, text in (("Dockerfile", dockerfile), ("w.py", source)):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    context.seek(0)
    for event in engine.api.build(
        fileobj=context, custom_context=True, tag=tag, rm=True, decode=True
    ):
        assert "error" not in event, event
    try:
        yield tag
    finally:
        engine.api.remove_image(tag, force=True)


@pytest.mark.parametrize("lie", WARDENS)
async def test_an_image_without_our_warden_is_one_clear_error(
    runtime: DockerRuntime, engine: Engine, image: str, lie: str
) -> None:
    with (
        lying_image(engine, image, WARDENS[lie]) as lying,
        anyio.fail_after(PATIENCE),
        pytest.raises(SpecRefused, match=r"orchestrator images build|does not work with"),
    ):
        async with runtime.open(ContainerSpec(image=lying)):
            pass
    assert await nothing_left(runtime)


SUBVERTED = """
def field(b): return len(b).to_bytes(4, 'big') + b
def send(kind, stream, payload):
    os.write(1, bytes([kind]) + stream.to_bytes(4, 'big') + field(payload))
send(32, 0, field(b'%d' % VERSION) + field(b'x'))
os.read(0, 17)
FORGED
while True:
    time.sleep(600)  # and it does not even leave when its wire is cut
"""


@pytest.mark.parametrize(
    "forged",
    [
        "os.write(1, b'garbage' * 1000)",
        "send(34, 1, bytes(4))",
        "send(36, 2, b'nobody')",
        "send(39, 0, b'pong')",
        "send(16, 7, b'data')",
        "os.write(1, bytes([16]) + bytes(4) + b'\\xff' * 4)",
    ],
)
async def test_a_subverted_warden_ends_its_wire_and_is_removed_by_force(
    runtime: DockerRuntime, engine: Engine, image: str, forged: str
) -> None:
    code = SUBVERTED.replace("VERSION", str(w.VERSION)).replace("FORGED", forged)
    with lying_image(engine, image, code) as lying, anyio.fail_after(PATIENCE):
        async with runtime.open(ContainerSpec(image=lying)) as container:
            failure = await container.failure()
    assert failure is not None
    assert failure.whose == "machinery"
    assert await nothing_left(runtime)


# Bystanders


@pytest.fixture
async def foreign(image: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Somebody else's container, made of our image but not by us."""
    monkeypatch.setenv("TESTCONTAINERS_RYUK_DISABLED", "true")  # it would pull an image
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 reads it on import

    with DockerContainer(image, command="sleep 600", network_mode="none") as container:
        yield str(container.get_wrapped_container().id)


async def test_the_reaper_does_not_see_what_others_made(
    runtime: DockerRuntime, foreign: str
) -> None:
    reaped = await runtime.reap()
    assert foreign not in [info.id for info in await runtime.list()]
    assert not reaped
    assert await runtime.engine.inspect(foreign) is not None
