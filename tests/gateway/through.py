"""A service that passes everything on to one server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http.forward import (
    Filter,
    Forwarded,
    Outgoing,
    Rewrite,
    forward,
    passed_on,
)
from orchestrator.gateway.http.headers import Headers
from orchestrator.gateway.http.request_head import read_head
from orchestrator.gateway.http.socket_stream import Unreachable
from orchestrator.wire.streams import Stream
from tests.gateway.origin import Names, Talk, listening


def unchanged(_: int, headers: Headers) -> tuple[Headers, Filter | None]:
    return headers, None


class Through:
    """A service that passes everything on to one server, and keeps what became of it."""

    def __init__(self, port: int, rewrite: Rewrite = unchanged) -> None:
        self.port = port
        self.rewrite = rewrite
        self.passed: list[Forwarded | str] = []

    async def service(self, stream: Stream) -> None:
        head = await read_head(stream)
        if head is None:
            return
        dialer = Dialer(Names(web_example="127.0.0.1"))
        upstream = await dialer.dial("web.example", self.port, lambda _: None)
        try:
            request = Outgoing(head.method, head.target, passed_on(head.headers, "web.example"))
            self.passed.append(await forward(head, upstream, request, rewrite=self.rewrite))
        except Unreachable as exc:
            self.passed.append(str(exc))
            await head.answer(502, str(exc))
        finally:
            await upstream.aclose()


@asynccontextmanager
async def through(talk: Talk, rewrite: Rewrite = unchanged) -> AsyncIterator[Through]:
    async with listening(talk) as port:
        yield Through(port, rewrite)
