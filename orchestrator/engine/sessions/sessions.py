"""Sessions: a container and a conversation that stay between calls, one call at a time.

While it is in use, and for a while after, the CLI stays alive and the next call is one more line on
its stdin. Then the CLI goes, later the container stops; the files stay, and with them the
conversation, which the next call takes up again, in this process or in another one.

Between two calls every process in the container is stopped: what an agent leaves running would
otherwise work on, at nobody's expense. The next call lets them go on before anything is said.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from math import inf
from typing import Self, TypeVar

import anyio

from orchestrator.containers.exhaustion import DiskWatch
from orchestrator.containers.processor_time import ProcessorWatch
from orchestrator.containers.runtime import Container, Runtime
from orchestrator.domain.agent import Session
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.engine.stage import LimitCounter, Stage
from orchestrator.errors import EngineConflict, NameTaken, OrchestratorError, WireLost
from orchestrator.gateway.reach import Reach
from orchestrator.store.session_rows import SessionKey, SessionRow, SessionRows, SessionState

log = logging.getLogger(__name__)

T = TypeVar("T")

OpenStage = Callable[
    [Container, Reach, LimitCounter, str, bool], AbstractAsyncContextManager[Stage]
]
"""Starts the CLI in a session's container, with the conversation of this id; True: resume it."""

IDLE_LOOK_SECONDS = 0.5
"""How often idle sessions are looked at, and those that another process waits for."""

IDLE_DISK_SECONDS = 15.0
"""How often a session's files are measured, and whether what an agent left running stands still."""

SWEEP_SECONDS = 60.0
"""How often the store is searched for sessions that have expired."""

TAKE_SECONDS = 60.0
"""For another orchestrator to let go of a session; one in use is held for longer than that."""

RETRY_SECONDS = 0.2

STOP_TURN_SECONDS = 5.0
"""For a CLI to break off the turn of a run that was cancelled; then it is ended instead."""

SESSION_CLOSE_SECONDS = 30.0
"""For a CLI and its container to end."""


@dataclass(frozen=True)
class Makings:
    """What a session's container and CLI are made of, as things are now."""

    spec: ContainerSpec
    labels: Mapping[str, str]
    agent_digest: str
    """Another one, and the container is made anew; its files stay."""
    cli_digest: str
    """Another one, and the CLI is started anew; its conversation goes on."""
    reach: Callable[[], Reach]
    open_stage: OpenStage
    history: Callable[[str], str | None]
    """Where the CLI keeps a conversation; None if only the CLI can tell."""
    disk_bytes: int
    """What the session's files may take up."""


@dataclass(frozen=True)
class SessionUse:
    """A session that a call has for itself."""

    stage: Stage
    note: str = ""
    """What the caller should know: that the conversation of before is gone."""
    goes_on: bool = True
    """The conversation of before, and not a new one."""


@dataclass
class _KeptContainer:
    """A session's container, and what is reached from it."""

    container: Container
    reach: Reach
    disk: DiskWatch
    limits: LimitCounter
    processor: ProcessorWatch


@dataclass
class _HeldSession:
    """A session of which this process has the container."""

    key: SessionKey
    session: Session = field(default_factory=Session)
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    place: _KeptContainer | None = None
    stage: Stage | None = None
    made_of: str = ""
    cli_digest: str = ""
    held: AsyncExitStack = field(default_factory=AsyncExitStack)
    cli: AsyncExitStack = field(default_factory=AsyncExitStack)
    used: float = 0.0
    """On this process's clock."""
    looked: float = inf
    """When what its files take up was last looked at, on the same clock; not while it is."""
    at_rest: bool = False
    """No call has it: what the agent left running is to stand still."""

    @property
    def is_there(self) -> bool:
        return self.place is not None and self.place.container.wire.ended is None

    def rest(self) -> None:
        """Stop whatever the agent left running, unless a helper of ours is at work beside it; then
        whoever waits for that one calls this again.
        """
        if self.at_rest and self.looked != inf and self.place is not None:
            self.place.container.wire.stop_all()

    def wake(self) -> None:
        """Let it go on: the next call begins."""
        self.at_rest = False
        if self.place is not None:
            self.place.processor.forget()
            self.place.container.wire.continue_all()

    async def end_cli(self) -> None:
        self.stage = None
        cli, self.cli = self.cli, AsyncExitStack()
        with anyio.move_on_after(SESSION_CLOSE_SECONDS, shield=True):
            await cli.aclose()

    async def end_container(self) -> None:
        await self.end_cli()
        self.place = None
        self.made_of = ""
        held, self.held = self.held, AsyncExitStack()
        with anyio.move_on_after(SESSION_CLOSE_SECONDS, shield=True):
            await held.aclose()


