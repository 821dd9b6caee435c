"""A container's only way out: what is allowed gets through, what is not is explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from orchestrator.domain.agent import Network
from orchestrator.gateway import doorway
from orchestrator.gateway.egress import access as egress
from orchestrator.gateway.egress.access import EgressAccess, EgressSeen
from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http.headers import DENIED
from orchestrator.wire.streams import Stream
from tests.gateway.near import Client, connection, raw_answer
from tests.gateway.origin import Names, Origin, Talk, listening

pytestmark = pytest.mark.anyio


class Way:
    """An access that knows one server, by the name web.example, and what it told of."""

    def __init__(self, port: int, **fields: object) -> None:
        self.port = port
        self.names = Names(web_example="127.0.0.1", private_example="127.0.0.1")
        self.seen: list[EgressSeen] = []
        fields.setdefault("mode", "allow")
        fields.setdefault("allow", ("private.example",))
        fields.setdefault("allow_private", (f"web.example:{port}",))
        network = Network.model_validate(fields)
        self.access = EgressAccess(network, Dialer(self.names), self.seen.append)

    async def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Status, our mark, and body of the answer to one request."""
        async with connection(self.access.service) as stream:
            answer = await Client(stream).ask(method, target, {}, body)
            return answer.status, answer.headers.get(DENIED, ""), answer.body

    async def raw(self, sent: bytes) -> bytes:
        return await raw_answer(self.access.service, sent)


