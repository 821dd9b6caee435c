"""HTTP from strangers: whole and plain requests are answered, everything else ends there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import anyio
import h11
import pytest

from orchestrator.gateway.http import request_head
from orchestrator.gateway.http import server as http_server
from orchestrator.gateway.http.byte_stream import TURN_EVENTS
from orchestrator.gateway.http.server import BodyRoom, Cut, HttpRequest, HttpResponse, serve_http
from orchestrator.wire.streams import Stream
from tests.gateway.near import AtHand, Client, connection, raw_answer, turns_during

pytestmark = pytest.mark.anyio


class Echo:
    """Answers with what it was asked, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.room = BodyRoom()

    async def service(self, stream: Stream) -> None:
        await serve_http(stream, self.answer, self.room)

    async def answer(self, request: HttpRequest) -> HttpResponse:
        self.seen.append(request)
        return HttpResponse(200, (("content-type", "text/plain"),), request.body or b"nothing")


async def test_requests_on_one_connection_are_answered_in_turn() -> None:
    echo = Echo()
    async with connection(echo.service) as stream:
        client = Client(stream)
        first = await client.ask("GET", "/a?b=c")
        second = await client.ask("POST", "/d", {"X-Name": "v"}, b"hello" * 100_000)
        third = await client.ask("HEAD", "/")

    assert (first.status, first.body) == (200, b"nothing")
    assert second.body == b"hello" * 100_000
    assert (third.status, third.body) == (200, b"")
    assert [(r.method, r.path, r.query) for r in echo.seen] == [
        ("GET", "/a", "b=c"),
        ("POST", "/d", ""),
        ("HEAD", "/", ""),
    ]
    assert echo.seen[1].header("x-name") == "v"


async def test_pipelined_requests_are_answered_in_order() -> None:
    echo = Echo()
    one = b"POST /1 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\none"
    two = b"POST /2 HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nconnection: close\r\n\r\ntwo"
    answer = await raw_answer(echo.service, one + two)
    assert answer.index(b"one") < answer.index(b"two")


async def test_a_chunked_body_arrives_whole() -> None:
    echo = Echo()
    sent = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    answer = await raw_answer(echo.service, sent + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
    assert answer.endswith(b"abcde")


async def test_a_client_that_waits_for_a_go_gets_it() -> None:
    async with connection(Echo().service) as stream:
        head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
        await stream.write(head)
        assert (await stream.read()).startswith(b"HTTP/1.1 100 ")
        await stream.write(b"ok")
        assert (await stream.read()).startswith(b"HTTP/1.1 200 ")


POST = b"POST / HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n", 400),
        (POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        (POST + b"content-length: 3, 4\r\n\r\nabcd", 400),
        (POST + b"content-length: -1\r\n\r\n", 400),
        (POST + b"content-length: +3\r\n\r\nabc", 400),
        (POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", 400),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n", 501),
        (POST + b"content-length: 99999999999\r\n\r\n", 413),
        (POST + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (POST + b"x: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (b"G" * 70_000, 431),
    ],
)
async def test_what_is_not_plain_http_gets_a_refusal_and_the_end(sent: bytes, status: int) -> None:
    echo = Echo()
    answer = await raw_answer(echo.service, sent + b"GET /smuggled HTTP/1.1\r\nhost: a\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert answer.count(b"content-length") == 1
    assert b"connection: close" in answer.lower()
    assert echo.seen == []


async def test_a_body_that_only_grows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_BODY_BYTES", 1000)
    echo = Echo()
    sent = POST + b"transfer-encoding: chunked\r\n\r\n" + (b"64\r\n" + b"x" * 100 + b"\r\n") * 11
    assert (await raw_answer(echo.service, sent)).startswith(b"HTTP/1.1 413 ")
    assert echo.seen == []


async def test_a_body_in_crumbs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_PIECES", 10)
    head = POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    crumbs = head + (b"3f\r\n" + b"x" * 63 + b"\r\n") * 11 + b"0\r\n\r\n"
    assert (await raw_answer(Echo().service, crumbs)).startswith(b"HTTP/1.1 413 ")
    pieces = head + (b"40\r\n" + b"x" * 64 + b"\r\n") * 11 + b"0\r\n\r\n"
    assert (await raw_answer(Echo().service, pieces)).startswith(b"HTTP/1.1 200 ")
    few = head + b"1\r\nx\r\n" * 10 + b"0\r\n\r\n"
    assert (await raw_answer(Echo().service, few)).startswith(b"HTTP/1.1 200 ")


async def test_others_get_their_turn_while_a_body_comes_in_crumbs() -> None:
    pieces = 5000
    body = (b"64\r\n" + b"x" * 100 + b"\r\n") * pieces + b"0\r\n\r\n"
    stream = AtHand(POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n" + body)
    echo = Echo()
    turns = await turns_during(lambda: serve_http(stream, echo.answer))
    assert [len(request.body) for request in echo.seen] == [100 * pieces]
    assert turns >= pieces // TURN_EVENTS


async def test_a_client_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.05)
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(64 * 1024)

    async def close() -> None:
        closed.set()

    async def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), endless(), close)

    async def service(stream: Stream) -> None:
        await serve_http(stream, answer)

    async with connection(service) as stream:
        await stream.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await closed.wait()


