"""What every runtime promises (containers/runtime.py), on the engine and on the fake alike."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.create import create_body
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.fake import FAKE_STATE, FakeEngine, FakeRuntime
from orchestrator.containers.labels import ContainerInfo, ContainerKind, make_labels
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.runtime import Runtime
from orchestrator.domain.container import HOME, Bind, ContainerSpec, File, Launch, Tmpfs, Volume
from orchestrator.errors import (
    ImageMissing,
    MountRefused,
    NameTaken,
    SpawnFailed,
    WireLost,
)
from orchestrator.settings import Settings
from orchestrator.wire.host import WireEnd
from orchestrator.wire.streams import Stream
from tests.containers.fake_programs import PROGRAMS

PATIENCE = 60
LeaveBehind = Callable[[str, ContainerKind, str], Awaitable[None]]


@pytest.fixture(params=["docker", "fake"])
def any_runtime(
    request: pytest.FixtureRequest, image: str, settings: Settings
) -> tuple[Runtime, LeaveBehind]:
    """A runtime, and a way to leave a container (name, kind, owner) behind as a crash would."""
    if request.param == "docker":
        docker: DockerRuntime = request.getfixturevalue("runtime")
        return docker, _leave_on_docker(docker, image)
    policy = MountPolicy(roots=settings.allowed_roots, home=settings.home)
    engine = FakeEngine(images=frozenset({image}), programs=PROGRAMS)

    async def leave(name: str, kind: ContainerKind, owner: str) -> None:
        engine.containers[name] = ContainerInfo(
            id=name, name=name, status="created", kind=kind, state=FAKE_STATE, owner=owner
        )

    return FakeRuntime(engine, policy), leave


def _leave_on_docker(runtime: DockerRuntime, image: str) -> LeaveBehind:
    async def leave(name: str, kind: ContainerKind, owner: str) -> None:
        state = runtime.owner.state
        spec = ContainerSpec(image=image)
        labels = make_labels(state=state, owner=owner, kind=kind)
        body = create_body(spec, labels, keep_as=name if kind == "kept" else None)
        await runtime.engine.call(runtime.engine.api.create_container_from_config, body, name)

    return leave


@pytest.fixture
def runtime_(any_runtime: tuple[Runtime, LeaveBehind]) -> Runtime:
    return any_runtime[0]


async def test_a_container_runs_a_program_and_returns_its_output_and_exit_code(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            done = await container.run(Launch(argv=("echo", "hello", "you")))
            failed = await container.run(Launch(argv=("false",)))

    assert (done.code, done.stdout, done.stderr) == (0, b"hello you\n", b"")
    assert failed.code == 1


async def test_a_process_reads_all_that_is_written_to_it(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    data = bytes(range(256)) * 8192
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            done = await container.run(Launch(argv=("cat",)), data)

    assert done.stdout == data


async def test_a_program_that_is_not_there_is_a_spawn_failure_and_the_container_goes_on(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            with pytest.raises(SpawnFailed, match="no-such-program: not found on PATH"):
                await container.run(Launch(argv=("no-such-program",)))
            assert (await container.run(Launch(argv=("echo",)))).code == 0


async def test_files_are_placed_before_the_program_starts(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    note = File(path=f"{HOME}/deep/note", content=b"remember\n")
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            done = await container.run(Launch(argv=("cat", note.path), files=(note,)))

    assert done.stdout == note.content


async def test_a_signal_ends_a_process_and_the_exit_code_tells_which(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            runtime_.open(spec) as container,
            container.spawn(Launch(argv=("sleep", "inf"))) as process,
        ):
            process.signal(signal.SIGTERM)
            assert await process.wait() == -signal.SIGTERM


async def test_leaving_a_spawn_block_kills_the_process(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            async with container.spawn(Launch(argv=("sleep", "inf"))) as process:
                pass
            assert process.code == -signal.SIGKILL


async def test_kill_all_ends_every_process_and_the_container_goes_on(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            runtime_.open(spec) as container,
            container.spawn(Launch(argv=("sleep", "inf"))) as one,
            container.spawn(Launch(argv=("yes",))) as two,
        ):
            await container.kill_all()
            assert (await one.wait(), await two.wait()) == (-9, -9)
            assert (await container.run(Launch(argv=("echo",)))).code == 0


async def test_a_process_that_nobody_reads_does_not_stop_another(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            runtime_.open(spec) as container,
            container.spawn(Launch(argv=("yes",))),
        ):
            done = await container.run(Launch(argv=("cat",)), b"x" * 1_000_000)

    assert len(done.stdout) == 1_000_000


async def test_a_connection_inside_reaches_the_service_outside(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    async def service(stream: Stream) -> None:
        request = await stream.read()
        path = request.split(b" ")[1]
        await stream.write(b"HTTP/1.0 200 OK\r\n\r\nyou asked for " + path)

    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            port = await container.listen(0, "web", service)
            url = f"http://127.0.0.1:{port}/page"
            done = await container.run(Launch(argv=("curl", "-s", url)))

    assert done.stdout == b"you asked for /page"


async def test_a_port_can_be_listened_to_once(runtime_: Runtime, spec: ContainerSpec) -> None:
    async def service(stream: Stream) -> None: ...

    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            await container.listen(8080, "first", service)
            with pytest.raises(OSError, match="in use"):
                await container.listen(8080, "second", service)


async def test_leaving_an_open_block_leaves_nothing(runtime_: Runtime, spec: ContainerSpec) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec, labels={"run": "r1"}) as container:
            listed = await runtime_.list()
            assert [(i.name, i.kind, i.labels["run"]) for i in listed] == [
                (container.name, "disposable", "r1")
            ]
        assert await runtime_.list() == ()


async def test_an_error_in_the_block_leaves_nothing(runtime_: Runtime, spec: ContainerSpec) -> None:
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ZeroDivisionError):
            async with runtime_.open(spec):
                raise ZeroDivisionError
        assert await runtime_.list() == ()


async def test_cancelling_at_any_moment_leaves_nothing(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        for delay in (0, 0.01, 0.05, 0.1, 0.2, 0.4):
            with anyio.move_on_after(delay):
                async with (
                    runtime_.open(spec) as container,
                    container.spawn(Launch(argv=("sleep", "inf"))) as process,
                ):
                    await process.wait()
        assert await runtime_.list() == ()


async def test_a_closed_wire_tells_everybody_who_waits(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with (
            runtime_.open(spec) as container,
            container.spawn(Launch(argv=("sleep", "inf"))) as process,
        ):
            await container.wire.close()
            with pytest.raises(WireLost, match="closed by us"):
                await process.wait()
            with pytest.raises(WireLost):
                await process.stdout.read()
            with pytest.raises(WireLost):
                await container.run(Launch(argv=("echo",)))
            assert container.wire.ended is WireEnd.CLOSED
            assert await container.failure() is None


async def test_a_missing_image_is_one_clear_error(runtime_: Runtime, spec: ContainerSpec) -> None:
    missing = spec.model_copy(update={"image": "no-such-image:1"})
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ImageMissing, match="no-such-image:1"):
            async with runtime_.open(missing):
                pass
        assert await runtime_.list() == ()


async def test_a_name_in_use_is_one_clear_error_and_its_user_goes_on(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime_.open(spec) as container:
            with pytest.raises(NameTaken, match=container.name):
                async with runtime_.open(spec, name=container.name):
                    pass
            assert (await container.run(Launch(argv=("echo",)))).code == 0


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("/", "whole machine"),
        ("{home}", "whole home"),
        ("{home}/..", "whole home"),
        ("/var/run", "belongs to the system"),
        ("/etc", "belongs to the system"),
        ("{home}/.ssh", "credentials"),
        ("{outside}", "outside the allowed roots"),
        ("{work}/missing", "does not exist"),
        ("{work}/file", "not a directory"),
        ("{work}/way-out", "outside the allowed roots"),
        ("work", "not an absolute path"),
    ],
)
async def test_a_forbidden_mount_is_one_clear_error(
    runtime_: Runtime, spec: ContainerSpec, settings: Settings, source: str, says: str
) -> None:
    work, home, outside = settings.allowed_roots[0], settings.home, settings.home.parent / "other"
    (home / ".ssh").mkdir(parents=True)
    outside.mkdir()
    (work / "file").touch()
    (work / "way-out").symlink_to(outside)
    path = source.format(home=home, work=work, outside=outside)
    forbidden = spec.model_copy(update={"mounts": (Bind(source=path),)})
    with anyio.fail_after(PATIENCE):
        with pytest.raises(MountRefused, match=says):
            async with runtime_.open(forbidden):
                pass
        assert await runtime_.list() == ()


def kept_spec(spec: ContainerSpec) -> ContainerSpec:
    scratch = (Tmpfs(target="/tmp"),)
    return spec.model_copy(update={"mounts": (Volume(target=HOME),), "tmpfs": scratch})


async def test_a_kept_container_keeps_its_volume_between_blocks(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    kept = kept_spec(spec)
    with anyio.fail_after(PATIENCE):
        async with runtime_.keep("alice", kept) as container:
            await container.run(Launch(argv=("tee", f"{HOME}/note")), b"first")
        listed = await runtime_.list()
        assert [(i.kind, i.key, i.status) for i in listed] == [("kept", "alice", "exited")]
        async with runtime_.keep("alice", kept) as container:
            again = await container.run(Launch(argv=("cat", f"{HOME}/note")))
        async with runtime_.keep("bob", kept) as container:
            other = await container.run(Launch(argv=("cat", f"{HOME}/note")))
        assert (again.stdout, other.code) == (b"first", 1)
        assert await runtime_.forget("alice")
        assert await runtime_.forget("bob")
        assert not await runtime_.forget("alice")
        assert await runtime_.list() == ()


async def test_a_kept_container_is_made_anew_for_another_spec_and_keeps_its_volume(
    runtime_: Runtime, spec: ContainerSpec
) -> None:
    kept = kept_spec(spec)
    limits = kept.limits.model_copy(update={"pids": kept.limits.pids + 1})
    roomier = kept.model_copy(update={"limits": limits})
    with anyio.fail_after(PATIENCE):
        async with runtime_.keep("carol", kept) as container:
            await container.run(Launch(argv=("tee", f"{HOME}/note")), b"first")
        (first,) = await runtime_.list()
        async with runtime_.keep("carol", kept):
            (same,) = await runtime_.list()
        async with runtime_.keep("carol", roomier) as container:
            again = await container.run(Launch(argv=("cat", f"{HOME}/note")))
            (other,) = await runtime_.list()
        assert same.id == first.id
        assert other.id != first.id
        assert again.stdout == b"first"
        assert await runtime_.forget("carol")


async def test_a_key_is_used_by_one_block_at_a_time(runtime_: Runtime, spec: ContainerSpec) -> None:
    kept = kept_spec(spec)
    with anyio.fail_after(PATIENCE):
        async with runtime_.keep("dave", kept) as container:
            with pytest.raises(NameTaken, match="in use"):
                async with runtime_.keep("dave", kept):
                    pass
            with pytest.raises(NameTaken, match="in use"):
                await runtime_.forget("dave")
            assert (await container.run(Launch(argv=("echo",)))).code == 0
        assert await runtime_.forget("dave")


async def test_the_reaper_removes_what_a_crash_left_and_nothing_else(
    any_runtime: tuple[Runtime, LeaveBehind], spec: ContainerSpec, tmp_path: Path
) -> None:
    runtime, leave_behind = any_runtime
    dead, unborn = f"left-{time.time_ns()}", f"unborn-{time.time_ns()}"
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as mine:
            await leave_behind(dead, "disposable", "deadbeef")
            await leave_behind(unborn, "kept", "deadbeef")
            reaped = await runtime.reap()
            assert {(r.name, r.why) for r in reaped} == {
                (dead, "its orchestrator is gone"),
                (unborn, "it was never started"),
            }
            assert [i.name for i in await runtime.list()] == [mine.name]
            assert (await mine.run(Launch(argv=("echo",)))).code == 0
