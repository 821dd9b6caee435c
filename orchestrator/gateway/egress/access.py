"""The egress service: an HTTP proxy that knows the agent's rules, and tells what it did.

It is all that a container has of the network. A refusal says why and what would be needed, and
carries a header, so that the agent does not take it for the host's answer.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Network
from orchestrator.domain.container import MIB
from orchestrator.domain.hosts import written_host
from orchestrator.errors import WireLost
from orchestrator.gateway.doorway import Decided, Doorway, Observer, undecided
from orchestrator.gateway.egress.dial import Denied, Dialer, is_own
from orchestrator.gateway.egress.rules import EgressRules, HostVerdict
from orchestrator.gateway.http.byte_stream import ByteStream, CountedStream
from orchestrator.gateway.http.forward import Filter, Outgoing, forward, passed_on
from orchestrator.gateway.http.headers import CLIENT_GONE, DENIED, Headers
from orchestrator.gateway.http.request_head import Head
from orchestrator.gateway.http.socket_stream import SocketStream, Unreachable
from orchestrator.gateway.http.tunnel import splice

log = logging.getLogger(__name__)

MAX_DENIED_HOSTS = 100
"""Refused hosts that the result names."""

REASON_CHARS = 240
"""Of a denial in the status line, which is all that some programs show of it."""

METHOD_CHARS = 20
"""Of a method in an event: an agent may make one up."""

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

_HOST = r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[^\s\[\]:/?#@\\]{1,260})"
_CONNECT = re.compile(rf"{_HOST}:(?P<port>[0-9]{{1,5}})")
_ABSOLUTE = re.compile(
    rf"http://{_HOST}(:(?P<port>[0-9]{{0,5}}))?(?P<path>/[^\s#]*)?(?P<query>\?[^\s#]*)?",
    re.IGNORECASE,
)


class EgressSeen(Frozen):
    """One request or tunnel that has ended, or was refused."""

    host: str
    port: int
    method: str
    """CONNECT for a tunnel."""
    allowed: bool
    rule: str = ""
    """The rule in agent.md that decided, if one did."""
    why: str = ""
    """Why it was refused, or did not work."""
    status: int
    """As the container saw it; 499 when it did not wait for the answer."""
    bytes_out: int = 0
    bytes_in: int = 0
    duration_ms: int = 0


OnEgressSeen = Callable[[EgressSeen], None]


class EgressAccess:
    """One run's way out. Hold it by `with`: leaving the block closes it."""

    def __init__(
        self,
        network: Network,
        dialer: Dialer,
        on_seen: OnEgressSeen | None = None,
        *,
        decided: Decided = undecided,
        is_own: Callable[[str], bool] = is_own,
    ) -> None:
        """`on_seen` is told of all that passed, and of denials while they are few; `decided` is
        waited for before a connection is made or refused.
        """
        self._decided = decided
        self.traffic_exhausted = False
        """The run has sent and received all that it may."""
        self._network = network
        self._rules = EgressRules(network, is_own)
        self._dialer = dialer.for_one()
        self._denied: dict[str, None] = {}
        self._doorway = Doorway()
        self._observer = Observer(on_seen, "a request to a host")
        self._moved_bytes = 0
        self._busy = 0  # connections to hosts, under way or being made

    @property
    def denied_hosts(self) -> tuple[str, ...]:
        """host:port of what was refused, each once."""
        return tuple(self._denied)

    def revoke(self) -> None:
        """Cut everything; from now on nothing gets out."""
        self._doorway.revoke()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.revoke()

    def __repr__(self) -> str:
        return f"EgressAccess({self._network.mode}, {self._doorway.open_connections} open)"

    async def service(self, stream: ByteStream) -> None:
        """Answer a connection: `container.listen(EGRESS_PORT, "egress", access.service)`."""
        if self._doorway.revoked:
            stream.reset()
        else:
            await self._doorway.serve_one(stream, self._answer)

    async def _answer(self, head: Head) -> None:
        connect = _CONNECT.fullmatch(head.target) if head.method == "CONNECT" else None
        absolute = None if head.method == "CONNECT" else _ABSOLUTE.fullmatch(head.target)
        if head.method in ("GET", "HEAD") and head.target == "/":
            await head.answer(200, self._report())
        elif connect is not None and not head.has_body:
            await self._tunnel(head, connect["host"], int(connect["port"]))
        elif absolute is not None:
            path = (absolute["path"] or "/") + (absolute["query"] or "")
            await self._request(head, absolute["host"], int(absolute["port"] or 80), path)
        else:
            log.info("refused to a container: %r", head)
            await head.answer(
                400, _not_understood(head), headers=((DENIED, "request"),), reason="Bad Request"
            )

    async def _tunnel(self, head: Head, host: str, port: int) -> None:
        outside = await self._opened(head, host, port, "https")
        if outside is None:
            return
        status = CLIENT_GONE
        try:
            await head.client.write(ESTABLISHED)
            status = 200
            await splice(head.client, outside.stream, head.early)
        except (OSError, WireLost):
            log.debug("the client did not wait for its tunnel")
        finally:
            await self._close(outside, status)

    async def _request(self, head: Head, host: str, port: int, path: str) -> None:
        outside = await self._opened(head, host, port, "http")
        if outside is None:
            return
        known = outside.verdict.host
        name = written_host(known)
        headers = passed_on(head.headers, name if port == 80 else f"{name}:{port}")
        request = Outgoing(head.method, path, headers)
        status, why = CLIENT_GONE, ""
        try:
            passed = await forward(head, outside.stream, request, rewrite=_without_our_mark)
            status = passed.status
            why = "" if passed.whole or status == CLIENT_GONE else "the answer broke off"
        except Unreachable as exc:
            status, why = 502, str(exc)
            await _say_unreachable(head, why)
        finally:
            await self._close(outside, status, why)

    async def _opened(
        self, head: Head, host: str, port: int, scheme: Literal["http", "https"]
    ) -> _Outside | None:
        """A connection to a host that the rules allow; None when the client has been told no."""
        began = time.monotonic()
        verdict = self._rules.name(host, port)
        if not verdict.allowed:
            await self._deny(head, verdict, port)
            return None
        limit = self._limit()
        if limit is not None:
            status, kind, why = limit
            self._tell_denial(head, verdict, port, status, why)
            await head.answer(status, why, reason=why[:REASON_CHARS], headers=((DENIED, kind),))
            return None
        await self._decided("host", f"{verdict.host}:{port}", allowed=True, why=verdict.rule)
        try:
            upstream = await self._dial(verdict, port, scheme)
        except Denied as exc:
            await self._deny(head, verdict.model_copy(update={"why": str(exc), "rule": ""}), port)
        except Unreachable as exc:
            self._observer.tell(_seen(head, verdict, port, 502, str(exc), began))
            await _say_unreachable(head, str(exc))
        else:
            stream = CountedStream(upstream, self._count)
            return _Outside(head, verdict, port, began, upstream, stream)
        return None

    async def _dial(
        self, verdict: HostVerdict, port: int, scheme: Literal["http", "https"]
    ) -> SocketStream:
        vet = self._rules.vet(verdict.host, port)
        self._busy += 1
        try:
            return await self._dialer.dial(
                verdict.host, port, vet, scheme=scheme, direct=verdict.private
            )
        except BaseException:
            self._busy -= 1
            raise

    async def _close(self, outside: _Outside, status: int, why: str = "") -> None:
        """Let go of a connection, and tell what it came to."""
        await outside.socket.aclose()
        self._busy -= 1
        if self.traffic_exhausted:
            why = "cut: the run has sent and received all that it may (network.max_mb)"
        seen = _seen(outside.head, outside.verdict, outside.port, status, why, outside.began)
        sizes = {"bytes_out": outside.stream.bytes_out, "bytes_in": outside.stream.bytes_in}
        self._observer.tell(seen.model_copy(update=sizes))

    def _limit(self) -> tuple[int, str, str] | None:
        """Status, kind and sentence, when the run has used up what it may use."""
        if self.traffic_exhausted:
            return 403, "traffic", self._traffic_sentence()
        if self._busy >= self._network.max_connections:
            why = (
                f"refused by the orchestrator: {self._network.max_connections} connections are "
                "open, which is what this agent may have (network.max_connections in agent.md); "
                "let others end first"
            )
            return 503, "connections", why
        return None

    def _traffic_sentence(self) -> str:
        return (
            f"refused by the orchestrator: this run has sent and received {self._network.max_mb} "
            "MiB, which is all that it may (network.max_mb in agent.md); retrying will not help"
        )

    async def _deny(self, head: Head, verdict: HostVerdict, port: int) -> None:
        name = f"{verdict.host}:{port}"
        if len(self._denied) < MAX_DENIED_HOSTS:
            self._denied[name] = None
        self._tell_denial(head, verdict, port, 403, verdict.why)
        await self._decided("host", name, allowed=False, why=verdict.why)
        text = f"refused by the orchestrator: {verdict.why}"
        await head.answer(403, text, reason=verdict.why[:REASON_CHARS], headers=((DENIED, "host"),))

    def _tell_denial(
        self, head: Head, verdict: HostVerdict, port: int, status: int, why: str
    ) -> None:
        if self._observer.wants_denial(verdict.host):
            refused = verdict.model_copy(update={"allowed": False})
            self._observer.tell(_seen(head, refused, port, status, why, time.monotonic()))

    def _count(self, size: int) -> None:
        """Bytes that moved, in whichever direction. The last ones are not passed on."""
        self._moved_bytes += size
        if self._moved_bytes > self._network.max_mb * MIB and not self.traffic_exhausted:
            self.traffic_exhausted = True
            self._doorway.cut()
        if self.traffic_exhausted:
            raise ConnectionResetError("the run may send and receive no more")

    def _report(self) -> str:
        refused = "\n".join(f"refused so far: {name}" for name in self._denied)
        rules = self._rules.summary()
        return f"This is the agent's HTTP proxy.\n{rules}\n{refused or 'nothing refused so far'}"