@asynccontextmanager
async def way_to(talk: Talk, **fields: object) -> AsyncIterator[Way]:
    async with listening(talk) as port:
        way = Way(port, **fields)
        with way.access:
            yield way


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def tunnel(way: Way) -> AsyncIterator[Stream]:
    async with connection(way.access.service) as stream:
        await stream.write(f"CONNECT web.example:{way.port} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert (await stream.read()).startswith(b"HTTP/1.1 200 ")
        yield stream


async def test_an_allowed_request_gets_through_and_is_told_of() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        target = f"http://Web.Example:{way.port}/a?b=c"
        assert await way.ask("POST", target, b"body") == (200, "", b"hello")
    assert origin.heads[0].decode().splitlines()[:2] == [
        "POST /a?b=c HTTP/1.1",
        f"host: web.example:{way.port}",
    ]
    assert origin.bodies == [b"body"]
    (seen,) = way.seen
    assert seen.model_copy(update={"duration_ms": 0}) == EgressSeen(
        host="web.example",
        port=way.port,
        method="POST",
        allowed=True,
        rule=f"web.example:{way.port}",
        status=200,
        bytes_out=len(origin.heads[0]) + 4,
        bytes_in=len(origin.answer),
    )


async def test_a_tunnel_carries_whatever_is_said_in_it() -> None:
    async with way_to(echo) as way:
        async with tunnel(way) as stream:
            await stream.write(b"\x16\x03\x01 anything")
            assert await stream.read() == b"\x16\x03\x01 anything"
            stream.end()
            assert await stream.read() == b""
        (seen,) = way.seen
    assert (seen.method, seen.status, seen.bytes_out, seen.bytes_in) == ("CONNECT", 200, 12, 12)


async def test_bytes_sent_right_behind_connect_belong_to_the_tunnel() -> None:
    async with way_to(echo) as way:
        head = f"CONNECT web.example:{way.port} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        async with connection(way.access.service) as stream:
            await stream.write(head + b"hurry")
            came = b""
            while not came.endswith(b"hurry"):
                came += await stream.read()


async def test_a_denied_host_is_explained_marked_told_of_and_never_resolved() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        raw = await way.raw(b"CONNECT Evil.example:443 HTTP/1.1\r\nhost: evil.example\r\n\r\n")
        status, mark, body = await way.ask("GET", "http://evil.example/")
    why = "evil.example:443 blocked: not under network.allow in agent.md"
    line, _, rest = raw.partition(b"\r\n")
    assert line.decode() == f"HTTP/1.1 403 {why}; retrying will not help"
    assert f"{DENIED}: host".encode() in rest
    assert f"refused by the orchestrator: {why}".encode() in rest
    assert (status, mark) == (403, "host")
    assert b"evil.example:80 blocked" in body
    assert way.access.denied_hosts == ("evil.example:443", "evil.example:80")
    assert [(seen.host, seen.port, seen.allowed, seen.status) for seen in way.seen] == [
        ("evil.example", 443, False, 403),
        ("evil.example", 80, False, 403),
    ]
    assert way.seen[0].why.startswith(why)
    assert way.names.asked == []


async def test_an_allowed_name_with_a_private_address_is_denied_after_resolving() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        status, mark, body = await way.ask("GET", "http://private.example/")
    assert (status, mark) == (403, "host")
    assert b"it has the private address 127.0.0.1" in body
    assert way.names.asked == ["private.example"]
    assert way.access.denied_hosts == ("private.example:80",)


async def test_what_cannot_be_reached_is_not_called_a_denial() -> None:
    async with way_to(Origin().talk) as way:
        pass
    way = Way(way.port)
    status, mark, body = await way.ask("GET", f"http://web.example:{way.port}/")
    assert (status, mark) == (502, "")
    assert b"connection refused" in body
    assert b"this is not a refusal by the orchestrator" in body
    (seen,) = way.seen
    assert (seen.allowed, seen.status) == (True, 502)
    assert "connection refused" in seen.why
    assert way.access.denied_hosts == ()


async def test_nobody_else_can_say_that_we_refused() -> None:
    origin = Origin(b"HTTP/1.1 403 No\r\nx-orchestrator-denied: host\r\ncontent-length: 0\r\n\r\n")
    async with way_to(origin.talk) as way:
        assert await way.ask("GET", f"http://web.example:{way.port}/") == (403, "", b"")


async def test_the_proxy_tells_what_is_allowed_and_what_was_refused() -> None:
    async with way_to(Origin().talk) as way:
        await way.ask("GET", "http://evil.example/")
        status, mark, body = await way.ask("GET", "/")
        assert await way.ask("HEAD", "/") == (200, "", b"")
    assert (status, mark) == (200, "")
    assert body.decode().splitlines() == [
        "This is the agent's HTTP proxy.",
        "allowed: private.example",
        f"allowed, also on private addresses: web.example:{way.port}",
        "refused so far: evil.example:80",
    ]


@pytest.mark.parametrize(
    "request_line",
    [
        "GET https://web.example:PORT/ HTTP/1.1",
        "GET ftp://web.example:PORT/ HTTP/1.1",
        "GET http://user:pass@web.example:PORT/ HTTP/1.1",
        "GET http://web.example:PORT@evil.example/ HTTP/1.1",
        "GET http://evil.example\\@web.example:PORT/ HTTP/1.1",
        "GET http:///x HTTP/1.1",
        "GET http://web.example:PORT/#part HTTP/1.1",
        "GET /path HTTP/1.1",
        "GET //web.example/ HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT web.example HTTP/1.1",
        "CONNECT http://web.example:PORT HTTP/1.1",
        "CONNECT web.example:PORT/ HTTP/1.1",
        "CONNECT user@web.example:PORT HTTP/1.1",
        "CONNECT web.example:PORT:80 HTTP/1.1",
        "CONNECT web.example:999999 HTTP/1.1",
    ],
)
async def test_a_target_that_could_mean_two_things_goes_nowhere(request_line: str) -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        line = request_line.replace("PORT", str(way.port))
        answer = await way.raw(f"{line}\r\nhost: web.example\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert f"{DENIED}: request".encode() in answer
    assert origin.heads == []
    assert way.names.asked == []


@pytest.mark.parametrize("target", ["127.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:7f00:1]"])
async def test_this_machine_is_refused_however_it_is_written(target: str) -> None:
    origin = Origin()
    async with way_to(origin.talk, mode="open", allow=()) as way:
        for line in (f"GET http://{target}:{way.port}/", f"CONNECT {target}:{way.port}"):
            answer = await way.raw(f"{line} HTTP/1.1\r\nhost: web.example\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403 ")
    assert origin.heads == []


async def test_the_target_counts_and_not_the_host_header() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        line = f"GET http://web.example:{way.port}/ HTTP/1.1\r\n"
        answer = await way.raw(f"{line}Host: evil.example\r\n evil: folded\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 ")
        refused = await way.raw(b"GET http://evil.example/ HTTP/1.1\r\nhost: web.example\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 403 ")
    assert f"host: web.example:{way.port}\r\n".encode() in origin.heads[0]
    assert b"evil" not in origin.heads[0]


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /2 HTTP/1.1\r\n\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"content-length: -1\r\n\r\n",
        b"content-length: +5\r\n\r\nabcde",
        b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: identity\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"x: a\rb\r\n\r\n",
        b"x: a\0b\r\n\r\n",
    ],
)
async def test_a_body_or_header_that_could_be_read_in_two_ways_goes_nowhere(rest: bytes) -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        head = f"POST http://web.example:{way.port}/ HTTP/1.1\r\n".encode()
        answer = await way.raw(head + b"host: web.example\r\n" + rest)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 "))
    assert origin.heads == []


