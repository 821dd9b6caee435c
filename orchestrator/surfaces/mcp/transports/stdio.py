"""MCP on stdin and stdout: one client, until it leaves or a signal says so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterable
from contextlib import suppress

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from orchestrator.access import own_caller
from orchestrator.domain.words import CLIENT_LEFT, STOPPED
from orchestrator.settings import Settings
from orchestrator.state import check_state
from orchestrator.surfaces.mcp.transports.served import OpenServed, Served, orchestrator_served

_Messages = AsyncIterable[SessionMessage | Exception]
_Hears = MemoryObjectSendStream[SessionMessage | Exception]


async def serve(settings: Settings, open_served: OpenServed = orchestrator_served) -> None:
    """Serve until stdin ends, SIGTERM or SIGINT; runs under way are cancelled, containers gone."""
    # First: the thread that reads stdin waits for the client, and would keep an error from it.
    await anyio.to_thread.run_sync(check_state, settings)
    async with stdio_server() as (reader, writer), anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()
        try:
            async with open_served(settings, lambda: own_caller(settings), {}) as served:
                low = served.server._lowlevel_server  # noqa: SLF001 its public run() minds no signal
                options = low.create_initialization_options()
                heard, hears = anyio.create_memory_object_stream[SessionMessage | Exception]()
                with scope:
                    tasks.start_soon(_cancel_on_signal, scope, served)
                    tasks.start_soon(_pass_on, reader, heard, served)
                    async with anyio.create_task_group() as beside:  # it uses what is closed next
                        for work in served.beside:
                            beside.start_soon(work)
                        await low.run(hears, writer, options)
                        beside.cancel_scope.cancel()
        finally:
            if scope.cancel_called:  # a signal came, and whatever its cancellation turned into
                # The thread that reads stdin cannot be interrupted; all that is ours is closed.
                sys.stderr.flush()
                os._exit(0)
        tasks.cancel_scope.cancel()


async def _pass_on(reader: _Messages, heard: _Hears, served: Served) -> None:
    """Pass on what the client says until it leaves: the server ends its calls at once, and their
    runs are to say why.
    """
    with heard, suppress(anyio.BrokenResourceError):  # told to stop, the server listens no more
        async for message in reader:
            await heard.send(message)
        served.leave(CLIENT_LEFT)


async def _cancel_on_signal(scope: anyio.CancelScope, served: Served) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            served.leave(STOPPED)
            scope.cancel()