class Sessions:
    """All sessions of this process. Use it as a context manager."""

    def __init__(self, runtime: Runtime, rows: SessionRows) -> None:
        self._runtime = runtime
        self._rows = rows
        self._live: dict[SessionKey, _HeldSession] = {}
        self._over = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._over.enter_async_context(self._looked_after())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._over.aclose()
        with anyio.CancelScope(shield=True):  # each wait inside is bounded
            for live in tuple(self._live.values()):
                await self._stop(live)

    @asynccontextmanager
    async def lock(self, key: SessionKey) -> AsyncIterator[None]:
        """One call at a time has the session; the others wait here, in order."""
        async with self._live.setdefault(key, _HeldSession(key)).lock:
            yield

    @asynccontextmanager
    async def use(
        self, key: SessionKey, session: Session, makings: Makings
    ) -> AsyncIterator[SessionUse]:
        """The session, for the call that holds its lock."""
        live = self._live[key]
        live.session = session
        try:
            yield await self._ready(live, makings)
        finally:
            with anyio.CancelScope(shield=True):
                await self._after_use(live)

    async def stop(self, key: SessionKey) -> bool:
        """Stop a session's container, keeping its files; False if this process has none."""
        live = self._live.get(key)
        if live is None or not live.is_there:
            return False
        async with live.lock:
            await self._stop(live)
        return True

    async def let_go(self, key: SessionKey) -> bool:
        """Have the process that has a session stop it; False if none has. NameTaken if in use."""
        if await self.stop(key):
            return True
        row = await self._rows.get(key)
        if row is None or row.state == "stopped":
            return False
        await self._rows.want(key)
        await self._until_free(key, self._stopped)
        return True

    async def remove(self, key: SessionKey) -> bool:
        """Remove a session, files and all; NameTaken if it is in use and stays so."""
        live = self._live.setdefault(key, _HeldSession(key))
        async with live.lock:
            await self._stop(live)
            gone = await self._until_free(key, self._runtime.forget)
            return await self._rows.remove(key) or gone

    async def list(self) -> tuple[SessionRow, ...]:
        return await self._rows.all()

    # One call

    async def _ready(self, live: _HeldSession, makings: Makings) -> SessionUse:
        old = await self._taken_over(live.key)
        live.wake()
        made_of = f"{makings.spec.digest} {makings.agent_digest}"
        if live.place is not None and (not live.is_there or live.made_of != made_of):
            await live.end_container()
        place = live.place or await self._take(live, makings)
        live.made_of = made_of
        row = await self._rows.take(live.key, live.session.expire_seconds)
        stage = live.stage
        same = stage is not None and live.cli_digest == makings.cli_digest
        if stage is not None and same and stage.conversation.at_rest:
            return SessionUse(stage)
        await live.end_cli()
        use = await self._start_cli(live, place, makings, row)
        live.cli_digest = makings.cli_digest
        note = use.note or (old if not row.conversation else "")
        return SessionUse(use.stage, note, use.goes_on)

    async def _taken_over(self, key: SessionKey) -> str:
        """Take over the session of before there were projects, if it is this project's beyond
        doubt; otherwise a note that there is one.
        """
        if await self._rows.get(key) is not None or await self._rows.unclaimed(key) is None:
            return ""
        if await self._rows.was_made_in(key):
            await self._rows.adopt(key)
            return ""
        return UNCLAIMED.format(key=key.text)

    async def _until_free(self, key: SessionKey, act: Callable[[str], Awaitable[T]]) -> T:
        """Do something that needs the session's container, once another process lets go of it."""
        deadline = anyio.current_time() + TAKE_SECONDS
        kept = await self._rows.kept(key)
        try:
            while True:
                try:
                    return await act(kept)
                except (EngineConflict, NameTaken) as exc:
                    if anyio.current_time() > deadline:
                        raise NameTaken(
                            f"session {key.text} is in use by another orchestrator; try again "
                            "later, or name another session"
                        ) from exc
                    await self._rows.want(key)
                    await anyio.sleep(RETRY_SECONDS)
        except BaseException:
            with anyio.CancelScope(shield=True):  # or its process would stop it for no reason
                await self._rows.want(key, wanted=False)
            raise

    async def _stopped(self, kept: str) -> None:
        """NameTaken while a process has the session's container."""
        listed = await self._runtime.list()
        if any(info.key == kept and info.status == "running" for info in listed):
            raise NameTaken(f"{kept} is running")

    async def _take(self, live: _HeldSession, makings: Makings) -> _KeptContainer:
        """The container of this session, even if another orchestrator has to let go of it."""

        async def enter(kept: str) -> Container:
            opened = self._runtime.keep(kept, makings.spec, labels=makings.labels)
            return await live.held.enter_async_context(opened)

        try:
            container = await self._until_free(live.key, enter)
            disk = DiskWatch(container, makings.disk_bytes)
            place = _KeptContainer(
                container,
                makings.reach(),
                disk,
                LimitCounter(container),
                ProcessorWatch(container),
            )
            place.reach.revoke()
            await place.reach.offer(place.container)
        except BaseException:
            await live.end_container()
            raise
        live.place = place
        live.looked = time.monotonic()  # by the run, at once
        return place

    async def _start_cli(
        self, live: _HeldSession, place: _KeptContainer, makings: Makings, row: SessionRow
    ) -> SessionUse:
        """The CLI, with the conversation of before if that can still be found."""

        async def start(conversation: str, *, resume: bool) -> Stage:
            opened = makings.open_stage(
                place.container, place.reach, place.limits, conversation, resume
            )
            live.stage = stage = await live.cli.enter_async_context(opened)
            return stage

        known = row.conversation
        if known and await _may_be_there(place.container, makings.history(known)):
            try:
                return SessionUse(await start(known, resume=True))
            except WireLost as exc:
                if not live.is_there:
                    raise
                log.warning("%s cannot be taken up again: %s", live.key.text, exc)
        fresh = str(uuid.uuid4())
        stage = await start(fresh, resume=False)
        await self._rows.set_conversation(live.key, stage.conversation.own_id or fresh)
        return SessionUse(stage, GONE if known else "", goes_on=False)

    async def _after_use(self, live: _HeldSession) -> None:
        if live.place is None:  # it could not be had
            await self._rows.set_state(live.key, "stopped")
            return
        live.place.reach.revoke()  # what the agent left running may not go on at our expense
        if live.stage is not None and not live.stage.conversation.at_rest:
            # A CLI that is ended leaves running what it ran, which the next call would continue.
            await live.stage.conversation.stop(STOP_TURN_SECONDS)
        if live.stage is not None and not live.stage.conversation.at_rest:
            await live.end_cli()
        live.at_rest = True
        live.rest()
        live.used = time.monotonic()
        await self._rows.used(live.key, _state(live), live.session.expire_seconds)

    # Between calls

    @asynccontextmanager
    async def _looked_after(self) -> AsyncIterator[None]:
        scope = anyio.CancelScope()  # not asyncio's own cancel: that would go through shields
        looking = asyncio.create_task(self._keep_looking(scope))
        try:
            yield
        finally:
            scope.cancel()
            with anyio.CancelScope(shield=True):  # each wait inside is bounded
                await asyncio.wait({looking})

    async def _keep_looking(self, scope: anyio.CancelScope) -> None:
        swept = 0.0
        with scope:
            async with anyio.create_task_group() as tasks:
                while True:
                    await anyio.sleep(IDLE_LOOK_SECONDS)
                    with _told():
                        for live in tuple(self._live.values()):
                            if time.monotonic() - live.looked > IDLE_DISK_SECONDS:
                                live.looked = inf
                                tasks.start_soon(self._look_at_disk, live)
                            await self._look_at(live)
                        if time.monotonic() - swept > SWEEP_SECONDS:
                            swept = time.monotonic()
                            await self._sweep()

    async def _look_at(self, live: _HeldSession) -> None:
        if live.lock.locked():
            return
        if live.place is None:
            del self._live[live.key]  # all that there is to know of it is in the store
            return
        async with live.lock:
            idle = time.monotonic() - live.used
            row = await self._rows.get(live.key)
            if idle > live.session.stop_seconds or not live.is_there or row is None or row.wanted:
                await self._stop(live)
            elif live.stage is not None and idle > live.session.idle_seconds:
                await live.end_cli()
                await self._rows.set_state(live.key, "resting")

    async def _look_at_disk(self, live: _HeldSession) -> None:
        with _told():
            place = live.place
            try:
                why = "" if place is None else await self._seen_in(live, place)
            finally:
                live.looked = time.monotonic()
                live.rest()
            if not why:
                return
            log.warning("%s is stopped: %s", live.key.text, why)
            async with live.lock:
                if live.place is place:
                    await self._stop(live)

    async def _seen_in(self, live: _HeldSession, place: _KeptContainer) -> str:
        """Why the container has to be stopped, if it has to be."""
        if live.at_rest and await place.processor.was_busy() and live.at_rest:
            # A process can have the kernel continue it, by a timer of its own.
            return "something in it does not stand still between calls"
        hit = await place.disk.look()
        place.processor.forget()  # the look itself computes
        if live.at_rest:
            await place.processor.was_busy()
        return "" if hit is None else hit.message

    async def _stop(self, live: _HeldSession) -> None:
        if live.place is None:
            return
        try:
            await live.end_container()
        finally:
            await self._rows.set_state(live.key, "stopped")

    async def _sweep(self) -> None:
        for row in await self._rows.all():
            if row.expires < time.time():
                try:
                    await self._runtime.forget(row.kept)
                except (EngineConflict, NameTaken):
                    log.debug("%s has expired, but is in use", row.key.text)
                else:
                    await self._rows.remove(row.key, expired=True)


UNCLAIMED = (
    "a new conversation has begun; an older {key} is there that belongs to no project yet: "
    "`orchestrator sessions adopt {key}` takes it over"
)

GONE = "the conversation of before is gone with its files; a new one has begun"


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong between calls is logged: no caller waits for it, and it is tried again."""
    try:
        yield
    except OrchestratorError as exc:
        log.warning("sessions cannot be looked after: %s", exc)
    except Exception:
        log.exception("sessions cannot be looked after")


def _state(live: _HeldSession) -> SessionState:
    if live.stage is not None:
        return "ready"
    return "resting" if live.is_there else "stopped"


async def _may_be_there(container: Container, path: str | None) -> bool:
    if path is None:
        return True
    done = await container.run(Launch(argv=("test", "-s", path), errand=True))
    return done.code == 0
