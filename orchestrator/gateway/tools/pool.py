"""Instances of servers: started once, however many call at once, and ended with who uses them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from orchestrator.domain.tool_lock import JsonMap, ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.errors import OrchestratorError, ServerFailed

if TYPE_CHECKING:
    from orchestrator.gateway.tools.live_server import LiveServer

log = logging.getLogger(__name__)

MAX_STARTS = 5
"""Of one instance within STARTS_SECONDS, for those who share it: a server that ends with every call
is given up."""

STARTS_SECONDS = 600.0
"""A server that lives for so long may fail once more."""

RELIST_SECONDS = 1.0
"""Between two looks at the list of a server that says that it has changed."""

INSTANCE_CLOSE_SECONDS = 30.0
"""For a server and its container to end."""

Elicit = Callable[[str, JsonMap], Awaitable[JsonMap | None]]
"""What a server wants to know, and the answer's schema -> the answer; None if there is none."""


class OnProgress(Protocol):
    """Told how far a server is with a call."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


OnChanged = Callable[[], Coroutine[Any, Any, None]]


class CallFailed(Exception):
    """A server answered with an error, or not at all. The text is the server's, a stranger's."""


class Drift(NamedTuple):
    """What of a server is not as it was pinned."""

    changed: frozenset[str] = frozenset()
    """Tools that say something else now, or are gone."""
    new: frozenset[str] = frozenset()


class Loss:
    """Whether a server is gone, and why."""

    def __init__(self) -> None:
        self.happened = anyio.Event()
        self.why = ""
        self.last_words: Callable[[], str] = str
        """What it complained of last, without what is secret."""

    def tell(self, why: str) -> None:
        """It is gone. Its own words are in quotes: a model reads this, as a sentence of ours."""
        if self.happened.is_set():
            return
        said = self.last_words()
        self.why = f"{why}, and said last: {json.dumps(said, ensure_ascii=False)}" if said else why
        self.happened.set()


class Sharers(NamedTuple):
    """Who shares an instance."""

    kind: str
    """run, session or project."""
    key: str


@dataclass(frozen=True)
class WantedServer:
    """An instance, as those who open it have to know it."""

    server: ToolServer
    lock: ToolLock | None
    """What it was pinned with; None to find that out."""
    scope: Sharers
    elicit: Elicit | None = None
    """Whom the server may ask something; None, and it is told that it cannot."""

    @property
    def key(self) -> tuple[Sharers, str, str]:
        return self.scope, self.server.digest, "" if self.lock is None else self.lock.digest


Open = Callable[[WantedServer, OnChanged], "AbstractAsyncContextManager[LiveServer]"]
"""Starts a server and greets it."""

OnDrift = Callable[["LiveServer"], None]
"""Told when a server's tools are not those that were pinned."""


@dataclass(eq=False)
class _Instance:
    wanted: WantedServer
    ready: asyncio.Future[LiveServer]
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stop: anyio.Event = field(default_factory=anyio.Event)
    users: int = 0
    idle: asyncio.TimerHandle | None = None
    elicit: Elicit | None = None
    listeners: list[OnDrift] = field(default_factory=list)
    changed: bool = False
    """It said that its list has changed, and nobody has looked since."""
    comparing: bool = False
    late: bool = False
    """It took too long to start."""

    @property
    def usable(self) -> bool:
        if self.stop.is_set() or self.life.cancel_called:
            return False
        if not self.ready.done():
            return True
        return self.ready.exception() is None and not self.ready.result().loss.happened.is_set()


