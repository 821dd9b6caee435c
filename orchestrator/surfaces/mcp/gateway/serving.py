"""The gateway for agents outside as a transport serves it, with what keeps its rules fresh."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator.app import open_outside
from orchestrator.settings import Settings
from orchestrator.surfaces.mcp.arguments import WhoCalls
from orchestrator.surfaces.mcp.gateway.server import build_gateway
from orchestrator.surfaces.mcp.transports.served import Served

if TYPE_CHECKING:
    from orchestrator.catalog.rules_file import RulesFile

RULES_SECONDS = 1.0
"""Between two looks at the rules, so that a mistake is told though nobody calls."""


@asynccontextmanager
async def gateway_served(
    rules: RulesFile, settings: Settings, who_calls: WhoCalls, auth: Mapping[str, Any]
) -> AsyncIterator[Served]:
    """What agents outside are served."""

    async def watch() -> None:
        while True:
            rules.current()
            await anyio.sleep(RULES_SECONDS)

    async def reload() -> None:
        async for _ in signals:
            rules.reload()

    # Before anything is served: without a receiver, SIGHUP ends the process.
    with anyio.open_signal_receiver(signal.SIGHUP) as signals:
        async with open_outside(settings, rules) as service:
            server = build_gateway(service, who_calls, debug=settings.gateway_debug, **auth)
            yield Served(server, (watch, reload), lambda _: None, service.note_stranger)
