"""How connections to the outside end, and which ports there are."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from orchestrator.gateway.egress.dial import Dialer
from orchestrator.gateway.http import socket_stream
from tests.gateway.egress.test_access import way_to
from tests.gateway.egress.test_dial import HERE, anything
from tests.gateway.egress.test_rules import rules
from tests.gateway.near import PATIENCE, connection
from tests.gateway.origin import Names, listening

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("port", [1, 65535])
async def test_every_port_there_is_can_be_allowed(port: int) -> None:
    assert rules(allow=[f"example.org:{port}"]).name("example.org", port).allowed


@pytest.mark.parametrize("port", [-1, 0, 65536])
async def test_a_port_that_there_is_not_is_no_plain_port(port: int) -> None:
    assert "not a plain host name with a port" in rules(mode="open").name("example.org", port).why


async def test_the_other_side_has_all_that_was_written_and_a_clean_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        socket_stream, "SOCKET_LINGER_SECONDS", 3600
    )  # to close does not wait for it
    came: list[bytes] = []
    ended = anyio.Event()

    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        try:
            came.append(await reader.read())  # to the end; a reset would raise
        finally:
            ended.set()

    with anyio.fail_after(PATIENCE):
        async with listening(talk) as port:
            outside = await Dialer(Names(web_example=HERE)).dial("web.example", port, anything)
            await outside.write(b"last words")
            await outside.aclose()
            await ended.wait()
    assert came == [b"last words"]


async def test_an_answer_that_breaks_off_is_told_of() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhello")

    async with way_to(talk) as way, connection(way.access.service) as stream:
        await stream.write(
            f"GET http://web.example:{way.port}/ HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        )
        with suppress(ConnectionResetError):
            while await stream.read():
                pass
    assert [(seen.status, seen.why) for seen in way.seen] == [(200, "the answer broke off")]


async def test_a_client_that_leaves_does_not_make_an_answer_a_broken_one() -> None:
    answering = anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n")
        answering.set()
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    with anyio.fail_after(PATIENCE):
        async with way_to(talk) as way:
            async with connection(way.access.service) as stream:
                head = f"GET http://web.example:{way.port}/ HTTP/1.1\r\nhost: x\r\n\r\n"
                await stream.write(head.encode())
                await answering.wait()
                stream.reset()
            assert [(seen.status, seen.why) for seen in way.seen] == [(499, "")]


async def test_what_a_proxy_sends_right_behind_its_answer_is_not_lost() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhurry")

    async with listening(talk) as way:
        dialer = Dialer(Names(), {"https_proxy": f"http://{HERE}:{way}"})
        with anyio.fail_after(PATIENCE):
            outside = await dialer.dial("web.example", 443, anything)
            assert await outside.read() == b"hurry"
            await outside.aclose()
