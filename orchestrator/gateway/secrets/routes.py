"""Requests that a secret is added to: /HOST/PATH inside, https://HOST/PATH outside.

The agent never has the secret, so what it can do with it is what agent.md says: these hosts, these
methods, these paths. Bodies pass through in both directions and are never held whole; answers are
searched for secrets on their way, since there are servers that repeat what they were shown.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

import anyio
from pydantic import SecretStr

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Secret
from orchestrator.domain.container import ROUTES_URL
from orchestrator.domain.hosts import written_host
from orchestrator.errors import AuthorError, OperatorError
from orchestrator.gateway.doorway import Decided, Doorway, Observer, undecided
from orchestrator.gateway.egress.dial import Addresses, Denied, Dialer
from orchestrator.gateway.http.byte_stream import ByteStream, CountedStream
from orchestrator.gateway.http.forward import Filter, Outgoing, forward, passed_on
from orchestrator.gateway.http.headers import CLIENT_GONE, DENIED, HOP_BY_HOP, Headers
from orchestrator.gateway.http.request_head import Head
from orchestrator.gateway.http.socket_stream import Unreachable
from orchestrator.gateway.secrets.route_rules import (
    HTTPS_PORT,
    NOT_A_FAULT,
    SHOWN_ROUTE_CHARS,
    Refused,
    Route,
    address_of,
    find_route,
)
from orchestrator.redaction import MIN_SECRET, Redactor

log = logging.getLogger(__name__)

MAX_ROUTE_CONNECTIONS = 64
"""At once, of one run."""

MAX_TOLD_REQUESTS = 10_000
"""Requests of one run that are told, refused ones included."""

PASSED_ON = frozenset(
    (
        # what is wanted, and what is sent
        *("accept", "accept-language", "prefer", "cache-control", "pragma", "user-agent", "date"),
        *("content-type", "content-encoding", "content-language", "content-disposition"),
        *("content-range", "content-md5", "content-digest", "digest"),
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since"),
        # so that one request is told from another
        *("traceparent", "tracestate", "x-request-id", "x-requested-with", "idempotency-key"),
        # git, gh, docker and npm
        *("git-protocol", "x-github-api-version", "x-github-media-type", "graphql-features"),
        *("docker-distribution-api-version", "npm-command", "npm-in-ci", "npm-scope"),
        *("npm-session", "npm-auth-type"),
    )
)
"""Of the request's headers; agent.md may name more of them for a secret. Any other could make of
the request another one than was looked at (a method, a path, a host, a user), for a server or a
proxy that knows it. Accept-Encoding and Range never pass: an answer that is compressed or in parts
cannot be searched for the secret."""

KEPT_BACK = frozenset(("set-cookie", "set-cookie2", "alt-svc", "strict-transport-security"))
"""Of an answer: what would be for the real host, and not for the one that asks."""


class RouteSeen(Frozen):
    """One request that has ended, for the run's record."""

    secret: str = ""
    """The name of the secret that was added, if one was."""
    host: str
    method: str
    path: str
    """Without its query."""
    allowed: bool
    status: int
    """As the container saw it; 499 when it did not wait for the answer."""
    why: str = ""
    """Of a request that was refused or got no answer."""
    bytes: int = 0
    """Sent and received outside, heads included."""


OnRouteSeen = Callable[[RouteSeen], None]

VetHost = Callable[[str, int, Addresses], None]
"""Host, port and all addresses of the host; raises Denied if one of them will not do."""