@dataclass(frozen=True)
class _Outside:
    """One connection to a host, and the request it is for."""

    head: Head
    verdict: HostVerdict
    port: int
    began: float
    socket: SocketStream
    stream: CountedStream
    """The socket, whose bytes count against network.max_mb."""


def _seen(
    head: Head, verdict: HostVerdict, port: int, status: int, why: str, began: float
) -> EgressSeen:
    return EgressSeen(
        host=verdict.host,
        port=port,
        method=head.method[:METHOD_CHARS],
        allowed=verdict.allowed,
        rule=verdict.rule,
        why=why,
        status=status,
        duration_ms=round((time.monotonic() - began) * 1000),
    )


def _without_our_mark(status: int, headers: Headers) -> tuple[Headers, Filter | None]:  # noqa: ARG001
    """A host cannot claim that the orchestrator refused."""
    return tuple(pair for pair in headers if pair[0] != DENIED), None


async def _say_unreachable(head: Head, why: str) -> None:
    text = f"{why}. The host is allowed: this is not a refusal by the orchestrator, it did not work"
    await head.answer(502, text, reason=f"Unreachable: {why}"[:REASON_CHARS])


def _not_understood(head: Head) -> str:
    if head.target.lower().startswith("https://"):
        return "for https, ask this proxy for a tunnel: CONNECT host:443"
    if head.method == "CONNECT":
        return "CONNECT takes host:port, and no body"
    return (
        "this is an HTTP proxy: ask it for http://host/path, without a user name, or CONNECT; "
        "GET / tells what is allowed"
    )
