"""Messages in lines, on stdin and stdout, without waiting for either on the event loop."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from orchestrator.surfaces.connect.messages import Message

READ_BYTES = 256 * 1024

MESSAGE_BYTES = 64 * 1024 * 1024
"""Of one message of the client's."""


@asynccontextmanager
async def received_messages() -> AsyncIterator[MemoryObjectReceiveStream[Message]]:
    """What a client says on stdin, until it leaves, SIGTERM or SIGINT."""
    said, heard = anyio.create_memory_object_stream[Message](100)
    async with anyio.create_task_group() as group:
        group.start_soon(_end_on_signal, said)
        portal = await group.start(_portal)
        # Not a thread that Python waits for: nothing can interrupt its reading.
        threading.Thread(target=_read, args=(portal, said), daemon=True).start()
        with heard:
            yield heard
        group.cancel_scope.cancel()


async def _portal(*, task_status: anyio.abc.TaskStatus[anyio.from_thread.BlockingPortal]) -> None:
    async with anyio.from_thread.BlockingPortal() as portal:
        task_status.started(portal)
        await portal.sleep_until_stopped()


async def _end_on_signal(said: MemoryObjectSendStream[Message]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            said.close()


def _read(portal: anyio.from_thread.BlockingPortal, said: MemoryObjectSendStream[Message]) -> None:
    line = bytearray()
    try:
        while data := os.read(0, READ_BYTES):
            *ended, rest = (bytes(line) + data).split(b"\n") if b"\n" in data else (line + data,)
            for each in ended:
                message = _message(each)
                if message is not None:
                    portal.call(said.send, message)
            line = bytearray(rest)
            if len(line) > MESSAGE_BYTES:
                break
        portal.call(said.aclose)
    except (OSError, RuntimeError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return  # we are ending


def _message(line: bytes) -> Message | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


class Lines:
    """Messages to stdout, each a line, one at a time."""

    def __init__(self) -> None:
        self._one = anyio.Lock()

    async def send(self, message: Message) -> None:
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        async with self._one:
            with anyio.CancelScope(shield=True):  # half a line would spoil the next
                await anyio.to_thread.run_sync(_write, line)


def _write(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]
