"""How much of a client is read before its turn."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from orchestrator.gateway.http.forward import EARLY_BYTES
from orchestrator.wire import warden as w
from tests.gateway.near import connection
from tests.gateway.origin import HELLO
from tests.gateway.through import through

pytestmark = pytest.mark.anyio


async def test_a_client_that_sends_on_while_its_answer_is_awaited_is_held_up() -> None:
    answer = anyio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer.wait()
        writer.write(HELLO)

    sent = 0
    async with through(talk) as way, connection(way.service) as stream:

        async def send_on() -> None:
            nonlocal sent
            while True:
                await stream.write(bytes(4096))
                sent += 4096

        async with anyio.create_task_group() as tasks:
            await stream.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            tasks.start_soon(send_on)
            await anyio.wait_all_tasks_blocked()
            assert EARLY_BYTES <= sent <= EARLY_BYTES + 2 * w.WINDOW
            tasks.cancel_scope.cancel()
        answer.set()
        assert (await stream.read()).startswith(b"HTTP/1.1 200 ")
