"""Connections to addresses that were looked at first."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from pathlib import Path

import anyio
import pytest

from orchestrator.gateway.egress.dial import (
    MAX_RESOLVING_EACH,
    Denied,
    Dialer,
    SystemResolver,
    is_own,
)
from orchestrator.gateway.egress.proxies import Proxies
from orchestrator.gateway.http.socket_stream import SocketStream, Unreachable
from tests.gateway.near import PATIENCE
from tests.gateway.origin import Names, Origin, certificate, listening

pytestmark = pytest.mark.anyio

HERE = "127.0.0.1"


def anything(addresses: tuple[str, ...]) -> None:
    pass


async def exchange(connection: SocketStream, sent: bytes) -> bytes:
    """Send some bytes, and read to the end."""
    try:
        with anyio.fail_after(PATIENCE):
            await connection.write(sent)
            came = b""
            while data := await connection.read():
                came += data
            return came
    finally:
        await connection.aclose()


async def test_a_name_is_resolved_once_and_connected_to_where_it_was_looked_at() -> None:
    """A name that resolves to something else the next time gains nothing."""
    looked_at: list[tuple[str, ...]] = []
    answers = [(HERE,), ("10.0.0.1",)]

    async def rebinding(host: str, port: int) -> tuple[str, ...]:
        return answers.pop(0)

    origin = Origin()
    async with listening(origin.talk) as port:
        dialer = Dialer(rebinding)
        connection = await dialer.dial("web.example", port, looked_at.append)
        assert connection.address == HERE
        assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")
    assert looked_at == [(HERE,)]
    assert answers == [("10.0.0.1",)]


async def test_an_address_that_will_not_do_is_not_connected_to() -> None:
    origin = Origin()

    def refuse(addresses: tuple[str, ...]) -> None:
        raise Denied(f"not {addresses}")

    async with listening(origin.talk) as port:
        dialer = Dialer(Names(web_example=(HERE, "::1")))
        with pytest.raises(Denied, match=r"127\.0\.0\.1.*::1"):
            await dialer.dial("web.example", port, refuse)
        with pytest.raises(Denied):
            await dialer.dial(HERE, port, refuse)
    assert origin.heads == []


async def test_addresses_are_tried_in_turn() -> None:
    origin = Origin()
    async with listening(origin.talk) as port:
        dialer = Dialer(Names(web_example=("127.0.0.2", HERE)))
        connection = await dialer.dial("web.example", port, anything)
        assert connection.address == HERE
        connection.reset()


async def test_what_cannot_be_reached_says_why() -> None:
    async with listening(Origin().talk) as port:
        pass
    dialer = Dialer(Names(web_example=HERE, crowd_example=(HERE,) * 65))
    with pytest.raises(Unreachable, match=f"cannot connect to web.example:{port} .*refused"):
        await dialer.dial("web.example", port, anything)
    with pytest.raises(Unreachable, match=r"nowhere\.example has no address"):
        await dialer.dial("nowhere.example", 80, anything)
    with pytest.raises(Unreachable, match="too many"):
        await dialer.dial("crowd.example", 80, anything)


async def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(host: str, port: int) -> tuple[str, ...]:
        await anyio.sleep_forever()
        return ()

    monkeypatch.setattr("orchestrator.gateway.egress.dial.RESOLVE_SECONDS", 0.01)
    with anyio.fail_after(PATIENCE), pytest.raises(Unreachable, match="could not be found within"):
        await Dialer(silent).dial("web.example", 80, anything)


async def test_a_lookup_has_its_place_until_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who gives up leaves the thread behind: no others may take its place until it is done."""
    may_end, asked = threading.Event(), []

    def slow(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host == "slow.example":
            may_end.wait(PATIENCE)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(2, 1, 6, "", (HERE, port))]

    monkeypatch.setattr("orchestrator.gateway.egress.dial.RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr("orchestrator.gateway.egress.dial.MAX_RESOLVING", MAX_RESOLVING_EACH + 1)
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    dialer = Dialer()
    greedy, other = dialer.for_one(), dialer.for_one()

    async def ask(one: Dialer) -> None:
        with pytest.raises(Unreachable, match="could not be found within"):
            await one.dial("slow.example", 80, anything)

    try:
        with anyio.fail_after(PATIENCE):
            for _ in range(3):
                async with anyio.create_task_group() as tasks:
                    for _ in range(MAX_RESOLVING_EACH):
                        tasks.start_soon(ask, greedy)
            assert asked == ["slow.example"] * MAX_RESOLVING_EACH
            # Another run has its own.
            monkeypatch.setattr("orchestrator.gateway.egress.dial.RESOLVE_SECONDS", PATIENCE)
            assert await other._addresses("quick.example", 80) == (HERE,)
            # So does the operator's proxy, whoever wants to be led through it.
            assert await greedy._addresses("proxy.example", 80, of_proxy=True) == (HERE,)
    finally:
        may_end.set()
    with anyio.fail_after(PATIENCE):
        assert await greedy._addresses("quick.example", 80) == (HERE,)
        while dialer._lookups:
            await anyio.sleep(0.001)


async def test_the_systems_resolver_knows_this_machine() -> None:
    assert HERE in await SystemResolver()("localhost", 80)
    assert is_own(HERE)
    assert not is_own("93.184.216.34")
    assert not is_own("no address")


async def test_both_sides_may_end_on_their_own() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(-1))

    async with listening(talk) as port:
        connection = await Dialer(Names(web_example=HERE)).dial("web.example", port, anything)
        await connection.write(b"until the end")
        connection.end()
        with anyio.fail_after(PATIENCE):
            assert await connection.read() == b"until the end"
            assert await connection.read() == b""
        await connection.aclose()
        with pytest.raises(BrokenPipeError):
            await connection.write(b"too late")


