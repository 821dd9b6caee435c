"""What a transport serves: an MCP server, and what goes with it while it is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

from mcp.server import MCPServer

from orchestrator.app import open_tasks
from orchestrator.settings import Settings
from orchestrator.surfaces.mcp.arguments import WhoCalls
from orchestrator.surfaces.mcp.server import build_server

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


OpenServed = Callable[[Settings, WhoCalls, Mapping[str, Any]], AbstractAsyncContextManager[Served]]
"""Settings, who calls, and how the SDK finds that out -> what is served."""


@asynccontextmanager
async def orchestrator_served(
    settings: Settings, who_calls: WhoCalls, auth: Mapping[str, Any]
) -> AsyncIterator[Served]:
    """All that runs agents, for a main agent."""
    async with open_tasks(settings) as (service, runs):
        server, watch = build_server(service, runs, who_calls, settings, **auth)
        runs.serve()
        beside = (watch, service.keep_warm)
        yield Served(server, beside, runs.leave, service.note_stranger)
