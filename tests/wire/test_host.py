"""The host end: bytes from a stranger end the wire cleanly, and everybody who waits is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.container import Launch, User
from orchestrator.errors import OrchestratorError, WireLost
from orchestrator.wire import host
from orchestrator.wire import warden as w
from orchestrator.wire.host import Wire, WireEnd
from orchestrator.wire.streams import Stream

HELLO = w.encode(w.HELLO, 0, w.pack(b"%d" % w.VERSION, b"test"))
PATIENCE = 30


class DeadEnd:
    """A link that leads nowhere."""

    def __init__(self) -> None:
        self.closed = False
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def unsent(self) -> int:
        return len(self.sent)

    async def written(self, what: bytes, times: int) -> None:
        while self.sent.count(what) < times:
            await anyio.lowlevel.checkpoint()


def new_wire() -> tuple[Wire, DeadEnd]:
    link = DeadEnd()
    return Wire(link, User(), "box"), link


forged = st.tuples(
    st.sampled_from(sorted(w.FROM_WARDEN)), st.integers(0, 6), st.binary(max_size=12)
)


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_garbage_ends_the_wire_and_raises_nothing(chunks: list[bytes]) -> None:
    async def main() -> None:
        wire, link = new_wire()
        for chunk in chunks:
            wire.feed(chunk)
        assert wire.ended in (None, WireEnd.MALFORMED)
        assert link.closed == (wire.ended is not None)
        await wire.close()

    anyio.run(main)


@given(st.lists(forged, max_size=12))
def test_forged_frames_end_the_wire_or_change_nothing(sent: list[tuple[int, int, bytes]]) -> None:
    async def main() -> None:
        wire, _ = new_wire()
        wire.feed(HELLO)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run_quietly, wire)
            await anyio.lowlevel.checkpoint()
            for frame in sent:
                wire.feed(w.encode(*frame))
            assert wire.ended in (None, WireEnd.MALFORMED)
            await wire.close()

    anyio.run(main)


async def _run_quietly(wire: Wire) -> None:
    with suppress(OrchestratorError, OSError):  # and nothing else
        await wire.run(Launch(argv=("true",)))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (HELLO, "version"),
        (w.encode(w.PONG, 0, b"1"), "an answer to no ping"),
        (w.encode(w.KILLED, 0), "an answer to no kill"),
        (w.encode(w.LISTENING, 0, w.pack(b"web", b"80", b"")), "an answer to no listen"),
        (w.encode(w.EXIT, 1, b"\0\0\0\0"), "process 1, which is not running"),
        (w.encode(w.OPEN, 2, b"web"), "a connection to a service that it was not given"),
        (w.encode(w.STARTED, 7, b"\0\0\0\1"), "process 7, which is not running"),
    ],
)
async def test_an_answer_to_nothing_ends_the_wire(frame: bytes, says: str) -> None:
    wire, link = new_wire()
    wire.feed(HELLO)
    wire.feed(frame)

    assert wire.ended is WireEnd.MALFORMED
    assert says in wire.detail
    assert link.closed


async def test_another_version_says_what_to_do() -> None:
    wire, _ = new_wire()
    wire.feed(w.encode(w.HELLO, 0, w.pack(b"999", b"test")))
    with pytest.raises(WireLost, match=r"version '999'.*orchestrator images build"):
        await wire.hello()


async def test_a_lost_wire_tells_everybody_who_waits() -> None:
    wire, _ = new_wire()
    wire.feed(HELLO)
    lost: list[str] = []

    waits: dict[str, Callable[[], Awaitable[object]]] = {
        "kill": wire.kill_all,
        "listen": lambda: wire.listen(80, "web", _nothing),
        "ping": wire.ping,
        "run": lambda: wire.run(Launch(argv=("true",))),
    }

    async def expect_lost(name: str) -> None:
        with pytest.raises(WireLost, match="ended by the container or its engine"):
            await waits[name]()
        lost.append(name)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for name in waits:
                tasks.start_soon(expect_lost, name)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            wire.disconnected()

    assert sorted(lost) == sorted(waits)


async def _nothing(stream: Stream) -> None: ...


async def test_who_asks_and_does_not_read_the_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "MAX_UNSENT", 10_000)
    wire, link = new_wire()
    wire.feed(HELLO)
    wire._services["parent"] = _for_ever
    for number in range(2, 20_000, 2):
        wire.feed(w.encode(w.OPEN, number, b"parent"))
    assert (wire.ended, link.closed) == (WireEnd.MALFORMED, True)
    assert wire.detail == "it asks, and does not read the answers"
    assert len(link.sent) < 11_000
    await wire.close()


async def _for_ever(stream: Stream) -> None:
    await anyio.sleep_forever()


async def test_a_silent_container_is_given_up() -> None:
    wire, link = new_wire()
    wire.feed(HELLO)
    wire.lease(0.02, 1000)
    with anyio.fail_after(PATIENCE):
        assert await wire.wait_ended() is WireEnd.SILENT
    assert link.closed


async def test_pings_are_sent_well_within_the_lease() -> None:
    wire, link = new_wire()
    wire.feed(HELLO)
    wire.lease(4, 1000)
    with anyio.fail_after(PATIENCE):
        await link.written(w.HEADER.pack(w.PING, 0, 1), times=2)
    assert wire.ended is None
    await wire.close()