async def test_what_comes_after_a_body_is_no_second_request() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way:
        head = f"POST http://web.example:{way.port}/1 HTTP/1.1\r\nhost: x\r\n".encode()
        answer = await way.raw(
            head + b"content-length: 2\r\n\r\nok" + b"GET http://evil.example/ HTTP/1.1\r\n\r\n"
        )
    assert answer.count(b"HTTP/1.1 ") == 1
    assert (len(origin.heads), origin.bodies) == (1, [b"ok"])


async def test_connect_takes_no_body() -> None:
    async with way_to(echo) as way:
        head = f"CONNECT web.example:{way.port} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"
        answer = await way.raw(head.encode() + b"hello")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_redirect_is_passed_on_and_not_followed() -> None:
    origin = Origin(
        b"HTTP/1.1 302 F\r\nlocation: http://evil.example/\r\ncontent-length: 0\r\n\r\n"
    )
    async with way_to(origin.talk) as way:
        status, _, _ = await way.ask("GET", f"http://web.example:{way.port}/")
    assert status == 302
    assert way.names.asked == ["web.example"]


async def test_the_operators_proxy_is_for_the_outside_only() -> None:
    origin = Origin()
    async with (
        way_to(origin.talk, allow=("outside.example",)) as way,
        listening(origin.talk) as proxy,
    ):
        dialer = Dialer(way.names, {"http_proxy": f"http://127.0.0.1:{proxy}"})
        network = Network(
            mode="allow",
            allow=("outside.example",),
            allow_private=(f"web.example:{way.port}",),
        )
        way.access = EgressAccess(network, dialer)
        assert (await way.ask("GET", f"http://web.example:{way.port}/"))[0] == 200
        await way.ask("GET", "http://outside.example/")
    assert [head.split()[0] for head in origin.heads] == [b"GET", b"CONNECT"]
    assert origin.heads[1].startswith(b"CONNECT outside.example:80 HTTP/1.1")


async def test_a_name_that_only_the_operators_proxy_knows_has_to_be_written_out() -> None:
    origin = Origin()
    async with way_to(origin.talk) as way, listening(origin.talk) as proxy:
        dialer = Dialer(way.names, {"http_proxy": f"http://127.0.0.1:{proxy}"})
        network = Network(mode="allow", allow=("inside.example", "*.wild.example"))
        way.access = EgressAccess(network, dialer)
        status, mark, said = await way.ask("GET", "http://a.wild.example/")
        assert (status, mark) == (403, "host")
        assert b"cannot resolve the name" in said
        assert way.access.denied_hosts == ("a.wild.example:80",)
        await way.ask("GET", "http://inside.example/")
    assert [head.split()[1] for head in origin.heads] == [b"inside.example:80"]


