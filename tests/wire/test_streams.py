"""The multiplexer: every interleaving delivers every stream in order, and none blocks another."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import WireLost
from orchestrator.wire import warden as w
from orchestrator.wire.streams import RELAYS_PER_TURN, Mux, Stream

PATIENCE = 30


class Pair:
    """Two muxes joined by a line that cuts the bytes at random and delivers them when it likes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._lines: dict[str, bytearray] = {"host": bytearray(), "warden": bytearray()}
        self._scheduled: set[str] = set()
        self.host = Mux(self._send_to("warden"), self._on_host_control, w.FROM_WARDEN)
        self.warden = Mux(self._send_to("host"), self._on_warden_control, w.FROM_HOST)
        self.accepted: asyncio.Queue[Stream] = asyncio.Queue()

    def open(self) -> Stream:
        stream = self.host.open()
        self.host.send(w.SPAWN, stream.number)
        return stream

    def _on_warden_control(self, kind: int, number: int, payload: bytes) -> None:
        assert kind == w.SPAWN
        self.accepted.put_nowait(self.warden.accept(number))

    def _on_host_control(self, kind: int, number: int, payload: bytes) -> None:
        raise AssertionError(f"unexpected {kind}")

    def _send_to(self, end: str) -> Callable[[bytes], None]:
        def send(data: bytes) -> None:
            self._lines[end] += data
            self._schedule(end)

        return send

    def _schedule(self, end: str) -> None:
        if end not in self._scheduled:
            self._scheduled.add(end)
            self._loop.call_soon(self._deliver, end)

    def _deliver(self, end: str) -> None:
        self._scheduled.discard(end)
        line = self._lines[end]
        size = self._random.choice((1, 5, 9, 100, 5_000, 100_000, 1_000_000))
        part = bytes(line[:size])
        del line[:size]
        (self.host if end == "host" else self.warden).feed(part)
        if line:
            self._schedule(end)


async def send_all(stream: Stream, content: bytes, seed: int) -> None:
    rng, at = random.Random(seed), 0
    while at < len(content):
        size = rng.choice((1, 100, 10_000, 300_000))
        await stream.write(content[at : at + size])
        at += size
    stream.end()


async def read_all(stream: Stream, seed: int) -> bytes:
    rng, parts = random.Random(seed), []
    while part := await stream.read(rng.choice((1, 1000, 65536))):
        parts.append(part)
        if len(part) == 1 and len(parts) > 50:
            rng = random.Random(1)  # do not read a megabyte byte by byte
    return b"".join(parts)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 600_000), min_size=1, max_size=6),
    stalled=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_every_stream_arrives_in_order_and_a_stalled_one_blocks_no_other(
    sizes: list[int], stalled: int, seed: int
) -> None:
    async def main() -> None:
        pair = Pair(seed)
        contents = [random.Random(seed + n).randbytes(size) for n, size in enumerate(sizes)]
        received: dict[int, bytes] = {}

        async def check(stream: Stream, n: int) -> None:
            received[n] = await read_all(stream, seed)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as readers, anyio.create_task_group() as writers:
                for n in range(stalled):  # written without end, and never read
                    writers.start_soon(send_all, pair.open(), b"x" * 10_000_000, n)
                    await pair.accepted.get()
                async with anyio.create_task_group() as busy:
                    for n, content in enumerate(contents):
                        near = pair.open()
                        far = await pair.accepted.get()
                        busy.start_soon(send_all, near, content, n)  # host to container
                        busy.start_soon(send_all, far, content[::-1], n)  # and back
                        readers.start_soon(check, far, 2 * n)
                        readers.start_soon(check, near, 2 * n + 1)
                while len(received) < 2 * len(contents):
                    await anyio.lowlevel.checkpoint()
                writers.cancel_scope.cancel()
        for n, content in enumerate(contents):
            assert received[2 * n] == content
            assert received[2 * n + 1] == content[::-1]

    anyio.run(main)


async def test_an_unread_stream_holds_a_window_and_no_more() -> None:
    pair = Pair(1)
    near = pair.open()
    far = await pair.accepted.get()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(near.write, b"x" * 10_000_000)
            while far._waiting < w.WINDOW:
                await anyio.lowlevel.checkpoint()
            for _ in range(1000):  # more would come now
                await anyio.lowlevel.checkpoint()
            assert far._waiting == w.WINDOW
            tasks.cancel_scope.cancel()


async def test_a_full_transport_stops_every_writer_of_data_until_it_takes_more() -> None:
    pair = Pair(1)
    streams = [(pair.open(), await pair.accepted.get()) for _ in range(2)]
    arrived: list[bytes] = []

    async def copy(near: Stream, far: Stream) -> None:
        await near.write(b"x" * 100_000)
        near.end()
        arrived.append(await read_all(far, 1))

    with anyio.fail_after(PATIENCE):
        for _ in range(2):  # a transport fills up and drains many times
            pair.host.hold()
            pair.host.hold()  # told twice, it is still one hold
            async with anyio.create_task_group() as tasks:
                for near, far in streams:
                    tasks.start_soon(copy, near, far)
                await anyio.wait_all_tasks_blocked()
                assert arrived == []
                assert [far._waiting for _, far in streams] == [0, 0]
                pair.host.release()
            assert arrived == [b"x" * 100_000] * 2
            assert pair.host.held is None
            streams = [(pair.open(), await pair.accepted.get()) for _ in range(2)]
            arrived.clear()


