"""A URL -> the SDK's streamable HTTP, on connections that our own dialer makes and vets.

A server at a URL is a stranger like one in a container: where its requests go is decided by
server.yaml, its answers are bounded and not decompressed, and it cannot redirect to another host.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpcore2
import httpx2
from mcp.client.streamable_http import streamable_http_client

from orchestrator.domain.agent import Network
from orchestrator.domain.hosts import normal_host
from orchestrator.domain.tool_server import ToolServer
from orchestrator.gateway.doorway import Decided
from orchestrator.gateway.egress.dial import Denied, Dialer
from orchestrator.gateway.egress.rules import EgressRules
from orchestrator.gateway.http.socket_stream import SocketStream, Unreachable
from orchestrator.gateway.tools.lines import LINE_BYTES

ANSWER_BYTES = 8 * 1024 * 1024
"""One answer that is not a stream of events."""

EVENTS_BYTES = 256 * 1024 * 1024
"""One stream of events; each of them has a limit of its own."""

REMOTE_SECONDS = 30.0
"""For a connection, and for a request to be taken. How long an answer takes is up to the call."""


def remote_network(server: ToolServer) -> Network:
    """Where requests for a server at a URL may go: to its own host, and where its file says."""
    host, port = server.address
    own = (f"{host}:{port}",) if isinstance(normal_host(host), str) else ()
    network = server.network
    return Network(
        mode="allow",
        allow=(*own, *network.allow),
        allow_private=network.allow_private,
        deny=network.deny,
    )


@asynccontextmanager
async def remote_client(
    server: ToolServer, dialer: Dialer, decided: Decided, auth: httpx2.Auth | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client that reaches what server.yaml allows, and nothing else."""
    scheme = "http" if (server.url or "").startswith("http://") else "https"
    async with vetted_client(remote_network(server), scheme, dialer, decided, auth) as client:
        yield client


@asynccontextmanager
async def vetted_client(
    network: Network,
    scheme: str,
    dialer: Dialer,
    decided: Decided,
    auth: httpx2.Auth | None = None,
) -> AsyncIterator[httpx2.AsyncClient]:
    """An HTTP client that reaches what a network allows, and nothing else."""
    rules = EgressRules(network)
    backend = _VettedConnections(rules, dialer, decided, scheme)
    timeout = httpx2.Timeout(REMOTE_SECONDS, read=None)
    async with httpx2.AsyncClient(
        transport=_Bounded(rules, backend, dialer.ssl_context()),
        auth=auth,
        timeout=timeout,
        trust_env=False,
        headers={"accept-encoding": "identity"},
    ) as client:
        yield client


@asynccontextmanager
async def remote_transport(client: httpx2.AsyncClient, url: str) -> AsyncIterator[Any]:
    """A transport of the SDK on it."""
    opened = streamable_http_client(url, http_client=client, max_sse_event_size=LINE_BYTES)
    async with opened as streams:
        yield streams


def transport_problem(exc: BaseException) -> str:
    """What went wrong with a connection, of the errors that task groups have put together."""
    if isinstance(exc, httpx2.RemoteProtocolError):  # whose text quotes what the server sent
        return "what it answers is no HTTP"
    if isinstance(exc, httpx2.HTTPStatusError):  # whose text has the URL, in which a key may be
        return f"it answers with HTTP {exc.response.status_code}"
    if isinstance(exc, httpx2.HTTPError):
        return str(exc) or type(exc).__name__
    if isinstance(exc, BaseExceptionGroup):
        return next((said for each in exc.exceptions if (said := transport_problem(each))), "")
    return ""


class _VettedConnections(httpcore2.AsyncNetworkBackend):
    """The HTTP library's connections, made by our dialer."""

    def __init__(self, rules: EgressRules, dialer: Dialer, decided: Decided, scheme: str) -> None:
        self._rules = rules
        self._dialer = dialer
        self._decided = decided
        self._scheme = scheme

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 the library's words
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        del timeout, local_address, socket_options
        verdict, name = self._rules.name(host, port), f"{host}:{port}"
        await self._decided("host", name, allowed=verdict.allowed, why=verdict.rule or verdict.why)
        if not verdict.allowed:
            raise httpcore2.ConnectError(verdict.why)
        vet = self._rules.vet(verdict.host, port)
        scheme: Any = self._scheme
        try:
            stream = await self._dialer.dial(
                verdict.host, port, vet, scheme=scheme, direct=verdict.private
            )
        except (Denied, Unreachable) as exc:
            raise httpcore2.ConnectError(str(exc)) from exc
        return _VettedConnection(stream, verdict.host)

    async def connect_unix_socket(self, *_: object, **__: object) -> httpcore2.AsyncNetworkStream:
        raise httpcore2.ConnectError("no server is at a socket")

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class _VettedConnection(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: SocketStream, host: str) -> None:
        self._stream = stream
        self._host = host

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            with anyio.fail_after(timeout):
                return await self._stream.read(max_bytes)
        except TimeoutError as exc:
            raise httpcore2.ReadTimeout("it did not answer in time") from exc
        except OSError as exc:
            raise httpcore2.ReadError("the connection broke") from exc

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            with anyio.fail_after(timeout):
                await self._stream.write(buffer)
        except TimeoutError as exc:
            raise httpcore2.WriteTimeout("it does not take the request") from exc
        except OSError as exc:
            raise httpcore2.WriteError("the connection broke") from exc

    async def aclose(self) -> None:
        self._stream.reset()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        del timeout  # the stream has its own
        try:
            await self._stream.secure(server_hostname or self._host, ssl_context)
        except ssl.SSLCertVerificationError as exc:
            said = f"{self._host} could not prove who it is ({exc.verify_message})"
            raise httpcore2.ConnectError(said) from exc
        except (OSError, TimeoutError) as exc:
            raise httpcore2.ConnectError(f"no TLS with {self._host}") from exc
        return self


class _Bounded(httpx2.AsyncHTTPTransport):
    """HTTP on those connections, whose answers end at a limit; plain HTTP stays on the inside."""

    def __init__(
        self, rules: EgressRules, backend: _VettedConnections, context: ssl.SSLContext
    ) -> None:
        super().__init__(verify=context, trust_env=False)
        self._rules = rules
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context, network_backend=backend, max_connections=32, keepalive_expiry=60
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host, port = request.url.host, request.url.port or 80
        if request.url.scheme != "https" and not self._rules.name(host, port).private:
            raise httpx2.ConnectError(
                f"{host}:{port} blocked: it would be plain HTTP, which others can read, and the "
                "host is not said to be on the inside (network.allow_private in server.yaml)"
            )
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.ReadError("it answers compressed, which we did not ask for")
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _Counted(response.stream, EVENTS_BYTES if events else ANSWER_BYTES)
        return response


class _Counted(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, most: int) -> None:
        self._stream = stream
        self._left = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            self._left -= len(data)
            if self._left < 0:
                raise httpx2.ReadError("it answers with more than is taken")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()
