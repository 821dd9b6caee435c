"""Servers of tools for agents outside: one instance for each connection and agent, from the same
pool as those of runs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from orchestrator.domain.tool_lock import JsonMap
from orchestrator.domain.tool_server import ToolServer
from orchestrator.engine.outside.outside_service import OutsideConnection, UpstreamCall
from orchestrator.engine.record import CLEANED_HERE
from orchestrator.errors import (
    GatewayRefused,
    OrchestratorError,
    ServerUnavailable,
    ToolChanged,
    ToolTimeout,
)
from orchestrator.gateway.tools.pool import (
    CallFailed,
    OnProgress,
    ServerPool,
    Sharers,
    WantedServer,
)
from orchestrator.gateway.tools.results import PROGRESS_CHARS, one_line
from orchestrator.redaction import Redactor, clean_json

if TYPE_CHECKING:
    from orchestrator.gateway.tools.live_server import LiveServer

MAX_PROGRESS = 1000
"""Of one call that is passed on: a server can say how far it is as often as it likes, and a client
writes it all down."""

MAX_OUTSIDE_INSTANCES = 64
"""Of all connections together: each is a container, and clients open as many sessions as they
like."""


class BrokeredUpstreams:
    """OutsideUpstreams (engine/outside/outside_service.py): servers as runs have them."""

    def __init__(self, pool: ServerPool, project: str) -> None:
        self._pool = pool
        self._project = project
        self._used: defaultdict[str, set[Sharers]] = defaultdict(set)
        """By session: what was started for it."""
        self._redactors: WeakKeyDictionary[LiveServer, tuple[tuple[str, ...], Redactor]] = (
            WeakKeyDictionary()
        )

    async def call(self, call: UpstreamCall) -> JsonMap:
        with anyio.move_on_after(call.seconds):
            try:
                return await self._called(call)
            except GatewayRefused:
                raise
            except OrchestratorError as exc:
                raise ServerUnavailable(str(exc)) from exc
        raise ToolTimeout(
            f"{call.subject} has not answered within {(call.seconds or 0) * 1000:g} ms; it may "
            "have acted all the same"
        )

    async def end(self, session: str) -> None:
        for scope in self._used.pop(session, ()):
            await self._pool.end(scope)

    async def _called(self, call: UpstreamCall) -> JsonMap:
        server = call.known.server
        scope = self._scope(server, call.connection, call.agent)
        wanted = WantedServer(server, call.known.lock, scope)
        self._make_room(wanted)
        if scope.kind != "project":
            self._used[call.connection.session].add(scope)
        async with self._pool.lease(wanted) as live:
            if call.tool in live.drift.changed:
                raise ToolChanged(
                    f"{call.subject} is not the tool that was pinned, and is not called; the "
                    f"operator looks at it with: orchestrator servers diff {server.name}"
                )
            try:
                answer = await _patiently(call, live, self._without_secrets(live, call.on_progress))
            except CallFailed as exc:
                if live.loss.happened.is_set():
                    why = self._redactor(live).text(live.loss.why)
                    raise ServerUnavailable(f"the server {server.name} is gone: {why}") from exc
                answer = _said(f"the server answered with an error: {exc}")
            redactor = self._redactor(live)
        clean = await anyio.to_thread.run_sync(clean_json, answer, redactor.text)
        return clean if isinstance(clean, dict) else {}

    def _scope(self, server: ToolServer, connection: OutsideConnection, agent: str) -> Sharers:
        if server.share == "project":
            return Sharers("project", self._project)
        kind = "run" if connection.lasting else "session"
        return Sharers(kind, f"outside {connection.session} {agent}")

    def _without_secrets(self, live: LiveServer, on_progress: OnProgress) -> OnProgress:
        left = MAX_PROGRESS

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                return
            if message is not None:
                clean = self._redactor(live).text
                if len(message) > CLEANED_HERE:
                    message = await anyio.to_thread.run_sync(clean, message)
                else:  # not in a thread, from which the next one may come back first
                    message = clean(message)
                message = one_line(message, PROGRESS_CHARS)
            await on_progress(progress, total, message)

        return heard

    def _redactor(self, live: LiveServer) -> Redactor:
        """What hides a server's secrets. To make one takes longer than most calls, and tokens are
        renewed.
        """
        secrets = live.secrets()
        known = self._redactors.get(live)
        if known is None or known[0] != secrets:
            known = self._redactors[live] = secrets, Redactor(secrets)
        return known[1]

    def _make_room(self, wanted: WantedServer) -> None:
        if not self._pool.has(wanted) and self._pool.running >= MAX_OUTSIDE_INSTANCES:
            raise ServerUnavailable(
                f"{MAX_OUTSIDE_INSTANCES} servers run for other sessions and agents already, and "
                f"{wanted.server.name} is not started; end a session, or try later"
            )


async def _patiently(call: UpstreamCall, live: LiveServer, on_progress: OnProgress) -> JsonMap:
    """What the server answers; ToolTimeout if it says nothing for as long as its file allows."""
    seconds = call.known.server.call_seconds
    with anyio.CancelScope() as scope:

        def renew() -> None:
            scope.deadline = anyio.current_time() + seconds

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            renew()
            await on_progress(progress, total, message)

        renew()
        return await live.call(call.tool, call.arguments, heard)
    raise ToolTimeout(
        f"{call.subject} has not answered within {seconds:g} s; it may have acted all the same"
    )


def _said(text: str) -> JsonMap:
    return {"content": [{"type": "text", "text": text}], "isError": True}
