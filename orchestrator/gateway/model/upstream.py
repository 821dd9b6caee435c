"""Where model requests go: the seam between the gateway and whatever answers."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from orchestrator.errors import OperatorError
from orchestrator.gateway.http.byte_stream import TURN_EVENTS
from orchestrator.gateway.http.headers import Headers, as_bytes
from orchestrator.wire.streams import give_way

if TYPE_CHECKING:
    import httpx

UPSTREAM_CONNECT_SECONDS = 10.0
"""For name, TCP and TLS."""

UPSTREAM_READ_SECONDS = 600.0
"""Between two pieces of an answer: a model may think for minutes before the first."""

UPSTREAM_WRITE_SECONDS = 60.0
"""Between two pieces of a request that the other side takes."""

UPSTREAM_POOL_SECONDS = 60.0
"""For a free connection."""

MAX_UPSTREAM_CONNECTIONS = 256
"""To the API, of all runs together."""


@dataclass
class Delivery:
    """How far a request has got, which decides whether the run pays for it."""

    began: bool = True
    """Some of it may have arrived. An upstream that knows that nothing has sets this to False."""


@dataclass(frozen=True, repr=False)
class UpstreamRequest:
    method: str
    target: str
    """Path and query."""
    headers: Headers
    """With the credential: never shown."""
    body: bytes = b""
    delivery: Delivery = field(default_factory=Delivery)

    def __repr__(self) -> str:
        return f"UpstreamRequest({self.method} {self.target.partition('?')[0]!r})"


@dataclass(frozen=True, repr=False)
class UpstreamResponse:
    status: int
    headers: Headers
    body: AsyncIterator[bytes]
    """As it comes, unbuffered. Raises UpstreamLost when it breaks off."""

    def __repr__(self) -> str:
        return f"UpstreamResponse({self.status})"


class ModelWay(NamedTuple):
    """Where the requests of a container go, for the operator to know what to mend."""

    address: str = ""
    """Empty where a script plays the model."""
    variable: str = ""
    """The one that holds the credential; empty without one."""
    base_variable: str = "ANTHROPIC_BASE_URL"
    """The one that holds the address."""
    key_variables: str = "ANTHROPIC_API_KEY, ANTHROPIC_AUTH_TOKEN or CLAUDE_CODE_OAUTH_TOKEN"
    """Those that could hold the credential, as they are told."""


class UpstreamLost(Exception):
    """No answer, or not all of it. The text is for people and holds no secret."""


class UpstreamBusy(UpstreamLost):
    """Every connection that there may be is in use, and none became free."""


class Upstream(Protocol):
    """Answers model requests.

    `send` yields the answer as soon as its head is there, and lets go of everything when the block
    is left, be the body read or not. It raises UpstreamLost when there is no answer at all. While
    it knows that nothing was sent, `request.delivery` has not begun.
    """

    def send(self, request: UpstreamRequest) -> AbstractAsyncContextManager[UpstreamResponse]: ...


class HttpUpstream:
    """The API behind a URL. Proxies and certificates of the process's environment count."""

    def __init__(self, base_url: str, variable: str = "ANTHROPIC_BASE_URL") -> None:
        """`variable` is the one that the operator has set the URL with."""
        self._base = _checked(base_url, variable)
        self._client: httpx.AsyncClient | None = None

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        import httpx  # noqa: PLC0415 100 ms that only the first request has to wait for

        request.delivery.began = False
        client = self._connected()

        async def trace(step: str, info: dict[str, Any]) -> None:
            if step.endswith("send_request_headers.started"):
                # To an operator's proxy another request goes first.
                request.delivery.began |= info["request"].method != b"CONNECT"

        try:
            sent = client.build_request(
                request.method,
                self._base + request.target,
                headers=as_bytes(request.headers),
                content=request.body,
                extensions={"trace": trace},
            )
            response = await client.send(sent, stream=True)
        except httpx.PoolTimeout:
            raise UpstreamBusy(
                f"{MAX_UPSTREAM_CONNECTIONS} requests of all runs are under way"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise UpstreamLost(self._why(exc)) from None
        body = self._body(response)
        try:
            yield UpstreamResponse(
                status=response.status_code,
                headers=tuple(
                    (key.lower(), value) for key, value in response.headers.multi_items()
                ),
                body=body,
            )
        finally:
            await body.aclose()
            await response.aclose()

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _body(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        import httpx  # noqa: PLC0415 loaded by now

        chunks = 0
        try:
            async for chunk in response.aiter_bytes():
                yield chunk
                chunks += 1
                if chunks % TURN_EVENTS == 0:  # what has arrived is read without waiting
                    await give_way()
        except httpx.HTTPError as exc:
            raise UpstreamLost(self._why(exc)) from None

    def _connected(self) -> httpx.AsyncClient:
        import httpx  # noqa: PLC0415 loaded by now

        if self._client is None:
            no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            try:
                self._client = httpx.AsyncClient(
                    timeout=httpx.Timeout(
                        connect=UPSTREAM_CONNECT_SECONDS,
                        read=UPSTREAM_READ_SECONDS,
                        write=UPSTREAM_WRITE_SECONDS,
                        pool=UPSTREAM_POOL_SECONDS,
                    ),
                    limits=httpx.Limits(max_connections=MAX_UPSTREAM_CONNECTIONS),
                    cookies=no_cookies,  # one run's are none of another's business
                    follow_redirects=False,
                )
            except (OSError, ValueError, ImportError):
                raise UpstreamLost(
                    "the proxy or the certificates that its environment names cannot be used; "
                    "check HTTPS_PROXY, ALL_PROXY, NO_PROXY and SSL_CERT_FILE"
                ) from None
        return self._client

    def _why(self, exc: Exception) -> str:
        """What went wrong, by kind: the messages may quote headers."""
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(exc).__name__).lower()
        return f"{kind} at {self._base}"


def _checked(base_url: str, variable: str) -> str:
    try:
        parts = urlsplit(base_url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        good = good and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.username or parts.password or parts.query or parts.fragment:
        raise OperatorError(
            f"{variable} is not a plain http(s) URL; write https://host[:port][/path], without a "
            "password, and put the credential into the variable for it"
        )
    return base_url.rstrip("/")
