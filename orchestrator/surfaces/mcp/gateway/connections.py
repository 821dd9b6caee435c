"""Which connection a call comes through, and whose state it is that servers keep for it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context

from orchestrator.engine.outside.outside_service import OutsideConnection
from orchestrator.outside_access import OutsideCaller
from orchestrator.surfaces.mcp.arguments import WhoCalls

SESSION_NAME = "orchestrator.session"
"""Where a connection's own name is kept, which no client knows."""


class Connections:
    """Call -> its connection."""

    def __init__(self, who_calls: WhoCalls, end: Callable[[str], Awaitable[None]]) -> None:
        """`end` is told of a session that has ended."""
        self._who_calls = who_calls
        self._end = end
        self._own = f"stdio {secrets.token_hex(8)}"

    def of(self, ctx: Context[Any]) -> OutsideConnection:
        if ctx.headers is None:  # on stdin and stdout there is one client, as long as we live
            caller = OutsideCaller(name=self._who_calls(), by="process")
            return OutsideConnection(caller=caller, session=self._own, lasting=True)
        known = "token" if get_access_token() is not None else "nothing"
        caller = OutsideCaller(name=self._who_calls(), by=known)
        connection = ctx.session._connection  # noqa: SLF001 there is no public way
        if connection.session_id is None:  # since 2026-07-28 a client has no session over HTTP
            return OutsideConnection(caller=caller, session=f"of {caller.name}", lasting=False)
        if SESSION_NAME not in connection.state:
            connection.state[SESSION_NAME] = f"http {secrets.token_hex(8)}"
            connection.exit_stack.push_async_callback(self._end, connection.state[SESSION_NAME])
        session: str = connection.state[SESSION_NAME]
        return OutsideConnection(caller=caller, session=session, lasting=True)