class RouteAccess:
    """One run's requests with secrets, until it is revoked."""

    def __init__(
        self,
        secrets: Sequence[Secret],
        values: Mapping[str, SecretStr],
        dialer: Dialer,
        on_seen: OnRouteSeen | None = None,
        *,
        decided: Decided = undecided,
        vet: VetHost,
        is_direct: Callable[[str, int], bool] = lambda _host, _port: False,
    ) -> None:
        """`on_seen` is told of every request that passed, and of refusals while they are few;
        `decided` is waited for before a secret is added or refused.
        """
        self._decided = decided
        self._secrets = tuple(secret for secret in secrets if secret.hosts)
        self._hosts = {address_of(host): host for each in self._secrets for host in each.hosts}
        self._headers = {each.name: _header(each, values[each.name]) for each in self._secrets}
        texts = [value.get_secret_value() for value in values.values()]
        self._redactor = Redactor(texts)
        self._lower = [text.lower() for text in texts if len(text) >= MIN_SECRET]
        self._dialer = dialer.for_one()
        self._vet = vet
        self._is_direct = is_direct
        """Which hosts are not reached through the operator's proxy."""
        self._doorway = Doorway()
        self._observer = Observer(on_seen, "a request with a secret", most=MAX_TOLD_REQUESTS)

    def __repr__(self) -> str:
        return f"RouteAccess({', '.join(each.name for each in self._secrets)})"

    def revoke(self) -> None:
        """From now on nothing goes out, and what is under way ends."""
        self._headers = {}
        self._doorway.revoke()

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `container.listen(ROUTES_PORT, "routes", access.service)`."""
        await self._doorway.serve_one(stream, self._answer)

    async def _answer(self, head: Head) -> None:
        path, _, _ = head.target.removeprefix("/").partition("?")
        host, _, rest = path.partition("/")
        asked = _Asked(head.method, host, f"/{rest}")
        try:
            route = self._allowed(head)
            asked = _Asked(head.method, route.host, f"/{rest}", route.secret.name)
            await self._decided("secret", f"{asked.secret} for {asked.host}", allowed=True)
            status = await self._forward(head, route, asked)
        except (Refused, Denied) as exc:
            await self._refuse(head, asked, f"refused by the orchestrator: {exc}")
        except Unreachable as exc:
            why = f"the orchestrator got no answer: {exc}"
            self._tell(asked, 502, why)
            await head.answer(502, why)
        except anyio.get_cancelled_exc_class():
            self._tell(asked, CLIENT_GONE, "it was cut off")
            raise
        else:
            self._tell(asked, status)

    def _allowed(self, head: Head) -> Route:
        if self._doorway.revoked:
            raise Refused("the run has ended.")
        if self._doorway.open_connections > MAX_ROUTE_CONNECTIONS:
            raise Refused(
                f"{MAX_ROUTE_CONNECTIONS} requests at once are enough; wait for one to end."
            )
        if head.header("upgrade"):
            raise Refused(
                f"a connection carries HTTP alone here, and cannot be upgraded. {NOT_A_FAULT}"
            )
        return find_route(self._secrets, head.method, head.target)

    async def _forward(self, head: Head, route: Route, asked: _Asked) -> int:
        host, port = address_of(route.host)
        name, value = self._headers[route.secret.name]
        passing = PASSED_ON.union(map(str.lower, route.secret.headers)) - {name}
        asks = tuple(pair for pair in head.headers if pair[0] in passing or pair[0] in HOP_BY_HOP)
        headers = (
            *passed_on(asks, _authority(host, port)),
            ("accept-encoding", "identity"),
            (name, value.get_secret_value()),
        )
        request = Outgoing(head.method, route.target, headers)
        direct = self._is_direct(host, port)
        vet = partial(self._vet, host, port)
        connection = await self._dialer.dial(host, port, vet, tls=True, direct=direct)
        asked.outside, status = CountedStream(connection), 0
        try:
            rewrite = partial(self._shown, route.host, head.method)
            status = (await forward(head, asked.outside, request, rewrite=rewrite)).status
        except* _Compressed:
            log.debug("a compressed answer of %s was not passed on", route.host)
        finally:
            await connection.aclose()
        if not status:
            raise Unreachable(
                f"{route.host} compresses its answer although it was asked not to, so that it "
                "cannot be searched for secrets"
            )
        return status

    def _shown(
        self, host: str, method: str, _: int, headers: Headers
    ) -> tuple[Headers, Filter | None]:
        """What the container gets of an answer: its headers, and what the body goes through."""
        codings = [value.strip().lower() for key, value in headers if key == "content-encoding"]
        if method != "HEAD" and any(coding not in ("", "identity") for coding in codings):
            raise _Compressed
        shown = []
        for key, value in headers:
            if key in KEPT_BACK or self._holds_secret(key):
                continue
            text = self._masked(value)
            shown.append((key, self._led_back(host, text) if key == "location" else text))
        return tuple(shown), self._redactor.stream()

    def _masked(self, text: str) -> str:
        clean = self._redactor.stream()
        return (clean.feed(text.encode("latin-1")) + clean.finish()).decode("latin-1")

    def _holds_secret(self, name: str) -> bool:
        """Whether a header's name does: it comes in lower case, whatever the secret is in."""
        return self._masked(name) != name or any(text in name for text in self._lower)

    def _led_back(self, host: str, location: str) -> str:
        """A redirect to a host that there is a secret for leads through here again."""
        try:
            parts = urlsplit(location)
            port = parts.port or HTTPS_PORT
        except ValueError:
            return location
        if not parts.scheme and not parts.netloc:
            return f"/{host}{location}" if location.startswith("/") else location
        known = self._hosts.get(((parts.hostname or "").lower(), port))
        if known is None or parts.scheme not in ("", "https") or parts.username is not None:
            return location
        query = f"?{parts.query}" if parts.query else ""
        return f"{ROUTES_URL}/{known}{parts.path or '/'}{query}"

    async def _refuse(self, head: Head, asked: _Asked, why: str) -> None:
        if self._observer.wants_denial(asked.host):
            self._tell(asked, 403, why, allowed=False)
        subject = f"{asked.secret or 'none'} for {asked.host}"
        await self._decided("secret", self._redactor.text(subject), allowed=False, why=why)
        gist = "Refused by the orchestrator: agent.md does not allow it"
        await head.answer(403, why, reason=gist, headers=((DENIED, "route"),))

    def _tell(self, asked: _Asked, status: int, why: str = "", *, allowed: bool = True) -> None:
        seen = RouteSeen(
            secret=asked.secret,
            host=self._redactor.text(asked.host),
            method=asked.method,
            path=self._redactor.text(asked.path),
            allowed=allowed,
            status=status,
            why=self._redactor.text(why),
            bytes=0 if asked.outside is None else asked.outside.bytes_in + asked.outside.bytes_out,
        )
        self._observer.tell(seen)


