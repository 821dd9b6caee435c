"""Engines differ: what one says of itself, and what is then done and left undone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import requests
import urllib3.exceptions

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.engine_events import EventStream
from orchestrator.containers.docker.hijack import AttachedWire, Connection, attach
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.failure import ProfileRefused
from orchestrator.containers.mounts import CheckedSpec
from orchestrator.containers.owner import Owner
from orchestrator.containers.seccomp import profile
from orchestrator.domain.container import Bind, ContainerSpec, User
from orchestrator.errors import EngineUnreachable, MountRefused, OperatorError

PATIENCE = 120


async def test_where_users_are_mapped_no_directory_is_shown_to_be_written(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "facts", runtime.facts.model_copy(update={"maps_users": True}))
    bind = Bind(source=str(tmp_path / "work"), read_only=False)
    with pytest.raises(MountRefused, match="use `workspace: copy`"):
        async with runtime.open(spec.model_copy(update={"mounts": (bind,)})):
            pass
    read_only = bind.model_copy(update={"read_only": True})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec.model_copy(update={"mounts": (read_only,)})):
            pass


@pytest.mark.parametrize(
    ("default", "named", "pinned"),
    [("runc", None, True), ("crun", None, True), ("runc", "runsc", False), ("kata", None, False)],
)
async def test_a_sandbox_that_makes_up_inodes_is_not_taken_at_its_word(
    runtime: DockerRuntime,
    spec: ContainerSpec,
    monkeypatch: pytest.MonkeyPatch,
    default: str,
    named: str | None,
    pinned: bool,
) -> None:
    here = {"default_runtime": default, "same_kernel": True}
    monkeypatch.setattr(runtime, "facts", runtime.facts.model_copy(update=here))
    seen = {"/workspace": "1:2"}
    checked = CheckedSpec(spec=spec.model_copy(update={"oci_runtime": named}), identities=seen)
    assert runtime._pinned(checked) == (seen if pinned else {})


class LateEngine(Engine):
    """The real engine; it makes a container when whoever asked for it has given up."""

    async def call(self, function, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        if function.__name__ == "create_container_from_config" and self.late is None:
            self.late = (function, args)
            raise self.unreachable("timed out")
        return await super().call(function, *args, **kwargs)

    late: tuple[Callable[..., object], tuple[object, ...]] | None = None


async def test_a_container_that_was_made_too_late_is_removed_by_the_next_start(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    late = LateEngine(runtime.engine.address, runtime.engine.api)
    runtime.engine = late
    with anyio.fail_after(PATIENCE):
        with pytest.raises(EngineUnreachable, match="timed out"):
            async with runtime.open(spec):
                pass
        assert late.late is not None
        make, arguments = late.late
        await asyncio.to_thread(make, *arguments)
        assert [info.status for info in await runtime.list()] == ["created"]
        async with runtime.open(spec) as container:
            assert [info.name for info in await runtime.list()] == [container.name]


@pytest.mark.parametrize(
    "lost",
    [
        requests.exceptions.ConnectionError("gone"),
        urllib3.exceptions.ProtocolError("gone in the middle of a build"),
        urllib3.exceptions.ReadTimeoutError(None, "", "silent"),  # type: ignore[arg-type]
    ],
)
async def test_an_engine_that_goes_away_is_told_as_that_whoever_noticed(
    runtime: DockerRuntime, lost: Exception
) -> None:
    with pytest.raises(EngineUnreachable, match="does not answer"), runtime.engine.translated():
        raise lost


async def test_an_engine_that_refuses_and_does_not_hang_up_is_understood_all_the_same(
    runtime: DockerRuntime, tmp_path: Path
) -> None:
    """Recorded from Podman 5.4.2, whose attach makes the container."""
    said = (
        b'{"cause":"OCI runtime error","message":"preparing container 5d74 for attach: runc: runc '
        b"create failed: string SCMP_ACT_NONSENSE is not a valid action for seccomp: OCI runtime "
        b'error","response":500}\n'
    )

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 500 Internal Server Error\r\nContent-Length: {len(said)}\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        writer.write(said)
        await reader.read()  # until the other side hangs up
        writer.close()

    address = tmp_path / "engine.sock"
    async with await asyncio.start_unix_server(refuse, address):
        engine = Engine(f"unix://{address}", runtime.engine.api)
        with anyio.fail_after(PATIENCE), pytest.raises(ProfileRefused, match="SCMP_ACT_NONSENSE"):
            await attach(
                engine, "5d74", Connection(lambda link: AttachedWire(link, User(), "5d74"))
            )


async def test_podman_finds_the_profile_in_a_file_and_nothing_more_can_be_written(
    runtime: DockerRuntime, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman = {"is_podman": True, "same_kernel": True}
    monkeypatch.setattr(runtime, "facts", runtime.facts.model_copy(update=podman))
    body: Any = runtime._create_body(spec.model_copy(update={"seccomp": profile()}), {})
    option = body["HostConfig"]["SecurityOpt"][2]
    assert await anyio.Path(option.removeprefix("seccomp=")).read_text() == profile()
    closed = "ro,noexec,nosuid,nodev,mode=755,size=4k"
    assert {path: body["HostConfig"]["Tmpfs"][path] for path in ("/run", "/var/tmp")} == {
        "/run": closed,
        "/var/tmp": closed,
    }


async def test_what_the_engine_tells_again_of_a_life_before_is_not_heard(
    runtime: DockerRuntime,
) -> None:
    events = EventStream(runtime.engine, "nobody")
    actor: dict[str, object] = {"ID": "kept", "Attributes": {"exitCode": "137"}}
    first = events.watch("kept")
    events._on_event("die", actor, 1_000)
    assert (first.died.is_set(), first.exit_code) == (True, 137)
    events.unwatch("kept")

    second = events.watch("kept")
    events._on_event("die", actor, 1_000)  # the events were asked for again, from there on
    assert not second.died.is_set()
    events._on_event("die", {**actor, "Attributes": {"exitCode": "0"}}, 2_000)
    assert (second.died.is_set(), second.exit_code) == (True, 0)


async def test_many_who_begin_at_once_agree_on_whose_state_it_is(tmp_path: Path) -> None:
    def begin() -> str:
        with Owner(tmp_path / "state") as owner:
            return owner.state

    states = await asyncio.gather(*(asyncio.to_thread(begin) for _ in range(16)))
    assert len(set(states)) == 1
    assert [path.name for path in (tmp_path / "state").glob("id*")] == ["id"]


def test_a_state_without_a_name_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "id").touch()
    with pytest.raises(OperatorError, match=r"id is empty; remove it"), Owner(tmp_path):
        pass