async def test_bodies_held_at_once_are_bounded_and_the_room_comes_back() -> None:
    echo = Echo()
    echo.room = BodyRoom(1000)
    async with connection(echo.service) as one, connection(echo.service) as other:
        half = POST + b"content-length: 801\r\n\r\n" + b"x" * 800
        await one.write(half)
        await other.write(half)
        assert (await other.read()).startswith(b"HTTP/1.1 413 ")
        await one.write(b"x")
        assert (await one.read()).startswith(b"HTTP/1.1 200 ")
    assert echo.room.take(1000)


async def test_a_head_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "HEAD_SECONDS", 0.05)
    assert (await raw_answer(Echo().service, b"GET / HT")).startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.05)
    answer = await raw_answer(Echo().service, POST + b"content-length: 5\r\n\r\nab")
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_silent_connection_is_closed_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.05)
    assert await raw_answer(Echo().service, b"") == b""


async def test_a_handler_that_fails_tells_the_log_where_and_the_peer_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = "sk-secret"

    async def fail(_: HttpRequest) -> HttpResponse:
        raise ValueError(secret)

    async def service(stream: Stream) -> None:
        await serve_http(stream, fail)

    with caplog.at_level(logging.DEBUG):
        async with connection(service) as stream:
            client = Client(stream)
            assert (await client.ask("GET", "/")).status == 502
            assert (await client.ask("GET", "/")).status == 502

    assert b"sk-secret" not in client.raw
    assert "ValueError" in caplog.text
    assert "sk-secret" not in caplog.text


async def test_each_piece_is_sent_before_the_next_is_made() -> None:
    go_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"second"

    async def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), pieces())

    async def service(stream: Stream) -> None:
        await serve_http(stream, answer)

    got = []
    async with connection(service) as stream:
        client = Client(stream)
        await client.send("GET", "/", {}, b"")
        async for event in client.events():
            if isinstance(event, h11.Data):
                got.append(bytes(event.data))
                go_on.set()
    assert got == [b"first", b"second"]


@pytest.mark.parametrize("error", [Cut(), ValueError("sk-secret")])
async def test_an_answer_that_breaks_off_is_seen_to_break_off(error: Exception) -> None:
    closed = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        raise error

    async def close() -> None:
        closed.set()

    async def answer(_: HttpRequest) -> HttpResponse:
        return HttpResponse(200, (), pieces(), close)

    async def service(stream: Stream) -> None:
        await serve_http(stream, answer)

    answer_bytes = await raw_answer(service, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert answer_bytes.endswith(b"5\r\nfirst\r\n")
    assert closed.is_set()


@pytest.mark.parametrize("when", ["before the answer", "in the middle of it"])
async def test_a_peer_that_hangs_up_cancels_the_handler(when: str) -> None:
    waiting, cancelled, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        await wait()

    async def close() -> None:
        closed.set()

    async def answer(_: HttpRequest) -> HttpResponse:
        if when == "before the answer":
            closed.set()
            await wait()
        return HttpResponse(200, (), pieces(), close)

    async def service(stream: Stream) -> None:
        await serve_http(stream, answer)

    async with connection(service) as stream:
        await stream.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await waiting.wait()
        stream.end()
        await cancelled.wait()
        await closed.wait()
