"""A host and a port -> a connection to an address that the rules have seen first.

A name is resolved once. The caller's rules see all of its addresses, and the connection goes to one
of those: a name that resolves to something else a moment later gains nothing. Where this machine
reaches the world through a proxy, the connection goes through that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Literal, Self

import anyio
import anyio.to_thread
import h11

from orchestrator.domain.hosts import written_host
from orchestrator.gateway.egress.proxies import Proxies, Proxy
from orchestrator.gateway.http.request_head import ANSWER_HEAD_BYTES
from orchestrator.gateway.http.socket_stream import SocketStream, Unreachable

RESOLVE_SECONDS = 10.0
"""For the addresses of a name."""

DIAL_SECONDS = 10.0
"""For each address that is tried."""

PROXY_SECONDS = 30.0
"""For the operator's proxy to connect; it resolves and tries addresses itself."""

MAX_ADDRESSES = 64
"""Of one name. A name with more is refused: each of them would have to be looked at."""

MAX_TRIED = 4
"""Addresses of one name that are tried, one after the other."""

MAX_RESOLVING = 16
"""Names that are looked up at once: each takes a thread, and a dead name server is slow."""

MAX_RESOLVING_EACH = 4
"""Of one run, so that its slow names do not hold up those of others."""

Addresses = tuple[str, ...]
Resolve = Callable[[str, int], Awaitable[Addresses]]
"""All addresses of a name; OSError when there are none."""

Vet = Callable[[Addresses], None]
"""Looks at all addresses of a name and raises Denied if one of them will not do.

There are none to look at when the name is not known here, and is to be left to the operator's
proxy.
"""


class Denied(Exception):
    """It may not be connected to. The text is for the agent."""


def is_own(address: str) -> bool:
    """It is an address of this machine. Asks the routing table; nothing is sent."""
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return ipaddress.ip_address(probe.getsockname()[0]) == ipaddress.ip_address(address)
    except (OSError, ValueError):
        return False