async def test_connections_above_the_limit_are_refused_until_others_end() -> None:
    async with way_to(echo, max_connections=1) as way:
        async with tunnel(way) as stream:
            await stream.write(b"x")
            assert await stream.read() == b"x"
            status, mark, body = await way.ask("GET", f"http://web.example:{way.port}/")
            assert (status, mark) == (503, "connections")
            assert b"network.max_connections" in body
            stream.end()
            assert await stream.read() == b""
        async with tunnel(way):
            pass
    assert way.access.denied_hosts == ()


async def test_a_run_that_moved_all_it_may_is_cut_off_and_told_why() -> None:
    async with way_to(echo, max_mb=1) as way:
        async with tunnel(way) as quiet, tunnel(way) as greedy:
            moved = 0

            async def send() -> None:
                try:
                    while True:
                        await greedy.write(bytes(50_000))
                except OSError:
                    pass

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                try:
                    while data := await greedy.read():
                        moved += len(data)
                except ConnectionResetError:
                    pass
            with pytest.raises(ConnectionResetError):
                await quiet.read()
        assert moved < 1024 * 1024
        assert way.access.traffic_exhausted
        status, mark, body = await way.ask("GET", f"http://web.example:{way.port}/")
        assert (status, mark) == (403, "traffic")
        assert b"1 MiB, which is all that it may (network.max_mb in agent.md)" in body
        assert [seen.why[:4] for seen in way.seen] == ["cut:", "cut:", "refu"]


async def test_revoking_cuts_what_is_open_and_refuses_what_comes() -> None:
    async with way_to(echo) as way:
        async with tunnel(way) as stream:
            way.access.revoke()
            with pytest.raises(ConnectionResetError):
                await stream.read()
        async with connection(way.access.service) as stream:
            with pytest.raises(ConnectionResetError):
                await stream.read()
        assert [seen.status for seen in way.seen] == [200]


async def test_a_client_that_goes_away_takes_its_tunnel_with_it() -> None:
    ended = anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            ended.set()

    async with way_to(talk) as way, tunnel(way) as stream:
        stream.reset()
        await ended.wait()


async def test_denials_are_told_a_few_times_and_remembered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doorway, "DENIALS_PER_HOST", 2)
    monkeypatch.setattr(doorway, "MAX_DENIALS", 5)
    monkeypatch.setattr(egress, "MAX_DENIED_HOSTS", 4)
    async with way_to(echo) as way:
        for host in ("a", "b", "c", "d", "e"):
            for _ in range(3):
                status, _, _ = await way.ask("GET", f"http://{host}.example/")
                assert status == 403
    assert [seen.host[0] for seen in way.seen] == ["a", "a", "b", "b", "c"]
    assert way.access.denied_hosts == tuple(f"{host}.example:80" for host in "abcd")


async def test_a_listener_that_fails_does_not_change_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(seen: EgressSeen) -> None:
        raise RuntimeError("full")

    async with way_to(Origin().talk) as way:
        way.access._observer._on_seen = broken
        assert (await way.ask("GET", f"http://web.example:{way.port}/"))[0] == 200
    assert "could not be recorded" in caplog.text


async def test_credentials_of_requests_show_up_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with way_to(Origin().talk) as way:
        for target in (
            f"http://web.example:{way.port}/?key=hunter2",
            "http://u:hunter2@a.example/",
        ):
            async with connection(way.access.service) as stream:
                await Client(stream).ask("GET", target, {"authorization": "Bearer hunter2"})
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr((way.seen, way.access, way.access.denied_hosts))


async def test_a_tunnel_in_which_nothing_moves_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.gateway.http.tunnel.IDLE_SECONDS", 0.2)
    async with way_to(echo) as way, tunnel(way) as stream:
        with pytest.raises(ConnectionResetError):
            await stream.read()
