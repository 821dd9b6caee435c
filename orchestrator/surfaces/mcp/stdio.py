"""MCP on stdin and stdout: one client, until it leaves or a signal says so."""

from __future__ import annotations

import os
import signal
import sys

import anyio
from mcp.server.stdio import stdio_server

from orchestrator.app import open_tasks, own_caller
from orchestrator.settings import Settings
from orchestrator.surfaces.mcp.server import build_server


async def serve(settings: Settings) -> None:
    """Serve until stdin ends, SIGTERM or SIGINT; runs under way are cancelled, containers gone."""
    async with stdio_server() as (reader, writer), anyio.create_task_group() as tasks:
        async with open_tasks(settings) as (service, runs):
            server, watch = build_server(service, runs, lambda: own_caller(settings), settings)
            low = server._lowlevel_server  # noqa: SLF001 its public run() minds no signal
            options = low.create_initialization_options()
            with anyio.CancelScope() as scope:
                tasks.start_soon(_cancel_on_signal, scope)
                tasks.start_soon(watch)
                tasks.start_soon(service.keep_warm)
                await low.run(reader, writer, options)
        if scope.cancelled_caught:
            # The thread that reads stdin cannot be interrupted; all that is ours is closed.
            sys.stderr.flush()
            os._exit(0)
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
