"""One request through and one answer back: nothing held whole, nothing but what was understood."""

from __future__ import annotations

import asyncio
import re

import anyio
import pytest

from orchestrator.gateway.http.byte_stream import TURN_EVENTS
from orchestrator.gateway.http.forward import Filter, Forwarded, Outgoing, forward, passed_on
from orchestrator.gateway.http.headers import CLIENT_GONE, Headers
from orchestrator.gateway.http.request_head import read_head
from orchestrator.wire.streams import Stream
from tests.gateway.near import AtHand, Client, connection, raw_answer, turns_during
from tests.gateway.origin import HELLO, Origin
from tests.gateway.through import through, unchanged

pytestmark = pytest.mark.anyio


async def to_the_end(stream: Stream) -> bytes:
    came = b""
    while data := await stream.read():
        came += data
    return came


WHOLE = Forwarded(200, whole=True)


async def test_a_request_goes_through_with_its_headers_and_body_and_so_does_the_answer() -> None:
    origin = Origin(
        b"HTTP/1.1 201 Made It\r\nX-Thing: a\r\nSet-Cookie: b=c\r\nset-cookie: d=e\r\n"
        b"Content-Length: 4\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\n\r\ndone"
    )
    async with through(origin.talk) as way, connection(way.service) as stream:
        client = Client(stream)
        headers = {
            "Authorization": "mine",
            "Connection": "x-hop",
            "X-Hop": "1",
            "TE": "trailers",
            "Proxy-Authorization": "Basic x",
            "Upgrade": "h2c",
        }
        answer = await client.ask("PUT", "/a?b=c", headers, b"body")
    assert (answer.status, answer.body) == (201, b"done")
    assert client.raw.startswith(b"HTTP/1.1 201 Made It\r\n")
    assert client.raw.lower().count(b"set-cookie") == 2
    assert (answer.headers["x-thing"], answer.headers["connection"]) == ("a", "close")
    assert "keep-alive" not in answer.headers
    assert "proxy-authenticate" not in answer.headers
    assert origin.heads[0].decode().lower().splitlines() == [
        "put /a?b=c http/1.1",
        "host: web.example",
        "authorization: mine",
        "connection: close",
        "content-length: 4",
        "",
    ]
    assert origin.bodies == [b"body"]
    assert way.passed == [Forwarded(201, whole=True)]


@pytest.mark.parametrize(
    ("asked", "said", "body"),
    [
        (
            b"GET / HTTP/1.1",
            b"200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            3,
        ),
        (b"GET / HTTP/1.1", b"200 OK\r\n\r\nuntil the end", 13),
        (b"GET / HTTP/1.0", b"200 OK\r\n\r\nuntil the end", 13),
        (b"GET / HTTP/1.1", b"200 OK\r\ncontent-length: 0\r\n\r\n", 0),
        (b"GET / HTTP/1.1", b"204 None\r\n\r\n", 0),
        (b"GET / HTTP/1.1", b"304 Same\r\ncontent-length: 99\r\n\r\n", 0),
        (b"HEAD / HTTP/1.1", b"200 OK\r\ncontent-length: 99\r\n\r\n", 0),
        (b"GET / HTTP/1.1", b"103 Hint\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", 1),
    ],
)
async def test_every_kind_of_body_is_passed_on_as_long_as_it_is(
    asked: bytes, said: bytes, body: int
) -> None:
    origin = Origin(b"HTTP/1.1 " + said)
    async with through(origin.talk) as way, connection(way.service) as stream:
        await stream.write(asked + b"\r\nhost: x\r\n\r\n")
        raw = await to_the_end(stream)
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head.lower() and body:
        rest = b"".join(re.findall(rb"\r?\n?[0-9a-f]+\r\n([^\r]*)", rest))
    assert len(rest) == body
    assert [passed.whole for passed in way.passed if isinstance(passed, Forwarded)] == [True]


async def test_a_large_upload_and_its_answer_are_never_held_whole() -> None:
    """The client sends a piece when it has got the one before back, so each has to pass at once."""
    piece, pieces = bytes(256 * 1024), 128
    whole = b"%x\r\n%b\r\n" % (len(piece), piece)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = pieces * len(piece)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % left)
        while left:
            size = int(await reader.readline(), 16)
            writer.write(await reader.readexactly(size))
            await writer.drain()
            await reader.readline()
            left -= size

    async with through(talk) as way, connection(way.service) as stream:
        await stream.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        head = await stream.read()
        assert head.endswith(b"\r\n\r\n")
        for _ in range(pieces):
            await stream.write(whole)
            got = 0
            while got < len(piece):
                data = await stream.read()
                assert data
                got += len(data)
            assert got == len(piece)
        assert await to_the_end(stream) == b""
    assert way.passed == [WHOLE]


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    origin = Origin()
    async with through(origin.talk) as way, connection(way.service) as stream:
        await stream.write(
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        )
        assert (await stream.read()).startswith(b"HTTP/1.1 100 ")
        await stream.write(b"ok")
        assert (await stream.read()).startswith(b"HTTP/1.1 200 ")
        await to_the_end(stream)
    assert origin.bodies == [b"ok"]
    assert b"expect" not in origin.heads[0].lower()


async def test_an_answer_before_the_end_of_the_request_is_passed_on() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Much\r\ncontent-length: 0\r\n\r\n")

    async with through(talk) as way, connection(way.service) as stream:
        await stream.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\nx")
        assert (await stream.read()).startswith(b"HTTP/1.1 413 Too Much")
        await to_the_end(stream)
    assert way.passed == [Forwarded(413, whole=True)]


