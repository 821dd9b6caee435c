"""The bytes of a server's process <-> messages of the MCP SDK, a line each. Neither the number of
lines nor what is in one is believed: a server may flood, or print what is no message.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from orchestrator.errors import WireLost
from orchestrator.gateway.http.byte_stream import ByteStream
from orchestrator.runners.json_fields import has_more_parts

LINE_BYTES = 8 * 1024 * 1024
"""The longest message of a server; a longer one ends it."""

LINE_PARTS = 200_000
"""Texts, commas and brackets of one, outside of texts."""

JUNK_LINES = 1000
"""Lines that are no messages before a server is given up; some print a greeting."""

NOTICES_PER_SECOND = 200
"""Messages that answer nothing that was asked. A server that sends more is read more slowly, and so
waits."""

Ended = Callable[[str], None]
"""Told why no more will come."""

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


class ServerFlooded(Exception):
    """A server sends what it must not; the message goes on after its name."""


@asynccontextmanager
async def line_transport(stream: ByteStream, ended: Ended) -> AsyncIterator[Streams]:
    """A transport of the SDK on the stdin and stdout of a process."""
    due = AnswersDue()
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def pass_in() -> None:
        async with to_session:
            try:
                async for message in _messages(stream, due):
                    await to_session.send(message)
                ended("it has exited")
            except ServerFlooded as exc:
                ended(str(exc))
            except (OSError, WireLost):
                ended("its connection broke")
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # the session is over

    async def pass_out() -> None:
        async with from_session:
            async for message in from_session:
                due.count += isinstance(message.message, JSONRPCRequest)
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                try:
                    await stream.write(text.encode() + b"\n")
                except (OSError, WireLost):
                    await to_session.aclose()  # else its requests would wait for ever
                    return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pass_in)
        tasks.start_soon(pass_out)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()
            for end in (read, write, to_session, from_session):
                end.close()


class AnswersDue:
    """How many answers a server owes: those beyond are no more to it than other notices."""

    def __init__(self) -> None:
        self.count = 0

    def settles(self, message: object) -> bool:
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or not self.count:
            return False
        self.count -= 1
        return True


async def _messages(stream: ByteStream, due: AnswersDue) -> AsyncIterator[SessionMessage]:
    junk, notices, second = 0, 0, 0
    async for line in _lines(stream):
        message = _message(line)
        if message is None:
            junk += bool(line.strip())
            if junk > JUNK_LINES:
                raise ServerFlooded("it prints what is no message of MCP")
            continue
        yield message
        if due.settles(message.message):
            continue
        now = time.monotonic()
        notices, second = (notices + 1, second) if int(now) == second else (1, int(now))
        if notices >= NOTICES_PER_SECOND:
            await pause(second + 1 - now)


async def pause(seconds: float) -> None:
    """Let a server that floods wait: its pipe fills up meanwhile."""
    await anyio.sleep(seconds)


async def _lines(stream: ByteStream) -> AsyncIterator[bytes]:
    held = bytearray()
    while data := await stream.read():
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield bytes(held) + part
            held.clear()
        held += rest
        if len(held) > LINE_BYTES:
            raise ServerFlooded(f"it sent a message of more than {LINE_BYTES} bytes")


def _message(line: bytes) -> SessionMessage | None:
    if not line.lstrip().startswith(b"{") or len(line) > LINE_BYTES:
        return None
    text = line.decode(errors="replace")
    if has_more_parts(text, LINE_PARTS):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        return None
