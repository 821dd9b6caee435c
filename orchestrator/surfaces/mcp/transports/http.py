"""MCP over streamable HTTP: many clients, each known by its token."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.access import DEFAULT_CALLER, known_caller
from orchestrator.domain.words import STOPPED
from orchestrator.errors import OperatorError
from orchestrator.settings import Settings
from orchestrator.state import serving_http
from orchestrator.surfaces.held_connections import HeldConnection, raise_file_limit
from orchestrator.surfaces.mcp.transports.served import OpenServed, Served, orchestrator_served

if TYPE_CHECKING:
    from orchestrator.surfaces.http.api import Api

LAST_ANSWERS_SECONDS = 2
"""For answers that are under way when the server is told to stop."""

SCOPE = "run"

REFUSALS = {
    401: "no token, or one that is not known",
    403: "an origin that is not allowed",
    421: "a host name that is not this server's",
}
"""Statuses of requests that were refused for what they came with."""

MAX_PORT = 65535

WhenServed = Callable[[str], Coroutine[Any, Any, None]]
"""Called with the URL, without a path, by which this machine reaches the server."""


async def serve(
    settings: Settings,
    address: str,
    open_served: OpenServed = orchestrator_served,
    ready: WhenServed | None = None,
) -> None:
    """Serve at HOST:PORT until SIGTERM or SIGINT; port 0 is any that is free. `ready` is called
    with the URL once requests are answered.
    """
    host, port = _checked(settings, address)
    with bound(host, port) as listener:
        url = _url(host, listener.getsockname()[1])
        auth = _auth(settings, url) if settings.http_tokens else {}
        async with open_served(settings, lambda: _caller(settings), auth) as served:
            if served.web is None:
                await _serve(settings, served, listener, url, ready)
            else:
                with serving_http(settings, _here(url)):
                    await _serve(settings, served, listener, url, ready)


async def _serve(
    settings: Settings, served: Served, listener: socket.socket, url: str, ready: WhenServed | None
) -> None:
    await served.open()  # here an error still ends the command
    raise_file_limit()
    server = served.server

    @server.custom_route("/health", methods=["GET"])  # type: ignore[untyped-decorator]  # the SDK
    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"ok": True})

    allowed = allowed_hosts(settings, url)
    app: ASGIApp = server.streamable_http_app(transport_security=allowed)
    api = None if served.web is None else served.web(allowed)
    if api is not None:
        from orchestrator.surfaces.http.api import beside
        from orchestrator.surfaces.web.page_routes import with_page

        app = beside(noting_refusals(with_page(app, allowed), served), api)
    else:
        app = noting_refusals(app, served)
    web = QuietWeb(
        uvicorn.Config(
            app,
            http=HeldConnection,
            log_level="warning",
            log_config=None,  # its lines are lines of our log
            timeout_graceful_shutdown=LAST_ANSWERS_SECONDS,
        )
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, web, served, api)
        for work in (*served.beside, *([api.serve_events] if api is not None else [])):
            tasks.start_soon(work)
        print(f"listening on {url}/mcp", file=sys.stderr, flush=True)
        if ready is not None:
            tasks.start_soon(ready, _here(url))
        await web.serve([listener])
        tasks.cancel_scope.cancel()


def noting_refusals(app: ASGIApp, served: Served) -> ASGIApp:
    """The same, and each request that it refuses for its token or its host is in the audit first:
    a row for each place, with how many there were.
    """

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                why = REFUSALS.get(message["status"])
                if why is not None:
                    client = scope.get("client") or ("unknown",)
                    await served.note_stranger(str(client[0]), why)
            await send(message)

        await app(scope, receive, sending)

    return noting


class QuietWeb(uvicorn.Server):
    """uvicorn would raise the signal again and end us before runs and containers are closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _stop_on_signal(web: uvicorn.Server, served: Served, api: Api | None) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            # Streams that clients hold open end only by being cut: a traceback each, otherwise.
            for name in ("uvicorn.error", "mcp"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            if api is not None:
                api.leave()
            served.leave(STOPPED)
            web.should_exit = True


class _Tokens:
    """token -> who is calling."""

    def __init__(self, settings: Settings) -> None:
        self._tokens = settings.http_tokens

    async def verify_token(self, token: str) -> AccessToken | None:
        matches = [
            caller
            for caller, secret in self._tokens.items()
            if hmac.compare_digest(secret.get_secret_value().encode(), token.encode())
        ]
        if not matches:
            return None
        return AccessToken(token=token, client_id=matches[0], scopes=[SCOPE], subject=matches[0])


def _auth(settings: Settings, url: str) -> dict[str, Any]:
    return {
        "token_verifier": _Tokens(settings),
        "auth": AuthSettings.model_validate(
            {
                "issuer_url": url,
                "resource_server_url": f"{url}/mcp",
                "required_scopes": [SCOPE],
                "validate_token_resource": False,
            }
        ),
    }


def _caller(settings: Settings) -> str:
    token = get_access_token()
    named = token.client_id if token is not None else settings.named_caller
    return known_caller(named, DEFAULT_CALLER, deny_missing=settings.deny_on_missing_caller)


def allowed_hosts(settings: Settings, url: str) -> TransportSecuritySettings:
    """The names that we answer to. A page in a browser that was lured here uses another one."""
    own = url.removeprefix("http://").rpartition(":")[0]
    names = sorted({own, "127.0.0.1", "localhost", "[::1]", *settings.http_hosts})
    return TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[
            f"{scheme}://{name}{port}"
            for name in names
            for scheme in ("http", "https")
            for port in ("", ":*")
        ],
    )


def _checked(settings: Settings, address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) <= MAX_PORT):
        raise OperatorError(f"--http {address} is not HOST:PORT, such as 127.0.0.1:8900")
    if not settings.http_tokens and not _loopback(host):
        raise OperatorError(
            f"{host} can be reached from other machines, so callers need tokens; set "
            "ORCHESTRATOR_HTTP_TOKENS=main=..., or listen on 127.0.0.1"
        )
    return host.strip("[]"), int(port)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def bound(host: str, port: int) -> socket.socket:
    """A listening socket, whose connections send what they are given at once: asyncio sees to that
    only for sockets that name their protocol, and a client that waits for the second half of an
    answer got it 40 ms late.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as exc:
        raise OperatorError(
            f"cannot listen on {host}, port {port}: {exc.strerror}; choose another"
        ) from exc
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _here(url: str) -> str:
    """How this machine reaches a server, also one that listens on all addresses."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
