"""What a transport serves: an MCP server, and what goes with it while it is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.lowlevel
from mcp.server import MCPServer

from orchestrator.settings import Settings
from orchestrator.surfaces.mcp.arguments import WhoCalls
from orchestrator.surfaces.mcp.late_service import LateService
from orchestrator.surfaces.mcp.server import build_server
from orchestrator.surfaces.metrics_port import serve_metrics

if TYPE_CHECKING:
    from mcp.server.transport_security import TransportSecuritySettings

    from orchestrator.app import Watching
    from orchestrator.surfaces.http.api import Api

Beside = Callable[[], Coroutine[Any, Any, None]]
"""What runs as long as the server does."""


class Served(NamedTuple):
    """An MCP server that can be called."""

    server: MCPServer[Any]
    beside: tuple[Beside, ...]
    leave: Callable[[str], None]
    """Told why all calls are about to be cancelled."""
    note_stranger: Callable[[str, str], Awaitable[None]]
    """Writes down where a request came from that was refused before anybody knew whose, and why."""
    web: Callable[[TransportSecuritySettings], Api] | None = None
    """What else is served over HTTP, for hosts and origins that are allowed."""
    open: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
    """Opens what is left for later: until then calls wait. OrchestratorError if it cannot be."""


OpenServed = Callable[[Settings, WhoCalls, Mapping[str, Any]], AbstractAsyncContextManager[Served]]
"""Settings, who calls, and how the SDK finds that out -> what is served."""


@asynccontextmanager
async def orchestrator_served(
    settings: Settings,
    who_calls: WhoCalls,
    auth: Mapping[str, Any],
    metrics_at: socket.socket | None = None,
) -> AsyncIterator[Served]:
    """All that runs agents, for a main agent; it is opened when a request needs it, or soon. On the
    socket, whoever asks is told numbers.
    """
    async with (
        _watching(settings, metrics=metrics_at is not None) as watching,
        _opened_late(settings, who_calls, auth, watching) as served,
    ):
        if metrics_at is None or watching is None or watching.metrics is None:
            yield served
            return
        tell = partial(serve_metrics, metrics_at, watching.metrics)
        yield served._replace(beside=(*served.beside, tell))


@asynccontextmanager
async def _watching(settings: Settings, *, metrics: bool) -> AsyncIterator[Watching | None]:
    """Who watches the runs, before the first call: that is part of a trace too. Nothing is loaded
    for it unless somebody does.
    """
    if not (settings.otlp_endpoint or metrics or settings.log_json):
        yield None
        return
    from orchestrator.app import open_watching

    async with open_watching(settings, metrics=metrics, logs=settings.log_json) as watching:
        yield watching


@asynccontextmanager
async def _opened_late(
    settings: Settings, who_calls: WhoCalls, auth: Mapping[str, Any], watching: Watching | None
) -> AsyncIterator[Served]:
    late = LateService(settings, watching)
    service = late.service
    server, watch = build_server(service, late.tasks, who_calls, settings, late=late, **auth)
    async with late.held() as holder:

        async def keep_warm() -> None:
            await late.until_open()
            await service.keep_warm()

        async def until_broken() -> None:
            await asyncio.wait([holder])
            holder.result()

        async def note_stranger(where: str, why: str) -> None:
            await service.note_stranger(where, why)

        async def tell_webhooks() -> None:
            if settings.webhooks:
                from orchestrator.app import webhook_delivery

                await late.until_open()
                await webhook_delivery(settings, service.store).serve()

        def web(allowed: TransportSecuritySettings) -> Api:
            from orchestrator.surfaces.http.api import Api, Behind  # stdin and stdout need neither

            return Api(Behind(settings, service, late.tasks, late.open, note_stranger), allowed)

        beside = (watch, keep_warm, until_broken, tell_webhooks)
        yield Served(server, beside, late.leave, note_stranger, web, late.open)
