"""The scripted model behind a URL, for tests of what speaks HTTP to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.scripted import Script, ScriptedUpstream
from orchestrator.gateway.model.upstream import UpstreamRequest


class ScriptedServer:
    """The scripted model behind a URL, with a record of what it was asked."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.requests: list[HttpRequest] = []
        self._script = script
        self._conversations: dict[str, ScriptedUpstream] = {}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.requests.append(request)
        if request.method == "HEAD":
            return HttpResponse(200)
        session = request.header("x-claude-code-session-id")
        upstream = self._conversations.setdefault(session, ScriptedUpstream(self._script))
        held = AsyncExitStack()
        sent = UpstreamRequest(request.method, request.target, request.headers, request.body)
        response = await held.enter_async_context(upstream.send(sent))
        return HttpResponse(response.status, response.headers, response.body, held.aclose)


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[ScriptedServer]:
    """Serve a script on this machine's loopback, at `.url`. One conversation for each session."""
    scripted = ScriptedServer(script)
    async with serve_on_loopback(scripted.answer) as scripted.url:
        yield scripted
