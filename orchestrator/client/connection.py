"""Requests to an orchestrator elsewhere; whatever goes wrong with one -> an error of ours.

The token is in a header, and nowhere else: not in an address, an error or a log.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2

from orchestrator import __version__, errors
from orchestrator.errors import CallerError, OperatorError, OrchestratorError, ServerAway

if TYPE_CHECKING:
    from orchestrator.settings import Settings

CONNECT_SECONDS = 10.0
"""For the server to take a connection."""

NEXT_BYTES_SECONDS = 60.0
"""For the next bytes of an answer; one that is waited for comes with a word every few seconds."""

AWAY_SECONDS = 60.0
"""For which a server that has answered before may be away: it is being restarted."""

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
"""Between two tries; each pause is twice as long as the one before."""

EVENT_BYTES = 64 * 1024 * 1024
"""Of one server-sent event."""

WHOLE_ANSWER_BYTES = 512 * 1024 * 1024
"""Of an answer that is read whole."""

PLAIN = "identity"
"""The only encoding of an answer that is taken: what is packed may be of any size."""

Body = bytes | AsyncIterator[bytes]

HttpAnswer = httpx2.Response
"""What a server answers, in the nouns that the commands here read."""

T = TypeVar("T")


class ServerConnection:
    """To one server, as one caller."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = checked_url(url, has_token=bool(token))
        """Without a slash at its end."""
        local = is_this_machine(url)
        headers = {"User-Agent": f"orchestrator/{__version__}", "Accept-Encoding": PLAIN}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx2.AsyncClient(
            headers=headers,
            # A proxy has nothing to do with this machine; certificates take a while to load.
            trust_env=not local,
            verify=ssl.create_default_context() if self.url.startswith("https:") else False,
            timeout=httpx2.Timeout(NEXT_BYTES_SECONDS, connect=CONNECT_SECONDS),
        )
        self._answered = False

    async def aclose(self) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        content: Body | None = None,
        json: Any = None,
        seconds: float | None = NEXT_BYTES_SECONDS,
    ) -> AsyncIterator[httpx2.Response]:
        """An answer whose body is still to be read, whatever its status. ServerAway if there is
        none, or if it breaks off while it is read.
        """
        timeout = httpx2.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            async with self._http.stream(
                method,
                f"{self.url}{path}",
                headers=headers,
                params=params,
                content=content,
                json=json,
                timeout=timeout,
            ) as response:
                self._answered = True
                if response.headers.get("content-encoding", PLAIN) != PLAIN:
                    raise OperatorError(
                        f"{self.url} sends a packed answer; this client takes only plain ones"
                    )
                yield response
        except (httpx2.HTTPError, httpx2.StreamError) as exc:
            unsent = isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise ServerAway(
                f"the orchestrator at {self.url} does not answer ({_what(exc)}); is it running, "
                "and is this its address?",
                unsent=unsent,
            ) from exc

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        content: Body | None = None,
        json: Any = None,
        seconds: float = NEXT_BYTES_SECONDS,
    ) -> httpx2.Response:
        """An answer, read whole; an error of ours for one that says no."""
        async with self.stream(
            method,
            path,
            headers=headers,
            params=params,
            content=content,
            json=json,
            seconds=seconds,
        ) as response:
            return await self.read(response)

    async def read(self, response: httpx2.Response) -> httpx2.Response:
        """All of an answer; an error of ours for one that says no."""
        whole = await self.whole(response)
        if whole.status_code >= 300:
            raise refusal_of(whole, self.url)
        return whole

    async def whole(self, response: httpx2.Response) -> httpx2.Response:
        """All of an answer, within bounds."""
        found = bytearray()
        async for piece in response.aiter_raw():
            found += piece
            if len(found) > WHOLE_ANSWER_BYTES:
                raise OperatorError(f"the answer of {self.url} does not end; is the address right?")
        read = ("content-type", "retry-after")
        headers = {name: response.headers[name] for name in read if name in response.headers}
        return httpx2.Response(
            response.status_code, headers=headers, content=bytes(found), request=response.request
        )

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Do something that may be done twice; again, while a server that was there is away."""
        give_up = anyio.current_time() + AWAY_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await ask()
            except ServerAway:
                if not self._answered or anyio.current_time() + pause > give_up:
                    raise
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def connection_to(settings: Settings) -> ServerConnection:
    """To the server that the settings name, with the token that they have."""
    return ServerConnection(settings.server, _token(settings))


def _token(settings: Settings) -> str:
    if settings.token is not None:
        return settings.token.get_secret_value().strip()
    path = settings.token_file
    if path is None:
        return ""
    try:
        if path.stat().st_mode & 0o077:
            raise OperatorError(
                f"{path} can be read by other users, and holds a token; chmod 600 {path}"
            )
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise OperatorError(f"ORCHESTRATOR_TOKEN_FILE, {path}, cannot be read: {why}") from exc


def sse(response: httpx2.Response) -> httpx2.EventSource:
    """The server-sent events of an answer."""
    return httpx2.EventSource(response, max_event_size=EVENT_BYTES)


def checked_url(url: str, *, has_token: bool) -> str:
    """An address as it is used; OperatorError if a token must not be sent there."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise OperatorError(
            f"{_shown(url)!r} is no address; write http://HOST:PORT or https://HOST"
        )
    if parts.username or parts.password:
        raise OperatorError(
            "an address must not hold a name or a password, since other users see it in the list "
            "of processes; set ORCHESTRATOR_TOKEN, or ORCHESTRATOR_TOKEN_FILE"
        )
    if has_token and parts.scheme == "http" and not is_this_machine(url):
        raise OperatorError(
            f"{url} is not encrypted, so machines on the way could read the token; use https, or "
            f"forward a port: ssh -L 8900:127.0.0.1:{parts.port or 80} {parts.hostname}"
        )
    return url.rstrip("/").removesuffix("/mcp")


