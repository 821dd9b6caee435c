"""The Docker runtime: create, attach, start, hello; and on every way out, nothing left behind."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self

import anyio

from orchestrator.containers.docker.create import create_body
from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.engine_events import EventStream
from orchestrator.containers.docker.hijack import Connection, Demultiplexer, attach
from orchestrator.containers.failure import ProfileRefused, start_error
from orchestrator.containers.labels import OWNER, SPEC, STATE, ContainerInfo, make_labels, read_info
from orchestrator.containers.mounts import CheckedSpec, MountPolicy
from orchestrator.containers.owner import Owner
from orchestrator.containers.reaper import why_reap
from orchestrator.containers.runtime import Container, Fate, Reaped
from orchestrator.containers.seccomp import ARCHITECTURES, profile
from orchestrator.domain.container import Bind, ContainerSpec, Launch
from orchestrator.errors import (
    EngineRefused,
    EngineUnreachable,
    MountRefused,
    NameTaken,
    OrchestratorError,
    SpecRefused,
    WireLost,
)
from orchestrator.wire.host import Wire, WireEnd

log = logging.getLogger(__name__)

STARTS_PER_CORE = 4
"""Containers being started at once: more of them only make each other wait."""

HELLO_SECONDS = 60.0
"""From start to the warden's first word, on a machine under load."""

LOOK_SECONDS = 30.0
"""For one look at what is mounted; a network file system that hangs takes for ever."""

PINNING_RUNTIMES = frozenset(("runc", "crun", "youki", "nvidia", "io.containerd.runc.v2"))
"""OCI runtimes whose containers see a directory as the host does, with its device and inode;
sandboxes such as gVisor and Kata make up numbers of their own."""

PODMAN_OPENS = ("/run", "/var/tmp")  # noqa: S108 to be closed
"""Directories that Podman lets be written where the root filesystem is read-only, unless something
else is mounted there."""

LATE_SECONDS = 600.0
"""For a create that was not answered in time to come to something after all."""

GONE_SECONDS = 5.0
"""After the wire is cut, for the container to end by itself; after that it is removed by force."""


Make = Callable[[ContainerSpec], AbstractAsyncContextManager[Container]]