async def test_a_full_transport_still_takes_what_is_not_data() -> None:
    pair = Pair(1)
    near = pair.open()
    far = await pair.accepted.get()
    pair.host.hold()
    with anyio.fail_after(PATIENCE):
        near.end()
        assert await far.read() == b""
        other = pair.open()
        assert (await pair.accepted.get()).number == other.number


async def test_a_writer_that_waits_for_a_full_transport_is_told_of_the_end() -> None:
    pair = Pair(1)
    near = pair.open()
    pair.host.hold()

    async def write() -> None:
        with pytest.raises(WireLost, match="gone"):
            await near.write(b"x")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            await anyio.wait_all_tasks_blocked()
            pair.host.lose("gone")


def test_small_pieces_take_little_more_room_than_what_is_in_them() -> None:
    stream = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN).open()
    for _ in range(w.WINDOW // 2):
        stream._on_data(b"xy")
    held = sum(map(sys.getsizeof, stream._chunks))
    assert held < 2 * w.WINDOW
    assert stream._waiting == w.WINDOW


async def test_writing_is_told_when_nobody_reads_any_more() -> None:
    pair = Pair(1)
    near = pair.open()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_broken_pipe, near)
            await anyio.lowlevel.checkpoint()
            near.stop_writing()


async def _expect_broken_pipe(stream: Stream) -> None:
    with pytest.raises(BrokenPipeError):
        await stream.write(b"x" * 10_000_000)


async def test_a_reset_tells_both_ends() -> None:
    pair = Pair(1)
    near = pair.open()
    far = await pair.accepted.get()
    near.reset()
    with anyio.fail_after(PATIENCE):
        with pytest.raises(ConnectionResetError):
            await near.read()
        with pytest.raises(ConnectionResetError):
            await far.read()


async def test_what_arrived_before_the_wire_was_lost_can_still_be_read() -> None:
    pair = Pair(1)
    near = pair.open()
    far = await pair.accepted.get()
    with anyio.fail_after(PATIENCE):
        await near.write(b"last words")
        while far._waiting < 10:
            await anyio.lowlevel.checkpoint()
        pair.warden.lose("gone")
        assert await far.read() == b"last words"
        with pytest.raises(WireLost, match="gone"):
            await far.read()


async def test_connections_that_end_together_go_on_a_few_in_each_turn() -> None:
    mux = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN)
    streams = [mux.accept(number) for number in range(2, 202, 2)]
    ended = most = in_turn = 0

    async def read(stream: Stream) -> None:
        nonlocal ended, in_turn
        assert await stream.read() == b""
        ended, in_turn = ended + 1, in_turn + 1

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for stream in streams:
                tasks.start_soon(read, stream)
            await anyio.lowlevel.checkpoint()
            mux.feed(b"".join(w.encode(w.END, stream.number) for stream in streams))
            while ended < len(streams):
                await anyio.lowlevel.checkpoint()
                most, in_turn = max(most, in_turn), 0
    assert most <= 2 * RELAYS_PER_TURN


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (w.encode(w.DATA, 99, b"x"), "stream 99 was never opened"),
        (w.encode(w.DATA, 2, b"x"), "stream 2 was never opened"),
        (w.encode(w.DATA, 0, b"x"), "stream 0 was never opened"),
        (w.encode(w.CREDIT, 1, (1).to_bytes(4, "big")), "granted more than a window"),
        (w.encode(w.CREDIT, 1, b"\0"), "granted more than a window"),
        (w.encode(w.END, 1) * 2, "ended twice"),
        (w.encode(w.END, 1) + w.encode(w.DATA, 1, b"x"), "sent more than it may"),
        (w.encode(w.DATA, 1, b"x" * 65536) * 5, "sent more than it may"),
    ],
)
def test_a_stream_that_breaks_the_rules_is_malformed(frame: bytes, says: str) -> None:
    mux = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN)
    assert mux.open().number == 1
    with pytest.raises(w.Malformed, match=says):
        mux.feed(frame)


def test_late_frames_of_an_ended_stream_are_ignored() -> None:
    mux = Mux(lambda _: None, lambda *_: None, w.FROM_WARDEN)
    mux.open().reset()
    mux.feed(w.encode(w.DATA, 1, b"late") + w.encode(w.END, 1))


@pytest.mark.parametrize("accepted", [w.FROM_WARDEN, w.FROM_HOST])
def test_each_end_knows_which_numbers_were_used_by_their_parity(accepted: frozenset[int]) -> None:
    """Late frames are ignored up to the last number of either end, and refused from the next on."""
    mux = Mux(lambda _: None, lambda *_: None, accepted)
    ours = [mux.open() for _ in range(4)]
    first = 3 - ours[0].number  # one end counts 1, 3, 5, the other 2, 4, 6
    theirs = [mux.accept(first + 2 * n) for n in range(2)]
    for stream in (*ours, *theirs):
        stream.reset()
    for stream in (*ours, *theirs):
        mux.feed(w.encode(w.DATA, stream.number, b"late"))
    for number in (ours[-1].number + 2, theirs[-1].number + 2, theirs[-1].number + 4):
        with pytest.raises(w.Malformed, match=f"stream {number} was never opened"):
            mux.feed(w.encode(w.DATA, number, b"x"))
