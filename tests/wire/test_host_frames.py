"""The host end, frame by frame: what each call sends, and what becomes of each answer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from orchestrator.domain.container import File, Launch, User
from orchestrator.errors import SpawnFailed, WireLost
from orchestrator.wire import host
from orchestrator.wire import warden as w
from orchestrator.wire.host import Completed, Wire, WireEnd
from orchestrator.wire.streams import RELAYS_PER_TURN, Stream, give_way
from tests.wire.test_host import HELLO, DeadEnd, new_wire

PATIENCE = 10
LAUNCH = Launch(argv=("cat",))
STARTED = w.encode(w.STARTED, 1, (7).to_bytes(4, "big"))


def exited(code: int) -> bytes:
    return w.encode(w.EXIT, 1, code.to_bytes(4, "big", signed=True))


def frames(link: DeadEnd) -> list[tuple[int, int, bytes]]:
    """What was sent since the last look."""
    found = list(w.Decoder(w.FROM_HOST).feed(bytes(link.sent)))
    link.sent.clear()
    return found


async def asked(wire: Wire, call: Callable[[], Awaitable[Any]], *answers: bytes) -> Any:
    """What a call gives or raises, when the container answers so."""
    outcome: list[Any] = []

    async def ask() -> None:
        try:
            outcome.append(await call())
        except Exception as exc:  # noqa: BLE001 it is looked at below
            outcome.append(exc)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            for answer in answers:
                wire.feed(answer)
                await anyio.wait_all_tasks_blocked()
    (found,) = outcome
    return found


async def test_a_spawn_says_who_runs_what_where_with_which_files() -> None:
    link = DeadEnd()
    wire = Wire(link, User(uid=1001, gid=1002))
    file = File(path="/a/b", mode=0o640, content=b"c")
    wire._start(Launch(argv=("run", "it"), env={"A": "1"}, cwd="/w", files=(file,)))
    wire._start(LAUNCH)
    wire._start(LAUNCH.model_copy(update={"errand": True}))
    first, second, third = frames(link)
    payload = w.pack(
        *(b"3", b"1001", b"1002", b"/w"),
        w.pack(b"run", b"it"),
        w.pack(b"A=1"),
        w.pack(b"/a/b", b"416", b"c"),
        b"",
    )
    assert first == (w.SPAWN, 1, payload)
    assert (second[:2], w.unpack(second[2])[0]) == ((w.SPAWN, 5), b"7")
    assert (w.unpack(second[2])[-1], w.unpack(third[2])[-1]) == (b"", b"1")
    await wire.close()


async def test_a_spawn_may_be_as_large_as_a_frame_and_no_larger() -> None:
    def launch(size: int) -> Launch:
        return Launch(argv=("cat",), files=(File(path="/a", content=b"x" * size),))

    wire, link = new_wire()
    wire._start(launch(0))
    ((_, _, empty),) = frames(link)
    room = w.MAX_SPAWN - len(empty)
    wire, link = new_wire()
    with pytest.raises(SpawnFailed, match=f"takes {w.MAX_SPAWN + 1} bytes"):
        wire._start(launch(room + 1))
    wire._start(launch(room))
    ((_, _, full),) = frames(link)
    assert len(full) == w.MAX_SPAWN


async def test_a_lease_is_sent_in_milliseconds() -> None:
    wire, link = new_wire()
    wire.lease(1.5, 60)
    assert frames(link) == [
        (w.LEASE, 0, (1500).to_bytes(4, "big") + (60_000).to_bytes(4, "big")),
    ]
    await wire.close()


async def test_what_a_process_writes_and_how_it_ends_is_what_a_run_gives() -> None:
    wire, link = new_wire()
    answers = (
        STARTED,
        w.encode(w.DATA, 1, b"out"),
        w.encode(w.DATA, 3, b"err"),
        exited(-9),
        w.encode(w.END, 1),
        w.encode(w.END, 3),
    )
    done = await asked(wire, lambda: wire.run(LAUNCH, b"in"), *answers)
    assert done == Completed(code=-9, stdout=b"out", stderr=b"err")
    sent = [(kind, number) for kind, number, _ in frames(link)]
    assert sent == [(w.SPAWN, 1), (w.DATA, 1), (w.END, 1)]  # and no signal: it had exited
    assert wire.ended is None
    await wire.close()


async def test_no_more_of_an_output_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "OUTPUT_LIMIT", 5)
    wire, link = new_wire()
    chunks = [w.encode(w.DATA, 1, chunk) for chunk in (b"abc", b"def", b"ghi")]
    ends = (exited(0), w.encode(w.END, 1), w.encode(w.END, 3))
    done = await asked(wire, lambda: wire.run(LAUNCH), STARTED, *chunks, *ends)
    assert done == Completed(code=0, stdout=b"abcde", stderr=b"")
    assert frames(link)[1:] == [(w.END, 1, b"")]  # there is nothing for it to read
    await wire.close()


async def test_a_start_that_fails_is_told_with_its_number_and_the_wire_goes_on() -> None:
    wire, link = new_wire()
    fault = w.encode(w.FAULT, 1, w.pack(b"2", b"cannot run cat"))
    failed = await asked(wire, lambda: wire.run(LAUNCH), fault)
    assert isinstance(failed, SpawnFailed)
    assert (str(failed), failed.errno) == ("box: cannot run cat", 2)
    assert [kind for kind, _, _ in frames(link)] == [w.SPAWN]  # nothing to kill or to reset
    assert wire.ended is None
    await wire.close()


@pytest.mark.parametrize(
    "news",
    [
        [exited(0)],
        [STARTED, STARTED],
        [STARTED, w.encode(w.FAULT, 1, w.pack(b"2", b"late"))],
        [STARTED, exited(0), exited(0)],
        [w.encode(w.STARTED, 1, b"\0\0\0")],
        [STARTED, w.encode(w.EXIT, 1, b"\0" * 5)],
        [w.encode(w.FAULT, 1, w.pack(b"2"))],
        [w.encode(w.FAULT, 1, w.pack(b"2", b"a", b"b"))],
        [w.encode(w.FAULT, 1, w.pack(b"two", b"a"))],
        [w.encode(w.STARTED, 3, b"\0\0\0\7")],
    ],
)
async def test_news_of_a_process_that_cannot_be_true_ends_the_wire(news: list[bytes]) -> None:
    wire, _ = new_wire()
    process = wire._start(LAUNCH)
    for frame in news:
        assert wire.ended is None
        wire.feed(frame)
    assert wire.ended is WireEnd.MALFORMED
    if process.code is None and process._fault is None:
        with pytest.raises(WireLost, match="did not keep to the protocol"):
            await process.wait()


async def test_a_process_left_behind_by_its_block_is_killed_and_its_streams_given_up() -> None:
    wire, link = new_wire()

    async def leave() -> None:
        async with wire.spawn(LAUNCH) as process:
            assert process.pid == 7
            process.signal(signal.SIGTERM)

    await asked(wire, leave, STARTED, exited(-9))
    _, *sent = frames(link)
    assert sent == [
        (w.SIGNAL, 1, bytes([signal.SIGTERM])),
        (w.SIGNAL, 1, bytes([signal.SIGKILL])),
        (w.RESET, 1, b""),
        (w.RESET, 3, b""),
    ]
    await wire.close()


async def test_a_process_that_has_exited_is_sent_no_signal() -> None:
    wire, link = new_wire()
    process = wire._start(LAUNCH)
    wire.feed(STARTED + exited(3))
    frames(link)
    process.signal(signal.SIGTERM)
    assert (await process.wait(), frames(link)) == (3, [])
    with pytest.raises(BrokenPipeError):
        await process.stdin.write(b"x")
    await wire.close()


async def test_kills_pings_and_listens_are_answered_one_by_one() -> None:
    wire, link = new_wire()
    killed = w.encode(w.KILLED, 0)
    assert await asked(wire, wire.kill_all, killed) is None
    assert await asked(wire, wire.ping, w.encode(w.PONG, 0, b"1")) >= 0
    assert await asked(wire, wire.ping, w.encode(w.PONG, 0, b"2")) >= 0
    listening = w.encode(w.LISTENING, 0, w.pack(b"web", b"8080", b""))
    assert await asked(wire, lambda: wire.listen(0, "web", _nothing), listening) == 8080
    assert frames(link) == [
        (w.KILL, 0, b""),
        (w.PING, 0, b"1"),
        (w.PING, 0, b"2"),
        (w.LISTEN, 0, w.pack(b"0", b"web")),
    ]
    with pytest.raises(ValueError, match="'web' listens already"):
        await wire.listen(0, "web", _nothing)
    wire.feed(w.encode(w.PONG, 0, b"2"))  # each is answered once
    assert wire.ended is WireEnd.MALFORMED


async def test_a_port_that_cannot_be_had_is_told_and_its_name_is_free_again() -> None:
    wire, _ = new_wire()
    refused = w.encode(w.LISTENING, 0, w.pack(b"web", b"0", b"in use"))
    failed = await asked(wire, lambda: wire.listen(80, "web", _nothing), refused)
    assert isinstance(failed, OSError)
    assert str(failed) == "port 80 in box: in use"
    listening = w.encode(w.LISTENING, 0, w.pack(b"web", b"81", b""))
    assert await asked(wire, lambda: wire.listen(81, "web", _nothing), listening) == 81
    await wire.close()


@pytest.mark.parametrize("fields", [(b"web", b"80"), (b"web", b"many", b"")])
async def test_an_answer_to_a_listen_that_makes_no_sense_ends_the_wire(
    fields: tuple[bytes, ...],
) -> None:
    wire, _ = new_wire()
    answer = w.encode(w.LISTENING, 0, w.pack(*fields))
    assert isinstance(await asked(wire, lambda: wire.listen(80, "web", _nothing), answer), WireLost)
    assert wire.ended is WireEnd.MALFORMED


async def test_what_is_asked_of_an_ended_wire_is_refused_at_once() -> None:
    wire, link = new_wire()
    wire.feed(HELLO)
    await wire.close()
    link.sent.clear()
    calls: list[Callable[[], Awaitable[object]]] = [
        *(wire.hello, wire.kill_all, wire.ping),
        lambda: wire.run(LAUNCH),
        lambda: wire.listen(80, "web", _nothing),
    ]
    with anyio.fail_after(PATIENCE):
        for call in calls:
            with pytest.raises(
                WireLost, match=r"box: the connection to the container was closed by us$"
            ):
                await call()
        assert await wire.wait_ended() is WireEnd.CLOSED
    wire.feed(b"\xff" * 100)
    wire.disconnected()
    assert (wire.ended, wire.detail, bytes(link.sent)) == (WireEnd.CLOSED, "", b"")


async def test_of_what_the_warden_says_on_its_way_out_the_tail_is_kept() -> None:
    wire, _ = new_wire()
    wire.feed_stderr(b"a" * 4000)
    wire.feed_stderr(b"b" * 100)
    assert wire.last_words == b"a" * 3996 + b"b" * 100
    await wire.close()


async def test_an_answered_connection_is_ended_and_given_up_when_its_client_does_not_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "RELAY_LINGER_SECONDS", 0.01)
    wire, link = new_wire()

    async def answer(stream: Stream) -> None:
        await stream.write(await stream.read())

    wire._services["web"] = answer
    for number in (2, 4):
        wire.feed(w.encode(w.OPEN, number, b"web") + w.encode(w.DATA, number, b"hello"))
    wire.feed(w.encode(w.END, 4))
    with anyio.fail_after(PATIENCE):
        while wire._tasks:
            await anyio.sleep(0.001)
    sent = frames(link)
    lingering = [(kind, payload) for kind, number, payload in sent if number == 2]
    closed = [(kind, payload) for kind, number, payload in sent if number == 4]
    assert lingering == [(w.DATA, b"hello"), (w.END, b""), (w.RESET, b"")]
    assert closed == [(w.DATA, b"hello"), (w.END, b"")]
    await wire.close()


async def test_more_connections_than_are_open_are_reset_while_the_first_are_served() -> None:
    wire, link = new_wire()

    async def busy(stream: Stream) -> None:
        await anyio.sleep_forever()

    wire._services["web"] = busy
    most = 2 * w.MAX_CONNECTIONS
    for number in range(2, 2 * most + 4, 2):
        wire.feed(w.encode(w.OPEN, number, b"web"))
    assert frames(link) == [(w.RESET, 2 * most + 2, b"")]
    assert len(wire._tasks) + wire._starting == most
    await wire.close()
    assert wire._starting == 0
    assert not wire._tasks


async def test_of_many_connections_few_go_on_in_each_turn_of_the_event_loop() -> None:
    """Whatever they do: begin, read what has come, or give way in the middle of something."""
    wire, _ = new_wire()
    steps = 0

    async def busy(stream: Stream) -> None:
        nonlocal steps
        steps += 1
        while await stream.read(1):
            steps += 1
            await give_way()
            steps += 1

    wire._services["web"] = busy
    for number in range(2, 202, 2):
        wire.feed(w.encode(w.OPEN, number, b"web"))
        wire.feed(w.encode(w.DATA, number, b"12345"))
    most, turns = 0, 0
    with anyio.fail_after(60):
        while steps < 100 * 11:
            before = steps
            await asyncio.sleep(0)  # one turn, neither more nor less
            most, turns = max(most, steps - before), turns + 1
    assert most <= 2 * RELAYS_PER_TURN  # to begin, or to give way, and to read after that
    assert turns >= 100 * 11 / most
    await wire.close()


async def test_connections_that_wait_for_their_turn_end_with_the_wire() -> None:
    wire, _ = new_wire()
    served = 0

    async def busy(stream: Stream) -> None:
        nonlocal served
        served += 1
        while await stream.read():
            pass

    wire._services["web"] = busy
    for number in range(2, 202, 2):
        wire.feed(w.encode(w.OPEN, number, b"web"))
        wire.feed(w.encode(w.DATA, number, b"12345"))
    with anyio.fail_after(60):
        await wire.close()
    assert served <= RELAYS_PER_TURN
    assert not wire._tasks


async def _nothing(stream: Stream) -> None: ...


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
async def test_an_output_that_stays_open_holds_the_answer_back_for_a_moment_only(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "DRAIN_SECONDS", 0.01)
    wire, _ = new_wire()

    async def read_late() -> Completed:
        async with wire.spawn(LAUNCH) as process:
            if when == "before it is read":
                await process.wait()
            return await process.communicate()

    answers = (STARTED, w.encode(w.DATA, 1, b"out"), exited(0))  # and no END
    assert await asked(wire, read_late, *answers) == Completed(code=0, stdout=b"out", stderr=b"")
    await wire.close()


async def test_a_process_that_never_started_is_not_waited_for() -> None:
    wire, _ = new_wire()
    process = wire._start(LAUNCH)
    wire.feed(w.encode(w.FAULT, 1, w.pack(b"2", b"cannot run cat")))
    with anyio.fail_after(PATIENCE):
        with pytest.raises(WireLost):
            await process.wait()
        for stream in (process.stdout, process.stderr):
            with pytest.raises(ConnectionResetError):
                await stream.read()
    await wire.close()
