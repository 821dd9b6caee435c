"""What goes wrong outside: engines that vanish, images that lie, limits that are too small.

Each is one clear error, told to whoever can act on it, and leaves nothing behind.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers import runtime as containers_runtime
from orchestrator.containers.docker import held
from orchestrator.containers.docker import runtime as docker_runtime
from orchestrator.containers.docker.create import create_body
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
    runtime: DockerRuntime, image: str, instead: Callable[[str], None]
) -> None:
    instead("x = bytearray(100_000_000)")
    limits = Limits(memory_bytes=32 * MIB, shm_bytes=MIB)
    scratch = (Tmpfs(target="/tmp", size_bytes=MIB), Tmpfs(target=HOME, size_bytes=MIB))
    with (
        anyio.fail_after(PATIENCE),
        pytest.raises(MemoryTooSmall, match="a memory limit of 32 MiB is too small for it"),
    ):
        async with runtime.open(ContainerSpec(image=image, limits=limits, tmpfs=scratch)):
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


@pytest.fixture
def instead(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have PID 1 of each container do something else than it should."""

    def apply(code: str) -> None:
        program = ["/usr/bin/python3", "-I", "-S", "-c", f"import os, sys, time\n{code}\n"]

        def lying(*args: object, **kwargs: object) -> dict[str, object]:
            body = create_body(*args, **kwargs)  # type: ignore[arg-type]
            return {**body, "Entrypoint": program}

        monkeypatch.setattr(docker_runtime, "create_body", lying)
        monkeypatch.setattr(held, "CONTAINER_GONE_SECONDS", 0.5)  # before it is removed by force
        monkeypatch.setattr(containers_runtime, "FATE_SECONDS", 0.5)  # it does not end by itself

    return apply


@pytest.mark.parametrize("lie", WARDENS)
async def test_an_image_without_our_warden_is_one_clear_error(
    runtime: DockerRuntime, spec: ContainerSpec, instead: Callable[[str], None], lie: str
) -> None:
    instead(WARDENS[lie])
    with (
        anyio.fail_after(PATIENCE),
        pytest.raises(SpecRefused, match=r"orchestrator images build|does not work with"),
    ):
        async with runtime.open(spec):
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
    runtime: DockerRuntime, spec: ContainerSpec, instead: Callable[[str], None], forged: str
) -> None:
    instead(SUBVERTED.replace("VERSION", str(w.VERSION)).replace("FORGED", forged))
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
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
