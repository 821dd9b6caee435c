"""May a container see this directory? The policy by value, and what the engine really mounted."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.container import Bind, ContainerSpec, Cover, Launch
from orchestrator.errors import MountRefused
from orchestrator.settings import Settings
from orchestrator.state import mount_policy

PATIENCE = 120


def spec_of(source: Path | str, *, read_only: bool = True) -> ContainerSpec:
    return ContainerSpec(image="x", mounts=(Bind(source=str(source), read_only=read_only),))


@pytest.mark.parametrize(
    "source", ["/srv/work/../../etc", "/srv/work/../..", "/srv/work/../../var/run"]
)
def test_dots_do_not_lead_out_of_the_roots_of_another_machine(source: str) -> None:
    policy = MountPolicy(roots=(Path("/srv/work"),), home=Path("/home/me"), engine_is_local=False)
    assert policy.checked(spec_of("/srv/work/a")).spec == spec_of("/srv/work/a")
    with pytest.raises(MountRefused, match=r"must not contain \.\."):
        policy.checked(spec_of(source))


def test_an_agent_may_not_write_what_decides_over_it(tmp_path: Path) -> None:
    project, agents = tmp_path / "project", tmp_path / "project/agents"
    (project / "src").mkdir(parents=True)
    agents.mkdir()
    policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home", own=(agents,))

    for source in (project, agents):
        with pytest.raises(MountRefused, match="which no agent may write"):
            policy.checked(spec_of(source, read_only=False))
    policy.checked(spec_of(project))
    policy.checked(spec_of(project / "src", read_only=False))


def test_a_folder_that_holds_an_engines_socket_is_refused_even_read_only(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    socket = tmp_path / "engine/docker.sock"
    socket.touch()
    policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home", engine_sockets=(socket,))
    with pytest.raises(MountRefused, match="holds the socket of a container engine"):
        policy.checked(spec_of(tmp_path / "engine"))


def test_what_holds_secrets_and_the_records_of_others_is_hidden_even_read_only(
    tmp_path: Path,
) -> None:
    state, secrets = tmp_path / "project/state", tmp_path / "project/conf/secrets.yaml"
    for folder in (state / "runs", secrets.parent, tmp_path / "project/src"):
        folder.mkdir(parents=True)
    policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home", hidden=(state, secrets))

    for source in (tmp_path / "project", state, state / "runs", secrets.parent):
        with pytest.raises(MountRefused, match="which no agent may see; share another directory"):
            policy.checked(spec_of(source))
    policy.checked(spec_of(tmp_path / "project/src"))


def test_the_settings_hide_where_secrets_and_records_are_kept(settings: Settings) -> None:
    policy = mount_policy(settings, "unix:///var/run/docker.sock")
    assert policy.hidden == (settings.state_dir, settings.secrets_file)


@pytest.mark.parametrize("name", [".ssh", ".SSH", ".Aws"])
def test_a_place_for_credentials_is_one_in_whatever_letters(tmp_path: Path, name: str) -> None:
    (tmp_path / "home" / name).mkdir(parents=True)
    policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home")
    with pytest.raises(MountRefused, match="is a place for credentials"):
        policy.checked(spec_of(tmp_path / "home" / name))


class SlyEngine(Engine):
    """The real engine; in the moment before a create, somebody exchanges the directory."""

    exchange: tuple[Path, Path] | None = None

    async def call(self, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self.exchange is not None and function.__name__ == "create_container_from_config":
            (inside, outside), self.exchange = self.exchange, None
            inside.rmdir()
            inside.symlink_to(outside)
        return await super().call(function, *args, **kwargs)


async def test_a_directory_exchanged_for_a_link_before_it_is_mounted_is_found_out(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "sub").mkdir()
    (tmp_path / "outside").mkdir()
    sly = SlyEngine(runtime.engine.address, runtime.engine.api)
    sly.exchange = (work / "sub", tmp_path / "outside")
    runtime.engine = sly
    bound = spec.model_copy(update={"mounts": (Bind(source=str(work / "sub")),)})
    with anyio.fail_after(PATIENCE):
        with pytest.raises(MountRefused, match="exchanged while the container was made"):
            async with runtime.open(bound):
                pass
        assert await runtime.list() == ()


class ForgetfulEngine(Engine):
    """The real engine; what should cover something is not mounted."""

    async def call(self, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        if function.__name__ == "create_container_from_config":
            mounts = args[0]["HostConfig"]["Mounts"]
            mounts[:] = [mount for mount in mounts if mount["Source"] != "/dev/null"]
        return await super().call(function, *args, **kwargs)


async def test_a_container_in_which_something_is_not_covered_is_not_used(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    os.mkfifo(work / "pipe")
    mounts = (Bind(source=str(work)), Cover(target="/workspace/pipe"))
    covered = spec.model_copy(update={"mounts": mounts})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(covered) as container:
            seen = await container.run(Launch(argv=("stat", "-c", "%F", "/workspace/pipe")))
            assert seen.stdout == b"character special file\n"
        runtime.engine = ForgetfulEngine(runtime.engine.address, runtime.engine.api)
        with pytest.raises(MountRefused, match="is not covered in the container"):
            async with runtime.open(covered):
                pass
        assert await runtime.list() == ()


async def test_what_was_looked_at_earlier_is_what_is_mounted(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    mounts = (Bind(source=str(work), identity="1:2"),)
    with pytest.raises(MountRefused, match="another directory has just taken the place"):
        async with runtime.open(spec.model_copy(update={"mounts": mounts})):
            pass


async def test_a_workspace_belongs_to_its_owner_on_both_sides(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.chmod(0o777)
    mounts = (Bind(source=str(work), read_only=False),)
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec.model_copy(update={"mounts": mounts})) as container:
            await container.run(Launch(argv=("tee", "/workspace/made")), b"inside")
    made = work / "made"
    assert made.read_bytes() == b"inside"
    assert made.stat().st_uid == spec.user.uid
