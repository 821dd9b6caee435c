"""Servers and a resolver that nothing should reach: they keep whatever does."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

from orchestrator.gateway.egress.dial import Addresses, Dialer, Vet
from orchestrator.gateway.http.socket_stream import SocketStream, Unreachable

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\ncanary"

MAX_KEPT = 64 * 1024
"""Of what one connection says."""


class Canary:
    """Listens on every address of this machine, for TCP and UDP, and sings to whoever comes."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        """The beginning of what each connection, or each datagram, said."""
        self.bytes = 0
        self.answer: Callable[[bytes], bytes] = lambda _: HELLO
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(b"")
        number, answered = len(self.heard) - 1, False
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    self.bytes += len(data)
                    self.heard[number] = (self.heard[number] + data)[:MAX_KEPT]
                    if not answered and b"\r\n\r\n" in self.heard[number]:
                        answered = True
                        writer.write(self.answer(self.heard[number]))
                        await writer.drain()
        finally:
            writer.close()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, canary: Canary) -> None:
        self._canary = canary

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:
        self._canary.heard.append(data)


@asynccontextmanager
async def singing() -> AsyncIterator[Canary]:
    """A canary at one port of all addresses, and of an abstract unix socket."""
    canary, loop = Canary(), asyncio.get_running_loop()
    server = await asyncio.start_server(canary.connected, "0.0.0.0", 0)
    canary.port = server.sockets[0].getsockname()[1]
    datagrams, _ = await loop.create_datagram_endpoint(
        lambda: _Datagrams(canary), local_addr=("0.0.0.0", canary.port)
    )
    abstract = await asyncio.start_unix_server(canary.connected, f"\0canary-{canary.port}")
    try:
        yield canary
    finally:
        datagrams.close()
        for each in (server, abstract):
            each.close()
        await asyncio.sleep(0)
        await canary.end()


def own_addresses() -> tuple[str, ...]:
    """Where this machine can be reached, docker0 included."""
    found = {"127.0.0.1", "172.17.0.1"}
    found |= {str(row[4][0]) for row in socket.getaddrinfo(socket.gethostname(), None)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # asks the routing table; nothing is sent
        found.add(probe.getsockname()[0])
    return tuple(sorted(address for address in found if ":" not in address))


class Book:
    """A resolver: names and what they lead to, each time the next answer; and who was asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Addresses]] = {}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Addresses:
        self.asked.append(host)
        answers = self.answers.get(host)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]


class WatchedDialer(Dialer):
    """Keeps what the rules let through, and connects to nothing but this machine's loopback."""

    passed: list[tuple[str, Addresses]]

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
        def watched(addresses: Addresses) -> None:
            vet(addresses)
            self.passed.append((host, addresses))
            if not all(ipaddress.ip_address(address).is_loopback for address in addresses):
                raise Unreachable("a test connects to loopback only")

        return await super().dial(host, port, watched, tls=tls, scheme=scheme, direct=direct)
