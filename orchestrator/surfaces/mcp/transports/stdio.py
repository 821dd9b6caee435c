"""MCP on stdin and stdout: one client, until it leaves or a signal says so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterable

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from orchestrator.app import open_tasks, own_caller
from orchestrator.engine.tasks.tasks import CLIENT_LEFT, STOPPED, Tasks
from orchestrator.settings import Settings
from orchestrator.surfaces.mcp.server import build_server

_Messages = AsyncIterable[SessionMessage | Exception]
_Hears = MemoryObjectSendStream[SessionMessage | Exception]


async def serve(settings: Settings) -> None:
    """Serve until stdin ends, SIGTERM or SIGINT; runs under way are cancelled, containers gone."""
    async with stdio_server() as (reader, writer), anyio.create_task_group() as tasks:
        async with open_tasks(settings) as (service, runs):
            server, watch = build_server(service, runs, lambda: own_caller(settings), settings)
            low = server._lowlevel_server  # noqa: SLF001 its public run() minds no signal
            options = low.create_initialization_options()
            heard, hears = anyio.create_memory_object_stream[SessionMessage | Exception]()
            with anyio.CancelScope() as scope:
                tasks.start_soon(_cancel_on_signal, scope, runs)
                tasks.start_soon(watch)
                tasks.start_soon(service.keep_warm)
                runs.serve()
                tasks.start_soon(_pass_on, reader, heard, runs)
                await low.run(hears, writer, options)
        if scope.cancelled_caught:
            # The thread that reads stdin cannot be interrupted; all that is ours is closed.
            sys.stderr.flush()
            os._exit(0)
        tasks.cancel_scope.cancel()


async def _pass_on(reader: _Messages, heard: _Hears, runs: Tasks) -> None:
    """Pass on what the client says until it leaves: the server ends its calls at once, and their
    runs are to say why.
    """
    with heard:
        async for message in reader:
            await heard.send(message)
        runs.leave(CLIENT_LEFT)


async def _cancel_on_signal(scope: anyio.CancelScope, runs: Tasks) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            runs.leave(STOPPED)
            scope.cancel()
