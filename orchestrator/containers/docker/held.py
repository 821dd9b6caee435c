"""One container of the engine: create, attach, start, hello; and out again, or stopped."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import anyio

from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.docker.engine_events import EventStream
from orchestrator.containers.docker.hijack import AttachedWire, Connection, attach
from orchestrator.containers.docker.image_terms import is_below
from orchestrator.containers.failure import start_error
from orchestrator.containers.labels import OWNER, SPEC
from orchestrator.containers.runtime import Container, Fate
from orchestrator.domain.container import Bind, ContainerSpec, Cover, Launch
from orchestrator.errors import (
    EngineRefused,
    EngineUnreachable,
    MountRefused,
    OrchestratorError,
    SpecRefused,
    WireLost,
)
from orchestrator.wire.host import Wire, WireEnd

HELLO_SECONDS = 60.0
"""From start to the warden's first word, on a machine under load."""

MOUNT_LOOK_SECONDS = 30.0
"""For one look at what is mounted; a network file system that hangs takes for ever."""

NOTHING_SEEN = "1:3"
"""The device that /dev/null is, as `stat` says it."""

CONTAINER_GONE_SECONDS = 5.0
"""After the wire is cut, for the container to end by itself; after that it is removed by force."""


class HeldContainer:
    """One container on its way in, and out again. Its methods are called in that order."""

    def __init__(
        self,
        engine: Engine,
        events: EventStream,
        name: str,
        spec: ContainerSpec,
        body: dict[str, object],
        pinned: dict[str, str],
    ) -> None:
        """`body` is the create call's; `pinned` says which inode each mount must turn out to be."""
        self._engine = engine
        self._events = events
        self._name = name
        self.spec = spec
        self.body = body
        self._pinned = pinned
        self.id = ""
        self._fate: Fate | None = None
        self._wire: Wire | None = None
        self._container: Container | None = None

    @property
    def container(self) -> Container:
        assert self._container is not None  # noqa: S101 set by start
        return self._container

    @property
    def image_id(self) -> str:
        return str(self.body["Image"])

    @property
    def kept(self) -> bool:
        config = self.body["HostConfig"]
        return isinstance(config, dict) and not config["AutoRemove"]

    @property
    def targets(self) -> frozenset[str]:
        """Where something is mounted in what the image has: by the spec, or to close what the image
        opens. What is mounted in a directory of the host's is no matter of the image's.
        """
        config = self.body["HostConfig"]
        closed = config["Tmpfs"] if isinstance(config, dict) else {}
        shown = [mount.target for mount in self.spec.mounts if isinstance(mount, Bind)]
        mounted = (mount.target for mount in self.spec.mounts)
        return frozenset(
            target
            for target in (*closed, *mounted)
            if not any(is_below(target, above) for above in shown)
        )

    async def create(self) -> None:
        # Shielded: a create that is under way makes a container, whether we wait for it or not.
        with anyio.CancelScope(shield=True):
            try:
                made = await self._engine.call(
                    self._engine.api.create_container_from_config, self.body, self._name
                )
            except EngineUnreachable:
                await self._find_unanswered()
                raise
        self.id = str(made["Id"])

    async def _find_unanswered(self) -> None:
        """A create whose answer got lost may have made a container; then it is to be removed."""
        with suppress(OrchestratorError):
            found = await self._engine.inspect(self._name) or {}
            if _label(found.get("Config"), OWNER) == _label(self.body, OWNER):
                self.id = str(found["Id"])

    async def find(self) -> bool:
        """Take up the kept container of this name, if it is still what the spec says."""
        found = await self._engine.inspect(self._name)
        if found is None:
            return False
        state = found.get("State")
        running = isinstance(state, dict) and bool(state.get("Running"))
        if running or _label(found.get("Config"), SPEC) != _label(self.body, SPEC):
            # Running without a holder: its orchestrator died a moment ago, and no client can
            # attach to it any more. The volumes stay.
            await self._engine.remove(self._name)
            return False
        self.id = str(found["Id"])
        return True

    async def start(self, maybe_shut: Sequence[str] = ()) -> None:
        """SpecRefused if the agent cannot write to scratch space that is `maybe_shut` to it."""
        self._fate = self._events.watch(self.id)
        connection = Connection(partial(AttachedWire, user=self.spec.user, name=self._name))
        wire = self._wire = connection.receiver.wire
        await attach(self._engine, self.id, connection)
        with anyio.CancelScope(shield=True):  # as with create
            await self._engine.call(self._engine.api.start, self.id)
        container = self._container = Container(self._name, self.spec, wire, self._fate)
        try:
            with anyio.fail_after(HELLO_SECONDS):
                await wire.hello()
        except (TimeoutError, WireLost) as exc:
            await wire.close()
            await container.settled()
            raise self._start_error(container) from exc
        wire.lease(self.spec.lease_seconds, self.spec.lifetime_seconds)
        for target, identity in self._pinned.items():
            await self._look_at_mount(wire, target, identity)
        await self._look_at_covers(wire)
        for target in maybe_shut:
            seen = await wire.run(Launch(argv=("test", "-w", target), errand=True))
            if seen.code:
                raise SpecRefused(
                    f"the agent cannot write to {target}: this engine gives scratch space the mode "
                    f"that its place has in the image {self.spec.image}; give it mode 1777 there"
                )

    async def _look_at_covers(self, wire: Wire) -> None:
        targets = [mount.target for mount in self.spec.mounts if isinstance(mount, Cover)]
        if not targets:
            return
        try:
            with anyio.fail_after(MOUNT_LOOK_SECONDS):
                look = Launch(argv=("stat", "-c", "%t:%T", *targets), errand=True)
                seen = await wire.run(look)
        except TimeoutError as exc:
            raise MountRefused(f"what is mounted over {targets[0]} does not answer") from exc
        covered = seen.stdout.decode(errors="replace").split()
        if seen.code or covered != [NOTHING_SEEN] * len(targets):
            raise MountRefused(
                f"what must not be reached ({', '.join(targets[:3])}) is not covered in the "
                "container; was it moved while the container was made? Try again, or use "
                "`workspace: copy`"
            )

    async def _look_at_mount(self, wire: Wire, target: str, identity: str) -> None:
        try:
            with anyio.fail_after(MOUNT_LOOK_SECONDS):
                look = Launch(argv=("stat", "-c", "%d:%i", target), errand=True)
                seen = await wire.run(look)
        except TimeoutError as exc:
            raise MountRefused(
                f"what is mounted at {target} does not answer; does its file system hang?"
            ) from exc
        if seen.code or seen.stdout.decode(errors="replace").strip() != identity:
            raise MountRefused(
                f"what is mounted at {target} is not the directory that was allowed: "
                "it was exchanged while the container was made"
            )

    def _start_error(self, container: Container) -> OrchestratorError:
        ending = container.ending
        assert ending is not None  # noqa: S101 the wire is closed
        return start_error(self.spec.image, self.spec.limits.memory_bytes, ending)

    async def remove(self) -> None:
        """Cut the wire and see the container go; it needs no help unless something is wrong."""
        if not self.id:
            return
        with anyio.CancelScope(shield=True):  # every wait below is bounded
            try:
                if await self._end() and self._fate is not None:
                    with anyio.move_on_after(CONTAINER_GONE_SECONDS):
                        await self._fate.gone.wait()
                        return
                await self._engine.remove(self.id)
            finally:
                self._events.unwatch(self.id)

    async def stop(self) -> None:
        """Cut the wire and see the container stop; it stays, with its volumes."""
        if not self.id:
            return
        with anyio.CancelScope(shield=True):
            try:
                if await self._end() and self._fate is not None:
                    with anyio.move_on_after(CONTAINER_GONE_SECONDS):
                        await self._fate.died.wait()
                await self._see_stopped()
            finally:
                self._events.unwatch(self.id)

    async def _end(self) -> bool:
        """Cut the wire; True when the container can be trusted to end by itself."""
        if self._wire is None:
            return False
        await self._wire.close()
        honest = self._wire.ended not in (WireEnd.MALFORMED, WireEnd.SILENT)
        return honest and self._container is not None

    async def _see_stopped(self) -> None:
        """See that it has stopped, though it said so: an operator may have started it again.

        And the engine says "die" a moment before it lists a container as exited.
        """
        api = self._engine.api
        with suppress(EngineRefused):  # not running, or gone
            await self._engine.call(api.kill, self.id)
        with suppress(EngineRefused):
            await self._engine.call(api.wait, self.id, timeout=int(CONTAINER_GONE_SECONDS))


def _label(config: object, name: str) -> str | None:
    """A label in a create call's body, or in what `inspect` says under "Config"."""
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels.get(name) if isinstance(labels, dict) else None
