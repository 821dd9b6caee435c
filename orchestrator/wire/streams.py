"""Frames -> streams: many ordered byte streams over one wire, none of which can block another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar

import anyio.lowlevel

from orchestrator.errors import WireLost
from orchestrator.wire import warden as w

GRANT = w.WINDOW // 2
"""Bytes read before the sender is granted credit again: half a window keeps it busy, with few
frames."""

SMALL_BYTES = 4096
"""Join pieces smaller than this: a Python object of its own for each would take more memory than
the bytes in it."""


RELAYS_PER_TURN = 2
"""Of the relayed connections of one container, so many go on in one turn of the event loop. There
may be hundreds, and what each does in its turn takes up to a millisecond: a neighbour's wire would
wait for all of them, turn after turn."""

RELAY_SHARE = 0.25
"""The part of the event loop's time that those of one container may take, if more of them want to
go on than may in one turn."""

RELAY_PAUSE_SECONDS = 0.05
"""What they wait for each other at most: a turn may be long for another reason."""


class Turnstile:
    """Lets the relayed connections of one wire go on, so many in each turn of the event loop."""

    def __init__(self) -> None:
        self._gone_on = 0
        self._waiting: deque[Callable[[], object]] = deque()
        self._scheduled = False

    def lets_pass(self) -> bool:
        """One more may go on in this turn; it counts."""
        if self._waiting or self._gone_on >= RELAYS_PER_TURN:
            return False
        self._gone_on += 1
        self._schedule()
        return True

    def call(self, action: Callable[[], object]) -> None:
        """Now or in a later turn, in the order in which they came."""
        if self.lets_pass():
            action()
        else:
            self._waiting.append(action)
            self._schedule()

    async def turn(self) -> None:
        """Wait for one of the next turns."""
        come = asyncio.Event()
        self._waiting.append(come.set)
        self._schedule()
        await come.wait()

    def open(self) -> None:
        """The wire has ended: let all go on that wait."""
        while self._waiting:
            self._waiting.popleft()()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._scheduled, self._gone_on = False, 0
        while self._waiting and self._gone_on < RELAYS_PER_TURN:
            self._gone_on += 1
            self._waiting.popleft()()
        if self._waiting:
            self._scheduled = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._pause, loop.time())
        elif self._gone_on:
            self._schedule()

    def _pause(self, began: float) -> None:
        """After those that went on have had their turn: the others wait for their share."""
        loop = asyncio.get_running_loop()
        pause = (loop.time() - began) * (1 / RELAY_SHARE - 1)
        loop.call_later(min(pause, RELAY_PAUSE_SECONDS), self._next)


_passing: ContextVar[Turnstile | None] = ContextVar("passing", default=None)


def pass_through(turnstile: Turnstile) -> None:
    """From now on this task, and those that it starts, give way by this one."""
    _passing.set(turnstile)


async def give_way() -> None:
    """Let others have the event loop before going on with something that takes long."""
    turnstile = _passing.get()
    if turnstile is None:
        await anyio.lowlevel.checkpoint()
    else:
        await turnstile.turn()


class Stream:
    """One byte stream each way. At most a window's worth waits in either direction.

    One task reads and one task writes at a time.
    """

    def __init__(self, number: int, mux: Mux, turnstile: Turnstile | None = None) -> None:
        self.number = number
        self._mux = mux
        self._turnstile = turnstile
        """Of a relayed connection."""
        self._chunks: deque[bytes | bytearray] = deque()
        self._waiting = 0  # bytes in _chunks
        self._read_since_grant = 0
        self._credit = w.WINDOW
        self._read_ended = False
        self._write_ended = False
        self._reset = False
        self._changed: asyncio.Event | None = None

    async def read(self, max_bytes: int = w.MAX_PAYLOAD) -> bytes:
        """Some bytes, or b"" at the end. What had arrived is delivered before any error."""
        while not (self._chunks or self._read_ended):
            self._raise_if_broken()
            await self._change()
        # The end goes through it as well: hundreds of connections can end in one frame's time.
        if self._turnstile is not None and not self._turnstile.lets_pass():
            await self._turnstile.turn()
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        if len(data) > max_bytes:
            self._chunks.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        self._waiting -= len(data)
        self._read_since_grant += len(data)
        if self._read_since_grant >= GRANT and not self._read_ended:
            self._mux.send(w.CREDIT, self.number, self._read_since_grant.to_bytes(4, "big"))
            self._read_since_grant = 0
        return bytes(data)

    async def write(self, data: bytes) -> None:
        """Send it all, waiting for the reader as needed."""
        at = 0
        while at < len(data):
            self._raise_if_broken()
            if self._write_ended:
                raise BrokenPipeError("the other end does not read this stream any more")
            room = min(self._credit, w.MAX_PAYLOAD)
            if not room:
                await self._change()
            elif self._mux.held is not None:
                await self._mux.held.wait()
            else:
                chunk = data[at : at + room]
                at += len(chunk)
                self._credit -= len(chunk)
                self._mux.send(w.DATA, self.number, chunk)

    def end(self) -> None:
        """Nothing more will be written."""
        if not (self._write_ended or self._reset):
            self._write_ended = True
            self._mux.send(w.END, self.number)
            self._mux.settle(self)

    def reset(self) -> None:
        """Give the stream up, both ways, now."""
        if not (self._reset or self.over):
            self._mux.send(w.RESET, self.number)
            self._break()

    @property
    def over(self) -> bool:
        return self._reset or (self._read_ended and self._write_ended)

    def stop_writing(self) -> None:
        """The reader at the other end is gone: a writer gets BrokenPipeError."""
        self._write_ended = True
        self._notify()
        self._mux.settle(self)

    # Called by the mux

    def _on_data(self, payload: bytes) -> None:
        if self._read_ended or self._waiting + self._read_since_grant + len(payload) > w.WINDOW:
            # The warden checks us by the same sentence: its file travels alone into the image and
            # imports nothing of ours, so each end states the rule for the other's data.
            raise w.Malformed(f"stream {self.number} sent more than it may")
        if payload:
            self._keep(payload)
            self._waiting += len(payload)
            self._notify()

    def _keep(self, payload: bytes) -> None:
        last = self._chunks[-1] if self._chunks else None
        if last is None or len(last) + len(payload) > SMALL_BYTES:
            self._chunks.append(payload)
        elif isinstance(last, bytearray):
            last += payload
        else:
            self._chunks[-1] = bytearray(last + payload)

    def _on_end(self) -> None:
        if self._read_ended:
            raise w.Malformed(f"stream {self.number} ended twice")
        self._read_ended = True
        self._notify()
        self._mux.settle(self)

    def _on_credit(self, payload: bytes) -> None:
        self._credit += int.from_bytes(payload, "big")
        if len(payload) != 4 or self._credit > w.WINDOW:
            raise w.Malformed(f"stream {self.number} was granted more than a window")
        self._notify()

    def _break(self) -> None:
        self._reset = True
        self._notify()
        self._mux.settle(self)

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        await self._changed.wait()

    def _raise_if_broken(self) -> None:
        if self._mux.lost is not None:
            raise WireLost(self._mux.lost)
        if self._reset:
            raise ConnectionResetError(f"stream {self.number} was reset")


class Mux:
    """The streams of one wire, and the way its other frames take.

    It does no I/O: bytes come in through `feed` and leave through the `write` it was given.
    Everything the other end may get wrong ends in Malformed.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_control: Callable[[int, int, bytes], None],
        accepted: frozenset[int],
    ) -> None:
        self._write = write
        self._on_control = on_control
        self._decoder = w.Decoder(accepted)
        self._streams: dict[int, Stream] = {}
        host = w.HELLO in accepted
        self._next_own = 1 if host else 2
        self._last_theirs = 0 if host else -1
        self.lost: str | None = None
        """Why the wire ended, once it has."""
        self.turnstile = Turnstile()
        self.held: asyncio.Event | None = None
        """There while the transport's buffer is full: writers of data wait for it, other frames are
        sent all the same."""

    def feed(self, data: bytes | memoryview) -> None:
        for kind, number, payload in self._decoder.feed(data):
            if kind < w.DATA or kind > w.CREDIT:
                self._on_control(kind, number, payload)
                continue
            stream = self._streams.get(number)
            if stream is None:
                self._check_ended(number)
            elif kind == w.DATA:
                stream._on_data(payload)
            elif kind == w.CREDIT:
                stream._on_credit(payload)
            elif kind == w.END:
                stream._on_end()
            else:
                stream._break()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self.lost is None:
            self._write(w.encode(kind, number, payload))

    def open(self) -> Stream:
        """A stream of our own numbering."""
        stream = self._streams[self._next_own] = Stream(self._next_own, self)
        self._next_own += 2
        return stream

    @property
    def number_after_next(self) -> int:
        """What the second of two streams opened now would be called."""
        return self._next_own + 2

    def accept(self, number: int) -> Stream:
        """A stream that the other end opens; its numbers only ever grow."""
        if number % 2 == self._next_own % 2 or number <= self._last_theirs:
            raise w.Malformed(f"stream {number} cannot be opened now")
        self._last_theirs = number
        stream = self._streams[number] = Stream(number, self, self.turnstile)
        return stream

    def settle(self, stream: Stream) -> None:
        if stream.over:
            self._streams.pop(stream.number, None)

    def hold(self) -> None:
        """The transport's buffer is full: let writers wait until `release`."""
        if self.held is None:
            self.held = asyncio.Event()

    def release(self) -> None:
        """The transport takes more: wake every writer that `hold` stopped."""
        if self.held is not None:
            self.held.set()
            self.held = None

    def lose(self, why: str) -> None:
        """End every stream: its reader and its writer get WireLost with this reason."""
        self.lost = why
        self.release()
        for stream in self._streams.values():
            stream._notify()
        self._streams.clear()
        self.turnstile.open()

    def _check_ended(self, number: int) -> None:
        """Ignore late frames of a stream that has ended; refuse a number that was never used.

        Numbers of ours and of the other end differ by parity, and each side's only grow.
        """
        ours = number % 2 == self._next_own % 2
        if number < 1 or (number >= self._next_own if ours else number > self._last_theirs):
            raise w.Malformed(f"stream {number} was never opened")