class _Compressed(Exception):
    """An answer that cannot be searched."""


class _Asked:
    """What is told of one request, and its connection to the host, once there is one."""

    def __init__(self, method: str, host: str, path: str, secret: str = "") -> None:
        self.method = method[:SHOWN_ROUTE_CHARS]
        self.host = host[:SHOWN_ROUTE_CHARS]
        self.path = path[:SHOWN_ROUTE_CHARS]
        self.secret = secret
        self.outside: CountedStream | None = None


def _authority(host: str, port: int) -> str:
    name = written_host(host)
    return name if port == HTTPS_PORT else f"{name}:{port}"


def _header(secret: Secret, value: SecretStr) -> tuple[str, SecretStr]:
    """The header that carries a secret."""
    name, text = secret.header.lower(), value.get_secret_value()
    if name in HOP_BY_HOP | {"accept-encoding"} or name.startswith("proxy-"):
        raise AuthorError(
            f"the secret {secret.name} cannot be sent in the header {secret.header}, which is not "
            "for the host itself; name another one in agent.md"
        )
    if secret.scheme == "basic":
        text = base64.b64encode(f"{secret.username}:{text}".encode()).decode()
    text = text if secret.scheme == "plain" else f"{secret.scheme.capitalize()} {text}"
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", text):
        raise OperatorError(f"the secret {secret.name} holds what no HTTP header can carry")
    return name, SecretStr(text)