async def test_a_client_that_goes_away_ends_it() -> None:
    asked, ended = anyio.Event(), anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        assert await reader.read() == b""
        ended.set()

    async with through(talk) as way:
        async with connection(way.service) as stream:
            await stream.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await asked.wait()
            stream.end()
            await ended.wait()
        assert way.passed == [Forwarded(CLIENT_GONE, whole=False)]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf",
    ],
)
async def test_an_answer_that_breaks_off_is_cut_for_the_client_as_well(said: bytes) -> None:
    origin = Origin(said)
    async with through(origin.talk) as way, connection(way.service) as stream:
        await stream.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await to_the_end(stream)
    assert way.passed == [Forwarded(200, whole=False)]


@pytest.mark.parametrize(
    "said", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 101 Up\r\n\r\n", b"x" * 100_000, b"HTTP/1.1 200"]
)
async def test_no_answer_is_said_to_be_none(said: bytes) -> None:
    origin = Origin(said)
    async with through(origin.talk) as way, connection(way.service) as stream:
        answer = await Client(stream).ask("GET", "/")
    assert answer.status == 502
    assert b"no answer from web.example" in answer.body


async def test_who_says_nothing_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr("orchestrator.gateway.http.forward.IDLE_SECONDS", 0.05)
    async with through(talk) as way, connection(way.service) as stream:
        answer = await Client(stream).ask("GET", "/")
    assert b"it said nothing for" in answer.body


async def test_two_lengths_of_an_answer_are_one_to_the_client() -> None:
    """The chunks count, as they do for everybody; the other length is not passed on."""
    origin = Origin(
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\ntransfer-encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad"
    )
    async with through(origin.talk) as way, connection(way.service) as stream:
        client = Client(stream)
        answer = await client.ask("GET", "/")
        assert await stream.read() == b""
    assert answer.body == b"abc"
    assert "content-length" not in answer.headers
    assert b"bad" not in client.raw


PIECES = 5000
CRUMBS = b"1\r\nx\r\n" * PIECES + b"0\r\n\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


class AfterUpload(AtHand):
    """Answers when all of a body in chunks has come."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._whole = anyio.Event()

    async def read(self, max_bytes: int = 64 * 1024) -> bytes:
        await self._whole.wait()
        return await super().read(max_bytes)

    async def write(self, data: bytes) -> None:
        await super().write(data)
        if self.written.endswith(b"0\r\n\r\n"):
            self._whole.set()


@pytest.mark.parametrize("who", ["the client", "the host"])
async def test_crumbs_are_put_together_and_others_get_their_turn_meanwhile(who: str) -> None:
    if who == "the client":
        client = AtHand(b"POST / HTTP/1.1\r\nhost: x\r\n" + CHUNKED + CRUMBS)
        host: AtHand = AfterUpload(HELLO)
    else:
        client = AtHand(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        host = AtHand(b"HTTP/1.1 200 OK\r\n" + CHUNKED + CRUMBS)
    head = await read_head(client)
    assert head is not None
    request = Outgoing(head.method, "/", passed_on(head.headers, "web.example"))

    turns = await turns_during(lambda: forward(head, host, request, rewrite=unchanged))

    assert turns >= PIECES // TURN_EVENTS
    passed = host.written if who == "the client" else client.written
    assert len(passed) < 2 * PIECES
    assert passed.count(b"x") >= PIECES


class Blanked:
    """Replaces a word, also when it comes in two pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = (self._held + data).replace(b"secret", b"[gone]")
        self._held = data[-5:]
        return data[:-5]

    def finish(self) -> bytes:
        return self._held


async def test_an_answers_headers_and_body_can_be_rewritten_on_the_way() -> None:
    def rewrite(status: int, headers: Headers) -> tuple[Headers, Filter | None]:
        assert status == 302
        assert dict(headers) == {"location": "https://web.example/x"}
        return (("location", "/inside/x"), ("content-length", "1")), Blanked()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 F\r\nlocation: https://web.example/x\r\ncontent-length: 13\r\n")
        writer.write(b"\r\nmy sec")
        await writer.drain()
        writer.write(b"ret key")

    async with through(talk, rewrite) as way, connection(way.service) as stream:
        answer = await Client(stream).ask("GET", "/")
    assert answer.body == b"my [gone] key"
    assert answer.headers["location"] == "/inside/x"
    assert "content-length" not in answer.headers


async def test_a_header_that_would_be_two_is_not_sent() -> None:
    def rewrite(status: int, headers: Headers) -> tuple[Headers, Filter | None]:
        return (("location", "a\r\nx-evil: b"),), None

    async with through(Origin().talk, rewrite) as way, connection(way.service) as stream:
        client = Client(stream)
        answer = await client.ask("GET", "/")
    assert answer.status == 502
    assert b"x-evil" not in client.raw


async def test_a_second_request_on_the_same_connection_is_not_passed_on() -> None:
    origin = Origin()
    asked = b"GET /1 HTTP/1.1\r\nhost: x\r\n\r\n"
    async with through(origin.talk) as way:
        answer = await raw_answer(way.service, asked + asked.replace(b"/1", b"/2"))
    assert answer.count(b"HTTP/1.1 200") == 1
    assert len(origin.heads) == 1
