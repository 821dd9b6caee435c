"""`orchestrator connect`, without the library of command lines and the SDK of MCP: a client waits.

What only a server needs is never loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.surfaces.cli.failures import LogLines, exit_with

if TYPE_CHECKING:
    from orchestrator.settings import Settings


def connect_at_once(args: Sequence[str]) -> None:
    """Relay for one client and exit, if that is all that a command line asks for."""
    match args:
        case ["connect"]:
            url = ""
        case ["connect", str(text)] if text and not text.startswith("-"):
            url = text
        case _:
            return

    def command() -> int:
        connect_stdio(url)
        return 0

    exit_with(command, as_json=False, is_process=True)


def connect_stdio(url: str) -> None:
    """Relay for the client on stdin and stdout, until it leaves."""
    import anyio

    from orchestrator.errors import OperatorError
    from orchestrator.settings import read_settings

    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    settings = read_settings(flags={"server": url or None})
    if not settings.server:
        raise OperatorError("which orchestrator? name its address: orchestrator connect URL")
    anyio.run(_serve, settings)


async def _serve(settings: Settings) -> None:
    from orchestrator.client.connection import connection_to
    from orchestrator.surfaces.connect.local_half import LocalHalf
    from orchestrator.surfaces.connect.relay import Relay
    from orchestrator.surfaces.connect.stdio_lines import Lines, received_messages

    connection = connection_to(settings)
    try:
        local = LocalHalf(settings, connection)
        async with received_messages() as received:
            await Relay(connection, local, Lines().send).serve(received)
        await local.leave()
    finally:
        await connection.aclose()