def is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal_of(response: httpx2.Response, url: str) -> OrchestratorError:
    """What an answer says that is no yes, as the error that it would be here."""
    try:
        said = response.json()
    except (ValueError, RecursionError, httpx2.StreamError):
        said = {}
    said = said if isinstance(said, dict) else {}
    code, detail = str(said.get("code") or ""), str(said.get("detail") or said.get("error") or "")
    if response.status_code == 401:
        return OperatorError(
            f"the orchestrator at {url} does not know this token; set ORCHESTRATOR_TOKEN, or "
            "ORCHESTRATOR_TOKEN_FILE, to one of its ORCHESTRATOR_HTTP_TOKENS"
        )
    kind = _kinds().get(code)
    if kind is not None:
        refusal = kind(detail)
        refusal.retry_seconds = _seconds(response.headers.get("retry-after", ""))
        return refusal
    other = OperatorError if response.status_code >= 500 else CallerError
    detail = detail or f"{response.status_code} {response.reason_phrase}"
    return other(f"the orchestrator at {url} says: {detail}")


def _seconds(text: str) -> float:
    """Of a Retry-After; what is none is a second."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1.0


def _kinds() -> dict[str, type[OrchestratorError]]:
    """Errors by their codes; of those with the same one, the widest."""
    found: dict[str, type[OrchestratorError]] = {}
    for each in vars(errors).values():
        if each is ServerAway:  # no server says so of itself, and the client would ask again
            continue
        if isinstance(each, type) and issubclass(each, OrchestratorError):
            known = found.get(each.code)
            if known is None or issubclass(known, each):
                found[each.code] = each
    return found


def _what(exc: Exception) -> str:
    return str(exc)[:200] or type(exc).__name__


def _shown(url: str) -> str:
    """Without what may be a password in it."""
    return url.rpartition("@")[2][:200]
