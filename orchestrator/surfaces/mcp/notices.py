"""Tells clients of both protocol eras what has changed: the agents there are, and runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import anyio
import mcp.types as t
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated, ToolsListChanged

from orchestrator.errors import StoreFailed
from orchestrator.surfaces.text import quoted

if TYPE_CHECKING:
    from orchestrator.catalog import AgentsDir
    from orchestrator.engine.service import Service
    from orchestrator.engine.tasks.tasks import Tasks

log = logging.getLogger(__name__)

WATCHED_SECONDS = 1.0
"""How often agents/, and the runs that clients watch, are looked at."""

NOTICE_SECONDS = 5.0
"""For one client to take the notice of a change; a client that does not read misses it."""

MAKE_ONE = "`orchestrator init` makes an example, --agents-dir names another directory"

TOLD_DOUBTS = 10
"""So many warnings are told in full."""

MODERN_ERA = "2026"
"""Versions below have sessions: they take notices on them, and requests of ours in the middle of a
call. Later ones subscribe, and are called again.
"""

MAX_WATCHED = 200
"""Of resources, for one client."""

McpRequest = ServerRequestContext[Any]


def is_modern(ctx: McpRequest) -> bool:
    """Whether the client speaks a version without sessions."""
    return ctx.protocol_version >= MODERN_ERA


class ChangeNotices:
    """When agents came, went or changed."""

    def __init__(self, service: Service, bus: InMemorySubscriptionBus) -> None:
        self._agents = service.agents
        self._bus = bus
        self._connections: WeakSet[Connection] = WeakSet()

    async def remember(self, ctx: McpRequest, call_next: Any) -> Any:
        """Middleware: know which clients to tell, and promise it in the handshake."""
        if not is_modern(ctx):
            self._connections.add(_connection(ctx))
        result = await call_next(ctx)
        if ctx.method == "initialize":
            capabilities = {**result["capabilities"], "tools": {"listChanged": True}}
            return {**result, "capabilities": capabilities}
        return result

    async def watch(self) -> None:
        """Look at agents/ for ever; tell its operator of what cannot be used, and why."""
        told = set(_told(self._agents, set()))
        seen = self._agents.version
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(WATCHED_SECONDS)
                self._agents.current()
                if self._agents.version == seen:
                    continue
                seen = self._agents.version
                told |= set(_told(self._agents, told))
                await self._bus.publish(ToolsListChanged())
                for connection in list(self._connections):
                    if connection.initialized.is_set():
                        tasks.start_soon(_tell, connection.send_tool_list_changed)


def _told(agents: AgentsDir, before: Collection[str]) -> Iterator[str]:
    """Log what is wrong with the agents and was not told before."""
    catalog = agents.current()
    said = [f"this agent cannot be used: {problem}" for problem in catalog.problems]
    if not agents.path.is_dir():
        said = [f"there is no directory {agents.path}, so there are no agents; {MAKE_ONE}"]
    elif not catalog.agents and not said:
        said = [f"there are no agents in {agents.path}; {MAKE_ONE}"]
    said += [f"probably not meant: {doubt}" for doubt in catalog.doubts[:TOLD_DOUBTS]]
    if len(catalog.doubts) > TOLD_DOUBTS:
        said.append(f"{len(catalog.doubts)} warnings in all; see: orchestrator agents check")
    for line in said:
        if line not in before:
            log.warning("%s", quoted(line))
            yield line


class RunNotices:
    """When something has happened in a run, for clients that subscribed to its resources."""

    def __init__(self, service: Service, tasks: Tasks, bus: InMemorySubscriptionBus) -> None:
        self._service = service
        self._tasks = tasks
        self._bus = bus
        self._listened: Counter[str] = Counter()
        """Resources that streams of the newer era are about."""
        self._subscribed: WeakKeyDictionary[Connection, set[str]] = WeakKeyDictionary()
        self._seen: dict[str, object] = {}
        self._look: tuple[int, frozenset[str]] = (0, frozenset())
        """Version of the store and watched resources at the last look."""

    async def listening(self, uris: Iterable[str], ctx: McpRequest, call_next: Any) -> Any:
        """Serve a stream of the newer era: as long as it is open, these are watched."""
        mine = Counter(set(uris))
        self._listened += mine
        try:
            return await call_next(ctx)
        finally:
            self._listened -= mine

    async def subscribe(self, ctx: McpRequest, params: t.SubscribeRequestParams) -> t.EmptyResult:
        """The older era's way; whether this caller may has been checked."""
        watched = self._subscribed.setdefault(_connection(ctx), set())
        if len(watched) < MAX_WATCHED:
            watched.add(str(params.uri))
        return t.EmptyResult()

    async def unsubscribe(
        self, ctx: McpRequest, params: t.UnsubscribeRequestParams
    ) -> t.EmptyResult:
        self._subscribed.get(_connection(ctx), set()).discard(str(params.uri))
        return t.EmptyResult()

    async def watch(self, run_of: Callable[[str], str]) -> None:
        """Look at the watched runs for ever; `run_of` knows whose resource it is."""
        async with anyio.create_task_group() as tasks:
            while True:
                changed = self._service.news.next()
                try:
                    for uri in await self._changed(run_of):
                        await self._bus.publish(ResourceUpdated(uri=uri))
                        for connection, uris in list(self._subscribed.items()):
                            if uri in uris:
                                tasks.start_soon(_tell, connection.send_resource_updated, uri)
                except StoreFailed as exc:
                    log.warning("runs cannot be watched: %s", exc)
                with anyio.move_on_after(WATCHED_SECONDS):
                    await changed.wait()

    async def _changed(self, run_of: Callable[[str], str]) -> list[str]:
        """The watched resources whose run is not as it was at the last look."""
        watched = frozenset(self._listened).union(*self._subscribed.values())
        look = (await self._service.store.version(), watched)
        if look == self._look:  # nothing at all has been written since
            return []
        runs = {run_of(uri) for uri in watched}
        versions = await self._tasks.book.versions(runs) if runs else {}
        self._look = look  # now: a look that failed is taken again
        before = self._seen
        self._seen = {uri: versions.get(run_of(uri)) for uri in watched}
        return [uri for uri, now in self._seen.items() if before.get(uri, now) != now]


def _connection(ctx: McpRequest) -> Connection:
    # ctx.session is made for each request and gone after it; the connection stays.
    return ctx.session._connection  # noqa: SLF001 there is no public way


async def _tell(send: Callable[..., Awaitable[None]], *args: object) -> None:
    with anyio.move_on_after(NOTICE_SECONDS):
        await send(*args)