class SystemResolver:
    """Names as this machine knows them."""

    def __init__(self) -> None:
        # Not anyio's shared limiter: a slow name server must not hold up the calls to the engine.
        self._limiter = anyio.CapacityLimiter(MAX_RESOLVING)

    async def __call__(self, host: str, port: int) -> Addresses:
        # Not abandoned: a caller that gives up leaves a thread behind, and that one counts.
        found = await anyio.to_thread.run_sync(
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), limiter=self._limiter
        )
        return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class Dialer:
    """Connects for all runs; made once."""

    def __init__(
        self,
        resolve: Resolve | None = None,
        environ: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._resolve = resolve or SystemResolver()
        self._resolve_proxy = resolve or SystemResolver()
        """Apart: names that take long, of whatever run, must not keep others from the proxy."""
        self._proxies = Proxies(environ or {})
        self._trust = [] if ssl_context is None else [ssl_context]
        """What TLS is spoken with; made when it is first needed, since that takes a while."""
        self._lookups: set[asyncio.Task[Addresses]] = set()
        self._own_lookups = anyio.CapacityLimiter(MAX_RESOLVING_EACH)

    def __repr__(self) -> str:
        return "Dialer()"

    def for_one(self) -> Self:
        """The same, for a run that has a few lookups of its own."""
        one = copy(self)
        one._own_lookups = anyio.CapacityLimiter(MAX_RESOLVING_EACH)  # noqa: SLF001 it is ours
        return one

    async def dial(
        self,
        host: str,
        port: int,
        vet: Vet,
        *,
        tls: bool = False,
        scheme: Literal["http", "https"] = "https",
        direct: bool = False,
    ) -> SocketStream:
        """Connect to a host whose addresses `vet` does not mind.

        Through the operator's proxy, if there is one for the scheme, unless it has to be direct. A
        name that only the proxy can resolve is left to it, if `vet` takes it without an address.
        Raises Denied, or Unreachable.
        """
        try:
            proxy = None if direct else self._proxies.way_to(host, port, scheme)
        except ValueError as exc:
            raise Unreachable(str(exc)) from None
        addresses: Addresses = ()
        try:
            addresses = await self._addresses(host, port)
        except Unreachable:
            if proxy is None:
                raise
        vet(addresses)
        if proxy is None:
            connection = await _connected(host, port, addresses)
        else:
            way = await self._addresses(proxy.host, proxy.port, of_proxy=True)
            connection = await _connected(proxy.host, proxy.port, way, what="the operator's proxy ")
        try:
            if proxy is not None:
                await _through(connection, proxy, host, port)
            if tls:
                await self._secured(connection, host, port)
        except BaseException:
            connection.reset()
            raise
        return connection

    async def _addresses(self, host: str, port: int, *, of_proxy: bool = False) -> Addresses:
        if ":" in host or host[-1:].isdigit():
            with suppress(ValueError):
                return (str(ipaddress.ip_address(host)),)
        try:
            with anyio.fail_after(RESOLVE_SECONDS):
                found = await self._looked_up(host, port, of_proxy=of_proxy)
        except TimeoutError:
            raise Unreachable(
                f"the addresses of {host} could not be found within {RESOLVE_SECONDS:.0f} s"
            ) from None
        except (OSError, UnicodeError):
            found = ()
        if not found:
            raise Unreachable(f"{host} has no address: the name is not known") from None
        if len(found) > MAX_ADDRESSES:
            raise Unreachable(f"{host} has {len(found)} addresses, which is too many to look at")
        return found

    async def _looked_up(self, host: str, port: int, *, of_proxy: bool) -> Addresses:
        """The addresses of a name. A caller that gives up leaves its lookup to end by itself: until
        then it counts among those of the run and of all runs.
        """
        scope = anyio.CancelScope()  # what waits for its place can be given up, a thread cannot

        async def look_up() -> Addresses:
            with scope:
                if of_proxy:
                    return await self._resolve_proxy(host, port)
                async with self._own_lookups:
                    return await self._resolve(host, port)
            return ()

        lookup = asyncio.get_running_loop().create_task(look_up())
        self._lookups.add(lookup)
        lookup.add_done_callback(self._forget)
        try:
            return await asyncio.shield(lookup)
        except BaseException:
            scope.cancel()
            raise

    def _forget(self, lookup: asyncio.Task[Addresses]) -> None:
        self._lookups.discard(lookup)
        if not lookup.cancelled():
            lookup.exception()  # else asyncio logs that it was never retrieved

    def ssl_context(self) -> ssl.SSLContext:
        """What TLS is spoken with; it trusts what this machine trusts."""
        if not self._trust:
            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            self._trust.append(context)
        return self._trust[0]

    async def _secured(self, connection: SocketStream, host: str, port: int) -> None:
        try:
            await connection.secure(host, self.ssl_context())
        except ssl.SSLCertVerificationError as exc:
            raise Unreachable(
                f"{host}:{port} could not prove who it is ({exc.verify_message}); if its "
                "certificate is a private one, the operator can set SSL_CERT_FILE"
            ) from None
        except (OSError, TimeoutError) as exc:
            raise Unreachable(f"no TLS with {host}:{port} ({_reason(exc)})") from None


async def _connected(host: str, port: int, addresses: Addresses, what: str = "") -> SocketStream:
    """A connection to the first address that answers."""
    reason = ""
    for address in addresses[:MAX_TRIED]:
        try:
            with anyio.fail_after(DIAL_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    SocketStream, address, port
                )
        except TimeoutError:
            reason = f"no answer within {DIAL_SECONDS:.0f} s"
        except OSError as exc:
            reason = _reason(exc)
        else:
            return connection
    raise Unreachable(f"cannot connect to {what}{host}:{port} ({reason})")


async def _through(connection: SocketStream, proxy: Proxy, host: str, port: int) -> None:
    """Ask a proxy for a tunnel, and leave the connection at its beginning."""
    target = f"{written_host(host)}:{port}"
    headers = [("host", target)]
    if proxy.authorization:
        headers.append(("proxy-authorization", proxy.authorization))
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=ANSWER_HEAD_BYTES)
    asked = http.send(h11.Request(method="CONNECT", target=target, headers=headers)) or b""
    asked += http.send(h11.EndOfMessage()) or b""
    try:
        with anyio.fail_after(PROXY_SECONDS):
            await connection.write(asked)
            while True:
                event = http.next_event()
                if event is h11.NEED_DATA:
                    http.receive_data(await connection.read())
                elif not isinstance(event, h11.InformationalResponse):
                    break
    except (OSError, TimeoutError, h11.RemoteProtocolError):
        raise Unreachable(f"the operator's proxy did not answer when asked for {target}") from None
    if not isinstance(event, h11.Response) or event.status_code // 100 != 2:
        said = event.status_code if isinstance(event, h11.Response) else "nothing"
        raise Unreachable(f"the operator's proxy does not connect to {target} (it said {said})")
    connection.unread(bytes(http.trailing_data[0]))


def _reason(exc: Exception) -> str:
    """What went wrong, without names and addresses that the agent did not ask for."""
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or "TLS failed").lower().replace("_", " ")
    if isinstance(exc, OSError) and exc.errno:
        return os.strerror(exc.errno).lower()
    return "the connection was closed"
