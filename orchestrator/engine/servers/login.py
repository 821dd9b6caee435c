"""A person logs in to a server at a URL, once; its tokens are kept and renewed from then on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
from pydantic import SecretStr

from orchestrator.domain.tool_server import OAuth, ToolServer
from orchestrator.engine.servers.opening import load_sdk, told_plainly
from orchestrator.errors import OperatorError, ServerFailed
from orchestrator.gateway.doorway import Decided
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse, plain_response
from orchestrator.gateway.tools.pool import Loss

CALLBACK_PATH = "/callback"

TellPage = Callable[[str], None]
"""Shows the page on which to log in."""

Pasted = Callable[[], Awaitable[str]]
"""The address that the page led to, pasted by hand; it may never come."""


async def log_in(
    server: ToolServer,
    secret_values: dict[str, SecretStr],
    tokens_dir: Path,
    project: str,
    dialer: Dialer,
    decided: Decided,
    *,
    show: TellPage,
    pasted: Pasted,
) -> None:
    """Have a person log in, in a browser on this machine or by pasting where theirs led to."""
    if not isinstance(server.auth, OAuth):
        raise OperatorError(
            f"the server {server.name} has no `auth: oauth`, so there is nothing to log in to"
        )
    await anyio.to_thread.run_sync(load_sdk)
    from orchestrator.gateway.tools.live_server import open_live_server
    from orchestrator.gateway.tools.remote import remote_client, remote_transport
    from orchestrator.gateway.tools.tokens import (
        LOGIN_SECONDS,
        TokenFile,
        auth_of,
        code_of,
    )

    came, address = anyio.Event(), [""]

    def back(target: str) -> None:
        address[0] = address[0] or target
        came.set()

    async def answer(request: HttpRequest) -> HttpResponse:
        if request.path != CALLBACK_PATH:
            return plain_response(404, "there is nothing here")
        back(request.target)
        return plain_response(200, "That is all; this page can be closed.")

    async def shown(url: str) -> None:
        show(url)

    async def called() -> Any:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_paste, pasted, back)
            await came.wait()
            tasks.cancel_scope.cancel()
        return code_of(address[0])

    file = TokenFile(tokens_dir, project, server)
    async with file.anew(), serve_on_loopback(answer) as here:
        auth = auth_of(
            server,
            secret_values,
            file,
            redirect=here + CALLBACK_PATH,
            show=shown,
            called=called,
        )
        try:
            with anyio.fail_after(LOGIN_SECONDS), told_plainly(server):
                async with remote_client(server, dialer, decided, auth) as client:
                    transport = remote_transport(client, server.url or "")
                    async with open_live_server(transport, server.name, Loss()):
                        pass
        except TimeoutError:
            raise ServerFailed(f"the login to {server.name} took too long; try again") from None


async def _paste(pasted: Pasted, back: Callable[[str], None]) -> None:
    text = await pasted()
    if text.strip():
        back(text)
