"""Heads of strangers: those that are none get one refusal, and nobody else sees them."""

from __future__ import annotations

import h11
import pytest

from orchestrator.gateway.http import request_head
from orchestrator.gateway.http.request_head import (
    HEAD_BYTES,
    MAX_HEADERS,
    RequestRefused,
    next_head,
)
from tests.gateway.near import PATIENCE, raw_answer
from tests.gateway.origin import Origin
from tests.gateway.through import Through, through

pytestmark = pytest.mark.anyio

TWO_LENGTHS = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n"
TWO_LENGTHS += b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", b"505"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\na b: c\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", b"400"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\nab", b"501"),
        (TWO_LENGTHS, b"400"),
    ],
)
async def test_what_is_not_plain_http_goes_nowhere(sent: bytes, status: bytes) -> None:
    origin = Origin()
    async with through(origin.talk) as way:
        answer = await raw_answer(way.service, sent)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert origin.heads == []


async def test_a_head_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "HEAD_SECONDS", 0.05)
    answer = await raw_answer(Through(1).service, b"GET / HTTP/1.1\r\nhost:")
    assert answer.startswith(b"HTTP/1.1 408")
    monkeypatch.setattr(request_head, "FIRST_BYTE_SECONDS", 0.05)
    assert await raw_answer(Through(1).service, b"") == b""


@pytest.mark.parametrize("piece", [1, 7, 4096, 1 << 20])
async def test_a_head_has_so_many_headers_and_bytes_however_it_comes(piece: int) -> None:
    line = b"x-a: b\r\n"
    fits = b"GET / HTTP/1.1\r\nhost: a\r\n" + line * (MAX_HEADERS - 1) + b"\r\n"
    more = fits[:-2] + line + b"\r\n"
    long = b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * HEAD_BYTES + b"\r\n\r\n"
    assert await refusal_of(fits + b"\n" * 1000, piece) == ""
    assert await refusal_of(more, piece) == f"a request has at most {MAX_HEADERS} headers"
    assert await refusal_of(long, piece) == f"a request's head has at most {HEAD_BYTES} bytes"


async def refusal_of(data: bytes, piece: int) -> str:
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    try:
        assert await next_head(http, Pieces(data, piece), PATIENCE) is not None
    except RequestRefused as exc:
        return str(exc)
    return ""


class Pieces:
    """A stream that hands out so many bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    async def read(self, max_bytes: int = -1, /) -> bytes:
        piece, self._data = self._data[: self._size], self._data[self._size :]
        return piece

    async def write(self, data: bytes, /) -> None: ...
    def end(self) -> None: ...
    def reset(self) -> None: ...
