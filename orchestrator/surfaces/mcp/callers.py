"""Who calls is known of the connection. What a call says besides is checked, and never believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mcp.types as t
from mcp import MCPError

from orchestrator.errors import CallerError, CallerMissing, CallerRefused
from orchestrator.surfaces.mcp.answers.answer import refused
from orchestrator.surfaces.mcp.arguments import WhoCalls
from orchestrator.surfaces.mcp.notices import McpRequest
from orchestrator.surfaces.text import shortened

if TYPE_CHECKING:
    from orchestrator.engine.service import Service

CALLER_CHARS = 60
"""Of an agent_id that is not taken."""

MAX_REFUSED_CALLS = 1000
"""That are written down in one process: a client can make as many as it likes."""

ANSWERED_TO_ALL = frozenset(("initialize", "server/discover", "ping", "tools/list"))
"""Methods that need no caller: whoever cannot see a tool cannot read either why it is refused."""


def true_caller(service: Service, who_calls: WhoCalls) -> Any:
    """Middleware: a call by nobody, where the operator wants a name, is in the audit; so is one
    whose `agent_id` says another name, which is refused.

    Other servers find out by an `agent_id` who calls. Here it is taken if it is true; one that is
    not could only ask for what another caller may do.
    """
    left = MAX_REFUSED_CALLS

    async def note(what: str, caller: str, refused: CallerError) -> None:
        nonlocal left
        if left:
            left -= 1
            await service.note_call(what, caller, refused)

    async def check(ctx: McpRequest, call_next: Any) -> Any:
        params = ctx.params or {}
        what = str(params.get("name") or params.get("uri") or ctx.method)
        if ctx.method in ANSWERED_TO_ALL or ctx.method.startswith("notifications/"):
            return await call_next(ctx)
        try:
            caller = who_calls()
        except CallerMissing as exc:
            await note(what, "", exc)
            if ctx.method == "tools/call":
                return refused(exc)
            raise MCPError(code=t.INVALID_REQUEST, message=str(exc)) from exc
        arguments = params.get("arguments")
        if ctx.method != "tools/call" or not isinstance(arguments, Mapping):
            return await call_next(ctx)
        if "agent_id" not in arguments:
            return await call_next(ctx)
        given = arguments["agent_id"]
        if given not in (None, "", caller):
            said = CallerRefused(
                f"agent_id is {shortened(str(given), CALLER_CHARS)!r}, but you call as {caller!r}: "
                "the server's settings or your token say who calls; leave agent_id out"
            )
            await note(what, caller, said)
            return refused(said)
        others = {name: value for name, value in arguments.items() if name != "agent_id"}
        return await call_next(replace(ctx, params={**params, "arguments": others}))

    return check
