"""Which of a caller's clients calls, its name and a short id, and in which trace it does."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Any

from mcp.server import ServerRequestContext

from orchestrator.domain.window import WINDOW, called_within, valid_traceparent
from orchestrator.telemetry.current import current_traceparent

CLIENT_CHARS = 40
ID_DIGITS = 4

SESSION_HEADER = "mcp-session-id"


class Windows:
    """Notes for each call from which connection it comes."""

    def __init__(self) -> None:
        self._own = secrets.token_hex(ID_DIGITS)[:ID_DIGITS]
        """Of the one client on stdin and stdout."""

    async def note(self, ctx: ServerRequestContext[Any], call_next: Any) -> Any:
        """Middleware: in a call, WINDOW is its client."""
        token = WINDOW.set(self._window(ctx))
        try:
            return await call_next(ctx)
        finally:
            WINDOW.reset(token)

    def _window(self, ctx: ServerRequestContext[Any]) -> str:
        client = ctx.session.client_params
        name = _in_form(client.client_info.name) if client is not None else ""
        headers = getattr(ctx.request, "headers", None)
        if headers is None:
            return f"{name or 'client'} {self._own}"
        session = headers.get(SESSION_HEADER)  # which is the key to the session: never shown
        digest = hashlib.sha256(session.encode()).hexdigest()[:ID_DIGITS] if session else ""
        return f"{name or 'client'} {digest}".strip()


def _in_form(name: str) -> str:
    """A client's name is its own choice: letters, digits and a few marks are taken of it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:CLIENT_CHARS].strip("-")


TRACEPARENT_FIELD = "traceparent"
"""In `_meta`, and among the headers."""


async def within_trace(ctx: ServerRequestContext[Any], call_next: Any) -> Any:
    """Middleware: runs that a call begins are part of its trace. The SDK has read `_meta` by now,
    and made a span of the call's own, where there is somebody to make it.
    """
    with called_within(_given(ctx) or current_traceparent()):
        return await call_next(ctx)


def _given(ctx: ServerRequestContext[Any]) -> str:
    """What a header says, if `_meta` says nothing."""
    if valid_traceparent((ctx.meta or {}).get(TRACEPARENT_FIELD)):
        return ""
    headers = getattr(ctx.request, "headers", None)
    return valid_traceparent(headers.get(TRACEPARENT_FIELD)) if headers is not None else ""
