"""TCP connections: nothing that arrived is lost, and nothing from before TLS counts."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from pathlib import Path

import anyio
import pytest

from orchestrator.gateway.http.loopback import listen_on_loopback
from orchestrator.gateway.http.socket_stream import SocketStream
from tests.gateway.near import PATIENCE
from tests.gateway.origin import certificate, connect, listening

pytestmark = pytest.mark.anyio

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def test_what_came_before_a_reset_can_still_be_read() -> None:
    """A server that refuses an upload answers, closes, and so resets: its answer counts."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"413")
        await writer.drain()
        await reader.readexactly(2)
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
        )

    async with listening(talk) as port:
        connection = await connect(port)
        with anyio.fail_after(PATIENCE):
            while not connection._waiting:
                await anyio.sleep(0.001)
            await connection.write(b"go")
            await connection._lost.wait()
            assert await connection.read() == b"413"
            with pytest.raises(ConnectionResetError):
                await connection.read()
            with pytest.raises(BrokenPipeError):
                await connection.write(b"more")


async def test_a_peer_that_speaks_before_the_handshake_is_not_believed(tmp_path: Path) -> None:
    trusted, context = certificate(tmp_path, "web.example")
    ours = ssl.create_default_context(cafile=str(trusted))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nforged")
        await writer.drain()
        await writer.start_tls(context)

    async with listening(talk) as port:
        connection = await connect(port)
        with anyio.fail_after(PATIENCE):
            while not connection._waiting:
                await anyio.sleep(0.001)
            with pytest.raises(ConnectionResetError, match="before the TLS handshake"):
                await connection.secure("web.example", ours)
        connection.reset()


async def test_an_accepted_connection_is_served_and_ended_like_a_dialled_one() -> None:
    async def echo(stream: SocketStream) -> None:
        while data := await stream.read():
            await stream.write(data)
        stream.end()

    async with listen_on_loopback(echo) as url:
        connection = await connect(int(url.rpartition(":")[2]))
        assert connection.address == "127.0.0.1"
        with anyio.fail_after(PATIENCE):
            await connection.write(b"back")
            assert await connection.read() == b"back"
            connection.end()
            assert await connection.read() == b""
            await connection.aclose()


async def test_a_connection_that_is_lost_is_closed_without_a_word_to_its_transport(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11.2's TLS transport raises an AttributeError there."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        del reader
        writer.close()

    def not_there() -> None:
        raise AttributeError("'NoneType' object has no attribute '_abort'")

    async with listening(leave) as port:
        connection = await connect(port)
        with anyio.fail_after(PATIENCE):
            assert await connection.read() == b""
            connection._transport.close()
            await connection._lost.wait()
            monkeypatch.setattr(connection._transport, "abort", not_there)
            await connection.aclose()
            connection.reset()