async def test_a_reader_that_takes_its_time_holds_the_sender_back() -> None:
    size = 8 * 1024 * 1024

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size))
        await writer.drain()

    async with listening(talk) as port:
        connection = await Dialer(Names(web_example=HERE)).dial("web.example", port, anything)
        got = most = 0
        with anyio.fail_after(PATIENCE):
            while data := await connection.read(1000):
                got += len(data)
                most = max(most, connection._waiting)
        await connection.aclose()
    assert got == size
    assert most < 1024 * 1024


@pytest.mark.waits
async def test_tls_is_spoken_with_whoever_can_prove_its_name(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "web.example")
    origin = Origin()
    async with listening(origin.talk, context) as port:
        names = Names(web_example=HERE, other_example=HERE)
        dialer = Dialer(names, ssl_context=ssl.create_default_context(cafile=str(trusted)))
        connection = await dialer.dial("web.example", port, anything, tls=True)
        assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")
        with pytest.raises(Unreachable, match="could not prove who it is"):
            await dialer.dial("other.example", port, anything, tls=True)
        with pytest.raises(Unreachable, match=r"self-signed.*SSL_CERT_FILE"):
            await Dialer(names).dial("web.example", port, anything, tls=True)
    async with listening(origin.talk) as port:
        with pytest.raises(Unreachable, match="no TLS with"):
            await dialer.dial("web.example", port, anything, tls=True)


class UpstreamProxy:
    """An operator's proxy: connects to this machine, whatever it is asked for."""

    def __init__(self, port: int, status: str = "200 OK") -> None:
        self.port = port
        self.status = status
        self.heads: list[bytes] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("200"):
            return
        far_reader, far_writer = await asyncio.open_connection(HERE, self.port)

        async def back() -> None:
            while data := await far_reader.read(65536):
                writer.write(data)
            writer.write_eof()

        task = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                far_writer.write(data)
            await task
        finally:
            task.cancel()
            far_writer.close()


async def test_the_operators_proxy_is_the_way_out_where_there_is_one() -> None:
    origin = Origin()
    async with listening(origin.talk) as port:
        proxy = UpstreamProxy(port)
        async with listening(proxy.talk) as way:
            url = f"http://me:p%40ss@{HERE}:{way}"
            dialer = Dialer(Names(web_example="93.184.216.34"), {"HTTPS_PROXY": url})
            looked_at: list[tuple[str, ...]] = []
            connection = await dialer.dial("web.example", port, looked_at.append)
            assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")
            # A name that only the proxy knows is left to it, if nobody minds.
            connection = await dialer.dial("inside.example", port, looked_at.append)
            assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")
    assert looked_at == [("93.184.216.34",), ()]
    secret = base64.b64encode(b"me:p@ss").decode()
    assert proxy.heads[0].decode().splitlines() == [
        f"CONNECT web.example:{port} HTTP/1.1",
        f"host: web.example:{port}",
        f"proxy-authorization: Basic {secret}",
        "",
    ]
    assert "p%40ss" not in repr(dialer)
    assert secret not in repr(dialer)