class ServerPool:
    """All instances of this process."""

    def __init__(self, open_server: Open) -> None:
        self._open = open_server
        self._instances: dict[tuple[Sharers, str, str], _Instance] = {}
        self._starts: dict[tuple[Sharers, str, str], list[float]] = {}
        """When each was started, of late."""
        self._alive: dict[asyncio.Task[None], _Instance] = {}
        """Those too that are ending, while another has taken their place."""

    @asynccontextmanager
    async def lease(
        self, wanted: WantedServer, on_drift: OnDrift | None = None
    ) -> AsyncIterator[LiveServer]:
        """An instance to be asked; it is started if there is none. ServerFailed if it cannot be."""
        instance = self._instances.get(wanted.key)
        if instance is None or not instance.usable:
            instance = self._start(wanted)
        if instance.idle is not None:
            instance.idle.cancel()
        instance.users += 1
        if wanted.scope.kind != "project":
            instance.elicit = wanted.elicit
        if on_drift is not None:
            instance.listeners.append(on_drift)
        try:
            upstream = await asyncio.shield(instance.ready)
            if on_drift is not None:
                on_drift(upstream)
            yield upstream
        finally:
            instance.users -= 1
            if on_drift is not None:
                instance.listeners.remove(on_drift)
            self._rest(instance)

    async def end(self, scope: Sharers) -> None:
        """End all instances of those who share them; nothing of them is left."""
        mine = {task: one for task, one in self._alive.items() if one.wanted.scope == scope}
        self._starts = {key: at for key, at in self._starts.items() if key[0] != scope}
        await self._ended(mine)

    async def aclose(self) -> None:
        await self._ended(dict(self._alive))

    def has(self, wanted: WantedServer) -> bool:
        """Whether an instance is there that this would be."""
        return wanted.key in self._instances

    @property
    def running(self) -> int:
        """How many there are, those that start included."""
        return len(self._instances)

    async def _ended(self, tasks: Mapping[asyncio.Task[None], _Instance]) -> None:
        for instance in tasks.values():
            self._end(instance)
        with anyio.move_on_after(INSTANCE_CLOSE_SECONDS, shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, wanted: WantedServer) -> _Instance:
        of_late = _now() - STARTS_SECONDS
        starts = [at for at in self._starts.get(wanted.key, ()) if at > of_late]
        if len(starts) >= MAX_STARTS:
            raise ServerFailed(
                f"the server {wanted.server.name} has ended {MAX_STARTS} times by itself, and is "
                f"not started again for {STARTS_SECONDS / 60:.0f} minutes"
            )
        self._starts[wanted.key] = [*starts, _now()]
        loop = asyncio.get_running_loop()
        instance = _Instance(wanted, loop.create_future(), elicit=wanted.elicit)
        # No task may have waited for it: its end is not an error that was lost.
        instance.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._instances[wanted.key] = instance
        task = loop.create_task(self._live(instance))
        self._alive[task] = instance
        task.add_done_callback(self._alive.pop)
        return instance

    def _rest(self, instance: _Instance) -> None:
        """Of one that is shared over runs: end it if nobody has used it for a while."""
        if instance.users or instance.wanted.scope.kind == "run":
            return
        loop = asyncio.get_running_loop()
        seconds = instance.wanted.server.idle_seconds
        instance.idle = loop.call_later(seconds, self._end_idle, instance)

    def _end_idle(self, instance: _Instance) -> None:
        if not instance.users:
            self._starts.pop(instance.wanted.key, None)
            self._end(instance)

    def _end(self, instance: _Instance) -> None:
        if instance.idle is not None:
            instance.idle.cancel()
        if self._instances.get(instance.wanted.key) is instance:
            del self._instances[instance.wanted.key]
        instance.stop.set()
        if not instance.ready.done():
            instance.life.cancel()

    async def _live(self, instance: _Instance) -> None:
        """One instance, from its start to its end."""
        wanted, name = instance.wanted, instance.wanted.server.name
        problem: OrchestratorError | None = None
        timer = asyncio.get_running_loop().call_later(
            wanted.server.start_seconds, self._too_late, instance
        )
        try:
            with instance.life:
                async with self._open(self._asking(instance), self._changed(instance)) as upstream:
                    if wanted.lock is not None:
                        await upstream.compare(wanted.lock)
                    timer.cancel()
                    instance.ready.set_result(upstream)
                    await _first_of(instance.stop, upstream.loss.happened)
        except Exception as exc:
            problem = _ours(exc)
            if problem is None:
                log.exception("the server %s failed", name)
        finally:
            timer.cancel()
            if self._instances.get(wanted.key) is instance:
                del self._instances[wanted.key]
            if not instance.ready.done():
                late = f"it did not answer within {wanted.server.start_seconds:g} s"
                why = late if instance.late else "it was stopped, or failed as the log says"
                failed = ServerFailed(f"the server {name} could not be started: {why}")
                instance.ready.set_exception(problem or failed)

    def _too_late(self, instance: _Instance) -> None:
        if not instance.ready.done():
            instance.late = True
            instance.life.cancel()

    def _asking(self, instance: _Instance) -> WantedServer:
        """The same, asking whoever uses it at that moment."""
        wanted = instance.wanted
        if wanted.elicit is None or wanted.scope.kind == "project":
            return WantedServer(wanted.server, wanted.lock, wanted.scope)

        async def elicit(message: str, schema: JsonMap) -> JsonMap | None:
            if not instance.users or instance.elicit is None:
                return None
            return await instance.elicit(message, schema)

        return WantedServer(wanted.server, wanted.lock, wanted.scope, elicit)

    def _changed(self, instance: _Instance) -> OnChanged:
        async def compare() -> None:
            """Look at the list, and once more if it has changed meanwhile."""
            lock, instance.changed = instance.wanted.lock, True
            if lock is None or instance.comparing:
                return
            instance.comparing = True
            try:
                upstream = await asyncio.shield(instance.ready)
                while instance.changed:
                    instance.changed = False
                    await upstream.compare(lock)
                    for listener in tuple(instance.listeners):
                        listener(upstream)
                    await anyio.sleep(RELIST_SECONDS)
            except OrchestratorError as exc:  # whatever its tools are now, no person has read them
                log.info("%s", exc)
                if instance.ready.done() and instance.ready.exception() is None:
                    instance.ready.result().loss.tell("it does not tell how its tools have changed")
            finally:
                instance.comparing = False

        return compare


async def _first_of(*events: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        for event in events:
            tasks.start_soon(_then_cancel, event, tasks.cancel_scope)


async def _then_cancel(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _now() -> float:
    return anyio.current_time()


def _ours(exc: BaseException) -> OrchestratorError | None:
    """The error that can be told, of those that task groups have put together."""
    if isinstance(exc, OrchestratorError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        return next((found for each in exc.exceptions if (found := _ours(each))), None)
    return None