class DockerRuntime:
    """Runtime (runtime.py) on an engine that speaks Docker's API. Use it as a context manager."""

    def __init__(self, engine: Engine, owner: Owner, policy: MountPolicy) -> None:
        self.engine = engine
        self._api = engine.api
        self.owner = owner
        self._policy = policy
        self.events = EventStream(engine, owner.state)
        self._starts = anyio.CapacityLimiter(STARTS_PER_CORE * (os.cpu_count() or 1))
        self._cpus: float | None = float("inf")
        self._same_kernel = False
        self._default_runtime = ""
        self._maps_users = False
        self._is_podman = False
        self._profile: str | None = None
        self._profile_refused: set[str | None] = set()
        """By which OCI runtimes; None is the engine's default."""
        self._unanswered: dict[str, float] = {}
        """Names of containers that may come into being though nobody waits for them any more, and
        since when."""

    async def __aenter__(self) -> Self:
        info = await self.engine.call(self._api.info)
        self._cpus = _cpus(info)
        if self._cpus is None:
            log.warning("this engine cannot limit processors; `orchestrator doctor` says more")
        self._same_kernel = info.get("KernelVersion") == os.uname().release
        self._default_runtime = str(info.get("DefaultRuntime") or "runc")
        self._maps_users = _maps_users(info)
        self._is_podman = _is_podman(await self.engine.call(self._api.version))
        self._profile = profile_for(info)
        await self.events.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(OrchestratorError), anyio.CancelScope(shield=True):
            await self._remove_unanswered()
        await self.events.stop()

    # The contract

    @asynccontextmanager
    async def open(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[Container]:
        name = name or f"orch-{secrets.token_hex(6)}"
        async with self._on_our_terms(spec, lambda s: self._open(s, labels, name)) as container:
            yield container

    @asynccontextmanager
    async def _open(
        self, spec: ContainerSpec, labels: Mapping[str, str] | None, name: str
    ) -> AsyncIterator[Container]:
        checked = self._checked(spec)
        spec = checked.spec
        written = make_labels(
            state=self.owner.state,
            owner=self.owner.id,
            kind="disposable",
            deadline=time.time() + spec.lifetime_seconds,
            extra=labels,
        )
        body = self._create_body(spec, written)
        held = _Held(self, name, spec, self._pinned(checked))
        try:
            async with self._starts:
                await self._remove_unanswered()
                try:
                    await held.create(body)
                    await held.start()
                except EngineUnreachable:
                    self._unanswered[name] = time.monotonic()
                    raise
            yield held.container
        finally:
            await held.remove()

    @asynccontextmanager
    async def keep(
        self, key: str, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Container]:
        async with self._on_our_terms(spec, lambda s: self._keep(key, s, labels)) as container:
            yield container

    @asynccontextmanager
    async def _keep(
        self, key: str, spec: ContainerSpec, labels: Mapping[str, str] | None
    ) -> AsyncIterator[Container]:
        checked = self._checked(spec)
        spec = checked.spec
        name = self._kept_name(key)
        written = make_labels(
            state=self.owner.state,
            owner=self.owner.id,
            kind="kept",
            key=key,
            extra=labels,
        )
        body = self._create_body(spec, written, keep_as=name)
        lock = self.owner.hold(name)
        held = _Held(self, name, spec, self._pinned(checked))
        try:
            async with self._starts:
                if not await held.find(body):
                    await held.create(body)
                await held.start()
            yield held.container
        finally:
            try:
                await held.stop()
            finally:
                lock.release()

    async def forget(self, key: str) -> bool:
        name = self._kept_name(key)
        lock = self.owner.hold(name)
        try:
            found = await self.inspect(name)
            if found is not None:
                await self.remove(name)
            # By name, not from the container: somebody may have removed that one already.
            listed = await self.engine.call(self._api.volumes, filters={"name": name})
            volumes = [str(v["Name"]) for v in listed.get("Volumes") or ()]
            ours = [volume for volume in volumes if volume.startswith(f"{name}-")]
            for volume in ours:
                await self._remove_volume(volume)
            return found is not None or bool(ours)
        finally:
            lock.release()

    async def list(self) -> tuple[ContainerInfo, ...]:
        return tuple(info for info in await self._all() if info.state == self.owner.state)

    async def reap(self) -> tuple[Reaped, ...]:
        reaped = []
        for info in await self._all():
            why = why_reap(
                info,
                now=time.time(),
                our_state=self.owner.state,
                owner_alive=info.kind == "disposable" and self.owner.alive(info.owner),
                held=info.kind == "kept" and self.owner.held(info.name),
            )
            if why is None:
                continue
            try:
                await self.remove(info.id)
            except OrchestratorError as exc:  # one that is stuck must not stop everything else
                log.warning("%s cannot be removed (%s): %s", info.name, why, exc)
            else:
                reaped.append(Reaped(name=info.name, why=why))
        return tuple(reaped)

    # What this engine can do

    async def seccomp_profile(self) -> str | None:
        """Our profile; None once it is known that the engine does not take it."""
        return None if None in self._profile_refused else self._profile

    @asynccontextmanager
    async def _on_our_terms(self, spec: ContainerSpec, make: Make) -> AsyncIterator[Container]:
        """A container with our seccomp profile, or without it on an engine that refuses it."""
        if spec.oci_runtime is not None:
            await self._check_runtime(spec.oci_runtime)
        if self._profile is None or spec.oci_runtime in self._profile_refused:
            spec = _without_our_profile(spec)
        async with AsyncExitStack() as stack:
            try:
                container = await stack.enter_async_context(make(spec))
            except ProfileRefused as exc:
                plain = _without_our_profile(spec)
                if plain == spec:
                    raise
                container = await stack.enter_async_context(make(plain))
                if spec.oci_runtime not in self._profile_refused:
                    self._profile_refused.add(spec.oci_runtime)
                    log.warning("%s; from now on its own is used, which allows more", exc)
            yield container

    def _create_body(
        self, spec: ContainerSpec, labels: Mapping[str, str], *, keep_as: str | None = None
    ) -> dict[str, object]:
        # Podman takes a profile's text for the name of a file, which has to be on its machine.
        in_file = self._is_podman and self._same_kernel and spec.seccomp is not None
        return create_body(
            spec,
            labels,
            keep_as=keep_as,
            cpus_available=self._cpus,
            profile_path=str(self.owner.file_of(spec.seccomp or "")) if in_file else None,
            closed=PODMAN_OPENS if self._is_podman else (),
        )

    async def _check_runtime(self, name: str) -> None:
        known = (await self.engine.call(self._api.info)).get("Runtimes") or {}
        if known and name not in known:
            raise SpecRefused(
                f"the engine has no runtime {name!r}; it has: {', '.join(sorted(known))}. Add it "
                "to the engine's configuration, or take `runtime` out of agent.md"
            )

    def _checked(self, spec: ContainerSpec) -> CheckedSpec:
        """What the policy makes of it; MountRefused also for what would come to nothing here."""
        checked = self._policy.checked(spec)
        written = [m for m in checked.spec.mounts if isinstance(m, Bind) and not m.read_only]
        if written and self._maps_users:
            raise MountRefused(
                f"{written[0].source} cannot be written from containers of this engine, which is "
                "rootless or remaps users: who owns it outside is somebody else inside; use "
                "`workspace: copy`"
            )
        return checked

    # The engine, for the containers of this module

    async def inspect(self, name: str) -> dict[str, object] | None:
        try:
            found = await self.engine.call(self._api.inspect_container, name)
        except EngineRefused as exc:
            if _is_gone(exc):
                return None
            raise
        return dict(found)

    async def remove(self, name: str) -> None:
        """Remove a container by force; one that is gone or going already is as good."""
        try:
            await self.engine.call(self._api.remove_container, name, force=True, v=True)
        except (EngineRefused, NameTaken) as exc:
            if not _is_gone(exc):
                raise

    async def _remove_volume(self, name: str) -> None:
        try:
            await self.engine.call(self._api.remove_volume, name, force=True)
        except EngineRefused as exc:
            if not _is_gone(exc):
                raise

    async def _all(self) -> tuple[ContainerInfo, ...]:
        rows = await self.engine.call(self._api.containers, all=True, filters={"label": STATE})
        return tuple(info for row in rows if (info := read_info(row)) is not None)

    async def _remove_unanswered(self) -> None:
        """Remove what an overloaded engine made after all, when nobody waited any more."""
        for name, since in tuple(self._unanswered.items()):
            found = await self.inspect(name)
            if found is not None:
                await self.remove(name)
            if found is not None or time.monotonic() - since > LATE_SECONDS:
                self._unanswered.pop(name, None)

    def _pinned(self, checked: CheckedSpec) -> dict[str, str]:
        """What each mount must turn out to be, where a container sees it as we do."""
        runtime = checked.spec.oci_runtime or self._default_runtime
        same = self._same_kernel and runtime in PINNING_RUNTIMES
        return checked.identities if same else {}

    def _kept_name(self, key: str) -> str:
        digest = hashlib.sha256(f"{self.owner.state}\0{key}".encode()).hexdigest()
        return f"orch-kept-{digest[:16]}"


class _Held:
    """One container on its way in, and out again."""

    def __init__(
        self, runtime: DockerRuntime, name: str, spec: ContainerSpec, pinned: dict[str, str]
    ) -> None:
        self._runtime = runtime
        self._pinned = pinned
        self._engine = runtime.engine
        self._name = name
        self._spec = spec
        self._id = ""
        self._fate: Fate | None = None
        self._wire: Wire | None = None
        self._container: Container | None = None

    @property
    def container(self) -> Container:
        assert self._container is not None  # noqa: S101 set by start
        return self._container

    async def create(self, body: dict[str, object]) -> None:
        # Shielded: a create that is under way makes a container, whether we wait for it or not.
        with anyio.CancelScope(shield=True):
            try:
                made = await self._engine.call(
                    self._engine.api.create_container_from_config, body, self._name
                )
            except EngineUnreachable:
                await self._find_unanswered()
                raise
        self._id = str(made["Id"])

    async def _find_unanswered(self) -> None:
        """A create whose answer got lost may have made a container; then it is to be removed."""
        with suppress(OrchestratorError):
            found = await self._runtime.inspect(self._name)
            labels = _labels(found)
            if found is not None and labels.get(OWNER) == self._runtime.owner.id:
                self._id = str(found["Id"])

    async def find(self, body: dict[str, object]) -> bool:
        """Take up the kept container of this name, if it is still what the spec says."""
        found = await self._runtime.inspect(self._name)
        if found is None:
            return False
        state = found.get("State")
        running = isinstance(state, dict) and bool(state.get("Running"))
        labels = body["Labels"]
        same = isinstance(labels, dict) and _labels(found).get(SPEC) == labels[SPEC]
        if running or not same:
            # Running without a holder: its orchestrator died a moment ago, and nobody can attach
            # to it any more. The volumes stay.
            await self._runtime.remove(self._name)
            return False
        self._id = str(found["Id"])
        return True

    async def start(self) -> None:
        runtime = self._runtime
        self._fate = runtime.events.watch(self._id)
        connection = Connection(lambda _: None)
        wire = self._wire = Wire(connection, self._spec.user, self._name)
        connection.on_body = Demultiplexer(wire.feed, wire.feed_stderr).feed
        connection.on_lost, connection.on_pause = wire.disconnected, wire.hold
        connection.on_resume = wire.release
        await attach(self._engine, self._id, connection)
        with anyio.CancelScope(shield=True):  # as with create
            await self._engine.call(self._engine.api.start, self._id)
        container = self._container = Container(self._name, self._spec, wire, self._fate)
        try:
            with anyio.fail_after(HELLO_SECONDS):
                await wire.hello()
        except (TimeoutError, WireLost) as exc:
            await wire.close()
            await container.settled()
            raise self._start_error(container) from exc
        wire.lease(self._spec.lease_seconds, self._spec.lifetime_seconds)
        for target, identity in self._pinned.items():
            await self._look_at_mount(wire, target, identity)

    async def _look_at_mount(self, wire: Wire, target: str, identity: str) -> None:
        try:
            with anyio.fail_after(LOOK_SECONDS):
                seen = await wire.run(Launch(argv=("stat", "-c", "%d:%i", target)))
        except TimeoutError as exc:
            raise MountRefused(
                f"what is mounted at {target} does not answer; does its file system hang?"
            ) from exc
        if seen.stdout.decode(errors="replace").strip() != identity:
            raise MountRefused(
                f"what is mounted at {target} is not the directory that was allowed: "
                "somebody exchanged it while the container was made"
            )

    def _start_error(self, container: Container) -> OrchestratorError:
        ending = container.ending
        assert ending is not None  # noqa: S101 the wire is closed
        return start_error(self._spec.image, self._spec.limits.memory_bytes, ending)

    async def remove(self) -> None:
        """Cut the wire and see the container go; it needs no help unless something is wrong."""
        if not self._id:
            return
        with anyio.CancelScope(shield=True):  # every wait below is bounded
            try:
                if await self._end() and self._fate is not None:
                    with anyio.move_on_after(GONE_SECONDS):
                        await self._fate.gone.wait()
                        return
                await self._runtime.remove(self._id)
            finally:
                self._runtime.events.unwatch(self._id)

    async def stop(self) -> None:
        """Cut the wire and see the container stop; it stays, with its volumes."""
        if not self._id:
            return
        with anyio.CancelScope(shield=True):
            try:
                if await self._end() and self._fate is not None:
                    with anyio.move_on_after(GONE_SECONDS):
                        await self._fate.died.wait()
                await self._see_stopped()
            finally:
                self._runtime.events.unwatch(self._id)

    async def _end(self) -> bool:
        """Cut the wire; True when the container can be trusted to end by itself."""
        if self._wire is None:
            return False
        await self._wire.close()
        honest = self._wire.ended not in (WireEnd.MALFORMED, WireEnd.SILENT)
        return honest and self._container is not None

    async def _see_stopped(self) -> None:
        """See that it has stopped, though it said so: somebody may have started it again.

        And the engine says "die" a moment before it lists a container as exited.
        """
        api = self._engine.api
        with suppress(EngineRefused, NameTaken):  # not running, or gone
            await self._engine.call(api.kill, self._id)
        with suppress(EngineRefused):
            await self._engine.call(api.wait, self._id, timeout=int(GONE_SECONDS))


def profile_for(info: Mapping[str, Any]) -> str | None:
    """Our seccomp profile, if an engine that describes itself like this takes it."""
    return profile() if _takes_our_profile(info) else None


def _takes_our_profile(info: Mapping[str, Any]) -> bool:
    """Whether an engine that describes itself like this filters calls, and on a known machine."""
    options = info.get("SecurityOptions") or ()
    filters = any("seccomp" in str(option).split(",")[0] for option in options)
    return filters and info.get("Architecture") in ARCHITECTURES


def _cpus(info: Mapping[str, Any]) -> float | None:
    """How many processors the engine has; None if it cannot limit them."""
    return float(info.get("NCPU") or "inf") if info.get("CpuCfsQuota", True) else None


def _maps_users(info: Mapping[str, Any]) -> bool:
    """Whether a user inside is another one outside."""
    options = {str(option).split(",")[0] for option in info.get("SecurityOptions") or ()}
    return bool(options & {"name=rootless", "name=userns"})


def _is_podman(version: Mapping[str, Any]) -> bool:
    return any(part.get("Name") == "Podman Engine" for part in version.get("Components") or ())


def _without_our_profile(spec: ContainerSpec) -> ContainerSpec:
    return spec.model_copy(update={"seccomp": None}) if spec.seccomp == profile() else spec


def _labels(inspected: dict[str, object] | None) -> dict[str, str]:
    config = (inspected or {}).get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels if isinstance(labels, dict) else {}


def _is_gone(exc: OrchestratorError) -> bool:
    text = str(exc).lower()
    signs = ("no such container", "no such volume", "already in progress", "no container with")
    return any(sign in text for sign in signs)
