"""The Docker runtime: create, attach, start, hello; and on every way out, nothing left behind."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import anyio

from orchestrator.containers.docker.create import bare_body, create_body
from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.engine_events import EventStream
from orchestrator.containers.docker.facts import EngineFacts, facts
from orchestrator.containers.docker.held import HeldContainer
from orchestrator.containers.docker.image_look import ImageLook
from orchestrator.containers.docker.image_terms import ImageTerms, image_terms, is_below
from orchestrator.containers.failure import ProfileRefused
from orchestrator.containers.labels import (
    STATE,
    ContainerInfo,
    ContainerKind,
    make_labels,
    read_info,
)
from orchestrator.containers.mounts import CheckedSpec, MountPolicy
from orchestrator.containers.owner import Owner
from orchestrator.containers.reaper import why_reap
from orchestrator.containers.runtime import Container, Reaped
from orchestrator.containers.seccomp import profile
from orchestrator.domain.container import Bind, ContainerSpec, Volume
from orchestrator.errors import EngineUnreachable, MountRefused, OrchestratorError, SpecRefused

log = logging.getLogger(__name__)

STARTS_PER_CORE = 4
"""Containers being started at once: more of them only make each other wait."""

PINNING_RUNTIMES = frozenset(("runc", "crun", "youki", "nvidia", "io.containerd.runc.v2"))
"""OCI runtimes whose containers see a directory as the host does, with its device and inode;
sandboxes such as gVisor and Kata make up numbers of their own."""

PODMAN_OPENS = ("/run", "/var/tmp")  # noqa: S108 to be closed
"""Directories that Podman lets be written where the root filesystem is read-only, unless something
else is mounted there."""

LATE_CREATE_SECONDS = 600.0
"""For a create that was not answered in time to come to something after all."""

MAY_WRITE = frozenset(("created", "running", "paused", "restarting"))
"""Of a container: an agent in it writes, or will."""

BARE_SECONDS = 600.0
"""For a container to be looked into; one that is older was left by an orchestrator that died."""

KEPT_PREFIX = "orch-kept-"
"""Begins the names of kept containers and of their volumes."""

MakeContainer = Callable[[ContainerSpec], AbstractAsyncContextManager[Container]]


@asynccontextmanager
async def open_docker(
    engine: Engine, owner: Owner, policy: MountPolicy
) -> AsyncIterator[DockerRuntime]:
    """The runtime on this engine, which is asked once what it can do."""
    info = await engine.call(engine.api.info)
    known = facts(info, await engine.call(engine.api.version), os.uname().release)
    if known.cpus is None:
        log.warning("this engine cannot limit processors; `orchestrator doctor` says more")
    events = EventStream(engine, owner.state)
    runtime = DockerRuntime(engine, owner, policy, known, events)
    try:
        await events.start()
        yield runtime
    finally:
        with suppress(OrchestratorError), anyio.CancelScope(shield=True):
            await runtime.remove_unanswered()
        await events.stop()


class DockerRuntime:
    """Runtime (containers/runtime.py) on an engine that speaks Docker's API; see `open_docker`."""

    def __init__(
        self,
        engine: Engine,
        owner: Owner,
        policy: MountPolicy,
        known: EngineFacts,
        events: EventStream,
    ) -> None:
        self.engine = engine
        self.owner = owner
        self.facts = known
        self.events = events
        self._policy = policy
        self._starts = anyio.CapacityLimiter(STARTS_PER_CORE * (os.cpu_count() or 1))
        self._profile = profile() if known.takes_profile else None
        self._profile_refused: set[str | None] = set()
        """By which OCI runtimes; None is the engine's default."""
        self._unanswered: dict[str, float] = {}
        """Names of containers whose create call timed out, and when: the engine may still make
        them."""

    # The contract

    @asynccontextmanager
    async def open(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[Container]:
        name = name or f"orch-{secrets.token_hex(6)}"
        make = partial(self._open, name=name, labels=labels)
        async with self._on_our_terms(spec, make) as container:
            yield container

    @asynccontextmanager
    async def keep(
        self, key: str, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Container]:
        make = partial(self._keep, key=key, labels=labels)
        async with self._on_our_terms(spec, make) as container:
            yield container

    @asynccontextmanager
    async def _open(
        self, spec: ContainerSpec, name: str, labels: Mapping[str, str] | None
    ) -> AsyncIterator[Container]:
        held = await self._held(spec, name, "disposable", "", labels)
        try:
            async with self._starts:
                await self.remove_unanswered()
                await self._check_writers(held)
                try:
                    await held.create()
                    await held.start(await self._look_into(held))
                except EngineUnreachable:
                    self._unanswered[name] = time.monotonic()
                    raise
                await self._check_writers(held)
            yield held.container
        finally:
            await held.remove()

    @asynccontextmanager
    async def _keep(
        self, spec: ContainerSpec, key: str, labels: Mapping[str, str] | None
    ) -> AsyncIterator[Container]:
        name = self._kept_name(key)
        held = await self._held(spec, name, "kept", key, labels)
        lock = self.owner.hold(name)
        try:
            async with self._starts:
                await self._check_writers(held)
                if not await held.find():
                    await held.create()
                await held.start(await self._look_into(held))
                await self._check_writers(held)
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
            found = await self.engine.inspect(name)
            if found is not None:
                await self.engine.remove(name)
            ours = await self.volumes((key,))
            for volume in ours:
                await self.engine.remove_volume(volume)
            return found is not None or bool(ours)
        finally:
            lock.release()

    async def list(self) -> tuple[ContainerInfo, ...]:
        return tuple(info for info in await self._all() if info.state == self.owner.state)

    async def volumes(self, keys: Iterable[str]) -> tuple[str, ...]:
        """The volumes of kept containers: an operator may have removed the container already."""
        names = tuple(f"{self._kept_name(key)}-" for key in keys)
        found = await self.engine.call(self.engine.api.volumes, filters={"name": KEPT_PREFIX})
        listed = sorted(str(volume["Name"]) for volume in found.get("Volumes") or ())
        return tuple(name for name in listed if name.startswith(names))

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
                await self.engine.remove(info.id)
            except OrchestratorError as exc:  # one that is stuck must not stop everything else
                log.warning("%s cannot be removed (%s): %s", info.name, why, exc)
            else:
                reaped.append(Reaped(name=info.name, why=why))
        return tuple(reaped)

    async def seccomp_profile(self) -> str | None:
        """Our profile; None once it is known that the engine does not take it."""
        return None if None in self._profile_refused else self._profile

    # A spec -> what this engine is asked for

    @asynccontextmanager
    async def _on_our_terms(
        self, spec: ContainerSpec, make: MakeContainer
    ) -> AsyncIterator[Container]:
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

    async def _check_runtime(self, name: str) -> None:
        known = (await self.engine.call(self.engine.api.info)).get("Runtimes") or {}
        if known and name not in known:
            raise SpecRefused(
                f"the engine has no runtime {name!r}; it has: {', '.join(sorted(known))}. Add it "
                "to the engine's configuration, or take `runtime` out of agent.md"
            )

    async def _held(
        self,
        spec: ContainerSpec,
        name: str,
        kind: ContainerKind,
        key: str,
        labels: Mapping[str, str] | None,
    ) -> HeldContainer:
        """A container that is still to be made; MountRefused for what it may not be shown."""
        checked = self._checked(spec)
        disposable = kind == "disposable"
        written = make_labels(
            state=self.owner.state,
            owner=self.owner.id,
            kind=kind,
            key=key,
            deadline=time.time() + checked.spec.lifetime_seconds if disposable else 0.0,
            writes=[bind.source for bind in _written(checked.spec)],
            extra=labels,
        )
        image = image_terms(
            spec.image, await self.engine.call(self.engine.api.inspect_image, spec.image)
        )
        keep_as = None if disposable else name
        body = self._create_body(checked.spec, written, keep_as=keep_as, image=image)
        return HeldContainer(
            self.engine, self.events, name, checked.spec, body, self._pinned(checked)
        )

    def _checked(self, spec: ContainerSpec) -> CheckedSpec:
        """What the policy makes of it; MountRefused also for what would come to nothing here."""
        checked = self._policy.checked(spec)
        written = _written(checked.spec)
        if written and self.facts.maps_users:
            raise MountRefused(
                f"{written[0].source} cannot be written from containers of this engine, which is "
                "rootless or remaps users: its owner outside is another user inside; use "
                "`workspace: copy`"
            )
        return checked

    def _create_body(
        self,
        spec: ContainerSpec,
        labels: Mapping[str, str],
        *,
        keep_as: str | None = None,
        image: ImageTerms | None = None,
    ) -> dict[str, object]:
        # Podman takes a profile's text for the name of a file, which has to be on its machine.
        in_file = self.facts.is_podman and self.facts.same_kernel and spec.seccomp is not None
        return create_body(
            spec,
            labels,
            image=image,
            keep_as=keep_as,
            cpus_available=self.facts.cpus,
            profile_path=str(self.owner.file_of(spec.seccomp or "")) if in_file else None,
            closed=PODMAN_OPENS if self.facts.is_podman else (),
            masks_by_option=self.facts.is_podman,
        )

    async def _check_writers(self, held: HeldContainer) -> None:
        """MountRefused if something is mounted inside a directory of the host's, and an agent may
        write to one above that. With a link to beside the directory, in the place of one in it, the
        agent could have files of its own mounted over those that PID 1 is made of: a link is
        followed on the host for what is mounted, and in the container for where.

        Asked before a container is made, and when it has started: two may start at once.
        """
        shown = [mount for mount in held.spec.mounts if isinstance(mount, Bind)]
        outer = {
            bind.source
            for bind in shown
            for mount in held.spec.mounts
            if is_below(mount.target, bind.target)
        }
        if not outer:
            return
        for info in await self._all():
            if info.id == held.id or info.status not in MAY_WRITE:
                continue
            for source in sorted(outer):
                above = next((path for path in info.writes if is_below(source, path)), None)
                if above is not None:
                    raise MountRefused(
                        f"{source} cannot be mounted while another agent may write to {above}, "
                        "which holds it: the agent could exchange what is kept from writing in it; "
                        "wait until that run has ended, or use `workspace: copy`"
                    )

    async def _look_into(self, held: HeldContainer) -> tuple[str, ...]:
        """SpecRefused if links in the image would lead our mounts, or PID 1, astray. Which scratch
        space may turn out to be shut, since it is in the image.

        Once for each image and set of targets, since it takes as long as a start; but what is
        mounted inside the volume of a kept container lies where its agent can have made a link
        since then.
        """
        volumes = [m.target for m in held.spec.mounts if isinstance(m, Volume)] if held.kept else []
        nested = {target for target in held.targets for at in volumes if is_below(target, at)}
        if nested and self.facts.is_podman:
            raise SpecRefused(
                f"{min(nested)} is inside a volume of the session, into which this engine does not "
                "let us look before a start; mount it elsewhere"
            )
        said = f"{held.image_id}: {' '.join(sorted(held.targets))} lead nowhere else; 1"
        if not nested and self.owner.has(said):
            return ()
        async with self._bare(held) as container:
            look = ImageLook(self.engine.api, container, held.spec.image)
            await self.engine.call(look.check, held.targets)
            shut = await self.engine.call(look.shut, [t.target for t in held.spec.scratch])
        if not shut:
            self.owner.file_of(said)
        return shut

    @asynccontextmanager
    async def _bare(self, held: HeldContainer) -> AsyncIterator[str]:
        """A container like the one that is held, with nothing of the host's mounted, to look into.

        An engine that is asked about files of a container mounts what it has. Docker 26.1.5 opens
        each place that something is mounted over, to write: a FIFO in a workspace kept it waiting
        for ever, and the container could not even be removed.
        """
        labels = make_labels(
            state=self.owner.state,
            owner=self.owner.id,
            kind="disposable",
            deadline=time.time() + BARE_SECONDS,
        )
        name = f"orch-bare-{secrets.token_hex(6)}"
        body = bare_body(held.body, labels)
        bare = HeldContainer(self.engine, self.events, name, held.spec, body, {})
        try:
            await bare.create()
            yield bare.id
        finally:
            await bare.remove()

    def _pinned(self, checked: CheckedSpec) -> dict[str, str]:
        """What each mount must turn out to be, where a container sees it as we do."""
        runtime = checked.spec.oci_runtime or self.facts.default_runtime
        same = self.facts.same_kernel and runtime in PINNING_RUNTIMES
        return checked.identities if same else {}

    def _kept_name(self, key: str) -> str:
        digest = hashlib.sha256(f"{self.owner.state}\0{key}".encode()).hexdigest()
        return f"{KEPT_PREFIX}{digest[:16]}"

    # Containers that are there

    async def _all(self) -> tuple[ContainerInfo, ...]:
        rows = await self.engine.call(
            self.engine.api.containers, all=True, filters={"label": STATE}
        )
        return tuple(info for row in rows if (info := read_info(row)) is not None)

    async def remove_unanswered(self) -> None:
        """Remove what an overloaded engine made after its create call had timed out."""
        for name, since in tuple(self._unanswered.items()):
            found = await self.engine.inspect(name)
            if found is not None:
                await self.engine.remove(name)
            if found is not None or time.monotonic() - since > LATE_CREATE_SECONDS:
                self._unanswered.pop(name, None)


def _written(spec: ContainerSpec) -> list[Bind]:
    return [mount for mount in spec.mounts if isinstance(mount, Bind) and not mount.read_only]


def _without_our_profile(spec: ContainerSpec) -> ContainerSpec:
    return spec.model_copy(update={"seccomp": None}) if spec.seccomp == profile() else spec
