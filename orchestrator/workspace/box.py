"""What a container is to this package, and how one talks to the program inside it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import anyio.to_thread

from orchestrator.domain.container import Launch
from orchestrator.errors import CopyFailed
from orchestrator.workspace.reading.pack import LENGTH, shown

INSIDE_PROGRAM = (Path(__file__).parent / "inside.py").read_text()

AHEAD = 2
"""Batches that are read from the disk while another one is on its way."""

MAX_RECORD = 128 * 1024
"""Bytes of one record: a path and a target, every character of them escaped, are less."""

MAX_PIECE = 1024 * 1024
"""Bytes of one piece of a content."""

MAX_STDERR = 4096

FULL = 28
"""What the program inside exits with when the disk is full."""

Chunks = Generator[bytes, None, None]


class Reads(Protocol):
    async def read(self) -> bytes:
        """Some bytes, or b"" at the end."""
        ...


class Writes(Protocol):
    async def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...


class Program(Protocol):
    @property
    def stdin(self) -> Writes: ...
    @property
    def stdout(self) -> Reads: ...
    @property
    def stderr(self) -> Reads: ...
    async def wait(self) -> int: ...


class Box(Protocol):
    """A container that can start programs and end them all."""

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[Program]: ...
    async def kill_all(self) -> None: ...


class Gentle:
    """A box in which an agent is at work that must not be disturbed."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[Program]:
        return self._box.spawn(launch)

    async def kill_all(self) -> None:
        """Kill nothing: the agent goes on while its copy is read."""


class Odd(Exception):
    """What came out of a container is not what the program inside writes."""


class Reader:
    """Records and contents out of a stranger's bytes."""

    def __init__(self, source: Reads) -> None:
        self._source = source
        self._buffer = bytearray()

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._some()
            if not data:
                raise Odd("it broke off")
            self._buffer += data
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def record(self) -> list[object]:
        """A list that begins with two texts: what it is, and a path."""
        size = LENGTH.unpack(await self.exactly(LENGTH.size))[0]
        if size > MAX_RECORD:
            raise Odd("a record is too long")
        try:
            fields = json.loads(await self.exactly(size))
        except (ValueError, RecursionError) as exc:
            raise Odd("a record is no JSON") from exc
        if not (isinstance(fields, list) and len(fields) > 1 and _texts(fields[:2])):
            raise Odd("a record names nothing")
        return fields

    async def piece(self) -> bytes:
        """Some of a content; b"" at its end."""
        size = LENGTH.unpack(await self.exactly(LENGTH.size))[0]
        if size > MAX_PIECE:
            raise Odd("a piece is too long")
        return await self.exactly(size) if size else b""

    async def all_of(self, parts: list[bytes], most: int) -> None:
        """Keep everything up to the end. Odd if there is too much."""
        size = 0
        while data := await self._some():
            size += len(data)
            if size > most:
                raise Odd(f"it is larger than {most // 1024**2} MiB")
            parts.append(data)

    async def rest(self) -> None:
        """Read to the end, and keep nothing."""
        self._buffer.clear()
        while await self._some():
            pass

    async def _some(self) -> bytes:
        try:
            return await self._source.read()
        except ConnectionResetError as exc:
            raise Odd("it was cut off") from exc


def _texts(fields: list[object]) -> bool:
    return all(isinstance(field, str) for field in fields)


def program(verb: str, root: str, *args: str, as_root: bool = False) -> Launch:
    """The program inside, isolated from whatever an agent left for an interpreter to find; as
    root, by the interpreter that runs PID 1.
    """
    python = "/usr/bin/python3" if as_root else "python3"
    argv = (python, "-I", "-S", "-X", "utf8", "-c", INSIDE_PROGRAM, verb, root, *args)
    return Launch(argv=argv, errand=True, root=as_root)


async def talk(
    box: Box, launch: Launch, chunks: Chunks, read: Callable[[Reader], Awaitable[None]]
) -> None:
    """Feed a program from a worker thread while its output is read; CopyFailed unless it exits
    with 0.
    """
    said = bytearray()
    send, receive = anyio.create_memory_object_stream[bytes](AHEAD)
    try:
        async with box.spawn(launch) as process:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_produce, chunks, send)
                tasks.start_soon(_feed, process.stdin, receive)
                tasks.start_soon(_keep, process.stderr, said)
                reader = Reader(process.stdout)
                await read(reader)
                await reader.rest()
            code = await process.wait()
    except ExceptionGroup as group:
        raise _first(group) from group
    finally:
        send.close()
        receive.close()
        chunks.close()
    if code:
        words = shown(bytes(said).decode(errors="replace").strip())
        if code == FULL:
            raise CopyFailed(
                f"the disk that holds the copy is full ({words}); free some on the engine's machine"
            )
        raise CopyFailed(
            f"{launch.argv[0]} in the container ended with {code}: {words or 'no last words'}"
        )


async def nothing(_: Reader) -> None:
    """For a program whose output does not matter."""


async def _produce(chunks: Chunks, send: anyio.abc.ObjectSendStream[bytes]) -> None:
    async with send:
        while chunk := await anyio.to_thread.run_sync(next, chunks, b""):
            try:
                await send.send(chunk)
            except anyio.BrokenResourceError:
                return  # the program reads no more


async def _feed(stdin: Writes, receive: anyio.abc.ObjectReceiveStream[bytes]) -> None:
    async with receive:
        try:
            async for chunk in receive:
                await stdin.write(chunk)
            stdin.end()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has exited: its exit code tells


async def _keep(stderr: Reads, said: bytearray) -> None:
    try:
        while data := await stderr.read():
            said += data
            del said[:-MAX_STDERR]
    except ConnectionResetError:
        pass


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc
