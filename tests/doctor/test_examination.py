"""Promises that hold on this engine, and what is said of those that are broken on purpose."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker import held
from orchestrator.containers.docker import runtime as docker_runtime
from orchestrator.containers.docker.create import create_body
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.doctor import container_promises as promises
from orchestrator.doctor import gateway_promises
from orchestrator.doctor.container_promises import ENDINGS, INSIDE_PROMISES, Probes
from orchestrator.doctor.examination import Check, check, examine
from orchestrator.doctor.gateway_promises import GATEWAY
from orchestrator.doctor.promise import ask, launch
from orchestrator.doctor.server_promises import SERVERS_OF_TOOLS
from orchestrator.doctor.workspace_promises import WORKSPACES
from orchestrator.domain.container import MIB, ContainerSpec, Launch, User
from orchestrator.settings import Settings

pytestmark = pytest.mark.anyio

Weaken = Callable[..., None]

NETWORK = {"body": {"NetworkDisabled": False}}
"""The one of the two settings that stands outside of the HostConfig."""


@pytest.fixture
async def spec(runtime: DockerRuntime, image: str) -> ContainerSpec:
    """As the doctor makes them: with our seccomp profile."""
    return ContainerSpec(image=image, seccomp=await runtime.seccomp_profile())


@pytest.fixture
def weaken(monkeypatch: pytest.MonkeyPatch) -> Weaken:
    """Containers are made as always, but for these fields of the create call."""

    def apply(*, body: dict[str, object] | None = None, **host_config: object) -> None:
        def weaker(*args: object, **kwargs: object) -> dict[str, object]:
            made = create_body(*args, **kwargs)  # type: ignore[arg-type]
            config = made["HostConfig"]
            assert isinstance(config, dict)
            return {**made, **(body or {}), "HostConfig": {**config, **host_config}}

        monkeypatch.setattr(docker_runtime, "create_body", weaker)

    return apply


async def look_inside(name: str, container: Container) -> Check:
    (promise,) = (p for p in (*INSIDE_PROMISES, *GATEWAY) if p.name == name)
    return await check(promise, container)


async def look_at_ending(
    name: str, runtime: DockerRuntime, spec: ContainerSpec, workspace: Path | None = None
) -> Check:
    (promise,) = (p for p in (*WORKSPACES, *SERVERS_OF_TOOLS, *ENDINGS) if p.name == name)
    async with AsyncExitStack() as stack:
        return await check(promise, Probes(runtime, spec, stack, workspace))


async def test_every_promise_holds_on_this_engine(
    runtime: DockerRuntime, spec: ContainerSpec, settings: Settings
) -> None:
    workspace = settings.allowed_roots[0]
    async with aclosing(examine(runtime.engine, runtime, spec, workspace)) as found:
        checks = [check async for check in found]
    assert [check for check in checks if not check.ok or check.advice] == []
    first = ["engine", "hello", *(p.name for p in (*INSIDE_PROMISES, *GATEWAY))]
    last = (*WORKSPACES, *SERVERS_OF_TOOLS, *ENDINGS)
    assert [check.name for check in checks] == [*first, *(p.name for p in last)]


@pytest.mark.parametrize(
    ("name", "weaker", "seen"),
    [
        ("network", {**NETWORK, "NetworkMode": "host"}, "interfaces: "),
        ("dns", {**NETWORK, "ExtraHosts": ["example.com:192.0.2.1"]}, "example.com is 192.0.2.1"),
        ("root filesystem", {"ReadonlyRootfs": False}, "/workspace"),
        ("scratch space", {"ShmSize": 128 * MIB}, "/dev/shm 80 of 64 MiB then no end"),
        ("scratch space", {"Tmpfs": {}}, "Read-only file system"),
        ("privileges", {"SecurityOpt": []}, "NoNewPrivs 0"),
        ("seccomp", {"SecurityOpt": ["seccomp=unconfined"]}, "Seccomp 0"),
        ("system calls", {"SecurityOpt": ["seccomp=unconfined"]}, "allows io_uring_setup"),
        ("processes", {"PidMode": "host"}, "sees our PID 1, itself and "),
        ("open files", {"Ulimits": [{"Name": "nofile", "Soft": 9000, "Hard": 9000}]}, "no end"),
        ("processors", {"NanoCpus": 0}, "no limit to be seen"),
        ("process count", {"PidsLimit": 0}, "272 forks of 256, then no end; all killed"),
    ],
)
async def test_a_weaker_container_breaks_its_promise(
    weaken: Weaken,
    runtime: DockerRuntime,
    spec: ContainerSpec,
    name: str,
    weaker: dict[str, object],
    seen: str,
) -> None:
    weaken(**weaker)
    async with runtime.open(spec) as container:
        found = await look_inside(name, container)
    assert not found.ok
    assert seen in found.detail
    assert found.advice


@pytest.mark.parametrize(
    ("disabled", "mode"), [(True, "host"), (True, "bridge"), (False, "none")], ids=str
)
async def test_each_of_the_two_settings_leaves_no_network(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec, disabled: bool, mode: str
) -> None:
    weaken(body={"NetworkDisabled": disabled}, NetworkMode=mode)
    async with runtime.open(spec) as container:
        found = await look_inside("network", container)
    assert found.ok, found.detail


async def test_a_socket_of_the_host_is_found(
    weaken: Weaken,
    runtime: DockerRuntime,
    spec: ContainerSpec,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's whole path may be too long for its address
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("engine.sock")
        weaken(Binds=[f"{tmp_path}/engine.sock:/run/docker.sock"])
        async with runtime.open(spec) as container:
            found = await look_inside("sockets", container)
    assert (found.ok, found.detail) == (False, "/run/docker.sock")


async def test_an_image_that_does_not_know_localhost_breaks_the_promise(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    (tmp_path / "nsswitch.conf").write_text("hosts: files\n")
    weaken(Binds=[f"{tmp_path}/nsswitch.conf:/etc/nsswitch.conf:ro"])
    async with runtime.open(spec) as container:
        found = await look_inside("dns", container)
    assert not found.ok
    assert found.detail.startswith("localhost is Name or service not known"), found.detail


async def test_a_setuid_file_is_found(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    plain = spec.model_copy(update={"seccomp": None})  # ours lets none be made
    async with runtime.open(plain) as container:
        script = "cp /bin/true /tmp/gain && chmod u+s /tmp/gain"
        assert (await container.run(Launch(argv=("sh", "-c", script)))).code == 0
        found = await look_inside("setuid files", container)
    assert (found.ok, found.detail) == (False, "/tmp/gain")


async def test_a_host_that_is_reached_without_being_allowed_breaks_the_promise(
    runtime: DockerRuntime, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_promises, "OTHER", gateway_promises.ALLOWED)
    async with runtime.open(spec) as container:
        found = await look_inside("egress", container)
    assert not found.ok
    assert found.detail.startswith("not refused: http://allowed.doctor.test:")


async def test_a_secret_that_is_inside_is_found(
    runtime: DockerRuntime, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = "3c9a1f70b2"
    async with runtime.open(spec) as container:
        monkeypatch.setattr(secrets, "token_hex", lambda _: planted)
        script = f"echo key={planted} > ~/.netrc; tail -f /dev/null"
        launched = Launch(argv=("sh", "-c", script), env={"HOME": "/home/agent", "KEY": planted})
        async with container.spawn(launched) as process:
            with anyio.fail_after(60):
                while (await container.run(Launch(argv=("cat", "/home/agent/.netrc")))).code:
                    pass  # until it is written
            found = await look_inside("secrets", container)
    assert not found.ok
    for place in (f"/proc/{process.pid}/environ", f"/proc/{process.pid}/cmdline", "/.netrc"):
        assert place in found.detail


async def test_another_user_than_promised_is_noticed(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    other = spec.model_copy(update={"user": User(uid=1234, gid=1234)})
    async with runtime.open(other) as container:
        mistaken = Container(container.name, spec, container.wire, container.fate)
        found = await look_inside("user", mistaken)
    assert not found.ok
    assert found.detail.startswith("uid 1234, gid 1234, groups none")


async def test_a_warden_that_runs_as_the_agent_is_not_safe_from_it(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    weaken(body={"User": "1000:1000"})
    async with runtime.open(spec) as container:
        found = await look_inside("PID 1", container)
    assert not found.ok


async def test_what_is_refused_on_the_warden_works_on_an_ordinary_process(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    async with runtime.open(spec) as container:
        stubborn = launch("stubborn").argv
        quiet = Launch(argv=("sh", "-c", 'exec "$@" > /tmp/said', "sh", *stubborn))
        async with container.spawn(quiet) as process:
            with anyio.fail_after(60):
                while not (await container.run(Launch(argv=("cat", "/tmp/said")))).stdout:
                    pass  # until it ignores signals
            seen = await ask(container, "attack", str(process.pid))
            refused = {what for what, how in seen["outcomes"].items() if how}
            # Some distributions let a process trace its own children only.
            assert refused <= {"trace it", "open its memory"}
            with anyio.fail_after(60):
                assert await process.wait() == -9


async def test_a_workspace_that_can_be_written_although_it_is_to_be_read_is_noticed(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec, settings: Settings
) -> None:
    (workspace,) = settings.allowed_roots
    workspace.chmod(0o777)
    weaken(Mounts=[{"Type": "bind", "Source": str(workspace), "Target": "/workspace"}])
    found = await look_at_ending("workspace", runtime, spec, workspace)
    assert not found.ok
    assert str(workspace) in found.detail
    assert list(workspace.iterdir()) == []


async def test_a_directory_that_no_container_may_see_cannot_be_written_either(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    found = await look_at_ending("workspace", runtime, spec, Path("/etc"))
    assert found.ok
    assert found.detail.startswith("no directory of this machine can be shown: ")


async def test_memory_without_a_limit_breaks_the_promise(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    weaken(Memory=0, MemorySwap=0)
    found = await look_at_ending("memory", runtime, spec)
    assert (found.ok, found.detail) == (False, "64 MiB: took twice as much (exit code 0)")


@pytest.mark.parametrize("name", ["orchestrator gone", "gone, and defied"])
async def test_a_container_that_outlives_its_wire_breaks_the_promise(
    name: str,
    weaken: Weaken,
    runtime: DockerRuntime,
    spec: ContainerSpec,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weaken(AutoRemove=False)
    monkeypatch.setattr(promises, "VANISH_SECONDS", 0.5)
    monkeypatch.setattr(held, "CONTAINER_GONE_SECONDS", 0.1)
    found = await look_at_ending(name, runtime, spec)
    assert (found.ok, found.detail) == (False, "still there after 0.5 s")


async def test_a_probe_container_that_is_left_is_named(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    (promise,) = (p for p in ENDINGS if p.name == "nothing left")
    async with AsyncExitStack() as stack:
        probes = Probes(runtime, spec, stack)
        async with probes.open() as container:
            found = await check(promise, probes)
    assert (found.ok, found.detail) == (False, container.name)


async def test_an_image_without_a_warden_ends_the_examination(
    weaken: Weaken, runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    weaken(body={"Entrypoint": ["/usr/bin/true"]})
    async with aclosing(examine(runtime.engine, runtime, spec)) as found:
        checks = [check async for check in found]
    assert [(check.name, check.ok) for check in checks] == [("engine", True), ("hello", False)]
    assert "did not start our program" in checks[1].detail
    assert "orchestrator images build" in checks[1].advice


async def test_leaving_early_leaves_no_container(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    async with aclosing(examine(runtime.engine, runtime, spec)) as found:
        async for seen in found:
            if seen.name == "network":
                break
        assert len(await runtime.list()) == 1
    assert await runtime.list() == ()


async def test_a_container_that_is_gone_is_a_failed_check_and_no_traceback(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    async with runtime.open(spec) as container:
        await container.wire.close()
        found = await look_inside("network", container)
    assert not found.ok
    assert "closed by us" in found.detail