async def test_tls_goes_through_the_operators_proxy(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "web.example")
    async with (
        listening(Origin().talk, context) as port,
        listening(UpstreamProxy(port).talk) as way,
    ):
        ours = ssl.create_default_context(cafile=str(trusted))
        dialer = Dialer(Names(), {"all_proxy": f"{HERE}:{way}"}, ours)
        connection = await dialer.dial("web.example", port, anything, tls=True)
        assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")


async def test_a_denied_address_is_not_asked_of_the_proxy_either() -> None:
    def refuse(addresses: tuple[str, ...]) -> None:
        raise Denied("no")

    proxy = UpstreamProxy(1)
    async with listening(proxy.talk) as way:
        dialer = Dialer(Names(web_example="10.0.0.1"), {"https_proxy": f"http://{HERE}:{way}"})
        for name in ("web.example", "unknown.example"):
            with pytest.raises(Denied):
                await dialer.dial(name, 443, refuse)
    assert proxy.heads == []


async def test_hosts_on_the_inside_are_reached_directly() -> None:
    origin = Origin()
    async with listening(origin.talk) as port:
        names = Names(web_example=HERE)
        dead = {"https_proxy": f"http://{HERE}:1", "NO_PROXY": "other.example, .example"}
        for dialer, direct in (
            (Dialer(names, {"https_proxy": f"http://{HERE}:1"}), True),
            (Dialer(names, dead), False),
        ):
            connection = await dialer.dial("web.example", port, anything, direct=direct)
            assert (await exchange(connection, b"GET / HTTP/1.1\r\n\r\n")).endswith(b"hello")


async def test_a_proxy_that_says_no_is_told_of_without_its_password() -> None:
    proxy = UpstreamProxy(1, "407 Proxy Authentication Required")
    async with listening(proxy.talk) as way:
        url = f"http://me:hunter2@{HERE}:{way}"
        with pytest.raises(
            Unreachable, match=r"proxy does not connect to a\.b:443 .*407"
        ) as caught:
            await Dialer(Names(), {"https_proxy": url}).dial("a.b", 443, anything)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(Unreachable, match="cannot be used") as caught:
        await Dialer(Names(), {"ALL_PROXY": "socks5://me:hunter2@x"}).dial("a.b", 443, anything)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(Unreachable, match="connect to the operator's proxy"):
        await Dialer(Names(), {"https_proxy": f"http://{HERE}:1"}).dial("a.b", 443, anything)


@pytest.mark.parametrize(
    ("no_proxy", "host", "exempt"),
    [
        ("", "a.example", False),
        ("*", "a.example", True),
        ("example", "a.example", True),
        ("a.example", "a.example", True),
        (".example", "a.example", True),
        ("*.example", "a.example", True),
        ("ample", "a.example", False),
        ("a.example:443", "a.example", True),
        ("a.example:80", "a.example", False),
        ("10.0.0.0/8", "10.1.1.1", True),
        ("10.0.0.0/8", "11.1.1.1", False),
        ("::1", "::1", True),
        ("x, A.EXAMPLE", "a.example", True),
    ],
)
def test_no_proxy_is_read_as_others_read_it(no_proxy: str, host: str, exempt: bool) -> None:
    proxies = Proxies({"HTTPS_PROXY": "http://proxy:3128", "no_proxy": no_proxy})
    assert (proxies.way_to(host, 443, "https") is None) is exempt


def test_each_scheme_has_its_proxy() -> None:
    proxies = Proxies({"HTTP_PROXY": "http://plain", "ALL_PROXY": "all:3128"})
    assert repr(proxies.way_to("a.example", 80, "http")) == "Proxy(plain:80)"
    assert repr(proxies.way_to("a.example", 443, "https")) == "Proxy(all:3128)"
    assert Proxies({}).way_to("a.example", 443, "https") is None
