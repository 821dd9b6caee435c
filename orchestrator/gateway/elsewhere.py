"""Work that may never end, done by another process: that can be killed, and no thread can.

anyio.to_process does the same, but leaves its process behind if the caller is cancelled while it
starts (seen with 4.16), so that an agent which hangs up in time could start them without end.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, TypeVarTuple

import anyio
from anyio.abc import Process
from anyio.lowlevel import RunVar
from anyio.streams.buffered import BufferedByteReceiveStream

MAX_WORKERS = 4
"""Processes that work at the same time; further callers wait."""

IDLE_WORKERS = 2
"""Processes that are kept for the next caller: a start takes a tenth of a second."""

WORKER_START_SECONDS = 60.0
"""For Python to start, on a machine that is busy."""

_LENGTH = struct.Struct(">Q")

T = TypeVar("T")
Given = TypeVarTuple("Given")


async def run_elsewhere(func: Callable[[*Given], T], *args: *Given, seconds: float) -> T:
    """Call a function that a module has. When it takes longer (TimeoutError), or the caller is
    cancelled, its process is killed; BrokenWorkerProcess if that ends by itself.
    """
    request = pickle.dumps((func, args))
    workers = _workers()
    async with workers.limiter:
        process = await workers.taken()
        try:
            with anyio.fail_after(seconds):
                answer = await _asked(process, request)
        except BaseException:
            await workers.killed(process)
            raise
        await workers.given_back(process)
    done, value = pickle.loads(answer)  # noqa: S301 of a process of ours
    if not done:
        raise value
    result: T = value
    return result


async def end_idle_workers() -> None:
    """End the processes that wait for a caller; the end of the event loop ends them too."""
    workers = _of_loop.get(None)
    if workers is not None:
        await workers.end_idle()


class _Workers:
    """The processes of one event loop."""

    def __init__(self) -> None:
        self.limiter = anyio.CapacityLimiter(MAX_WORKERS)
        self._all: set[Process] = set()
        self._idle: list[Process] = []
        self._end = asyncio.get_running_loop().create_task(self._end_with_loop())

    async def taken(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            await self.killed(process)
        with anyio.CancelScope(shield=True):  # cancelled in there, it would leave a process behind
            process = await anyio.open_process(
                [sys.executable, "-I", __file__], stderr=subprocess.DEVNULL, env={}
            )
            self._all.add(process)
        try:
            with anyio.fail_after(WORKER_START_SECONDS):
                await _asked(process, pickle.dumps(sys.path))
        except BaseException:
            await self.killed(process)
            raise
        return process

    async def given_back(self, process: Process) -> None:
        if len(self._idle) < IDLE_WORKERS:
            self._idle.append(process)
        else:
            await self.killed(process)

    async def end_idle(self) -> None:
        while self._idle:
            await self.killed(self._idle.pop())

    async def killed(self, process: Process) -> None:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()
        self._all.discard(process)

    async def _end_with_loop(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            for process in tuple(self._all):
                await self.killed(process)


_of_loop: RunVar[_Workers] = RunVar("_of_loop")


def _workers() -> _Workers:
    workers = _of_loop.get(None)
    if workers is None:
        workers = _Workers()
        _of_loop.set(workers)
    return workers


async def _asked(process: Process, request: bytes) -> bytes:
    assert process.stdin is not None  # noqa: S101 both are pipes
    assert process.stdout is not None  # noqa: S101
    answers = BufferedByteReceiveStream(process.stdout)
    try:
        await process.stdin.send(_LENGTH.pack(len(request)) + request)
        (size,) = _LENGTH.unpack(await answers.receive_exactly(_LENGTH.size))
        return await answers.receive_exactly(size)
    except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
        raise anyio.BrokenWorkerProcess from exc


def _work() -> None:
    """What the other process does: answer requests until there are no more."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)  # whatever is printed is no answer
    sys.path[:] = pickle.loads(_read(requests))  # noqa: S301 of the process that has started us
    _answer(answers, b"")
    while request := _read(requests):
        _answer(answers, _answer_to(request))


def _answer_to(request: bytes) -> bytes:
    try:
        func, args = pickle.loads(request)  # noqa: S301
        told: tuple[bool, Any] = (True, func(*args))
    except Exception as exc:  # noqa: BLE001 it is raised where it was asked for
        told = (False, exc)
    return pickle.dumps(told)


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(_LENGTH.size)
    return stream.read(_LENGTH.unpack(head)[0]) if len(head) == _LENGTH.size else b""


def _answer(stream: BinaryIO, answer: bytes) -> None:
    stream.write(_LENGTH.pack(len(answer)) + answer)
    stream.flush()


if __name__ == "__main__":
    _work()
