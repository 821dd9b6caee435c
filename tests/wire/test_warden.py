"""The warden itself, as a plain process on pipes: what it does with what it is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.domain.container import File, Launch
from orchestrator.errors import SpawnFailed
from orchestrator.wire import warden as w
from orchestrator.wire.host import WireEnd
from orchestrator.wire.streams import Stream
from tests.wire.local_warden import local_wire

PATIENCE = 60


def talk(data: bytes) -> int:
    """Send bytes to a warden, close its stdin, and return what it exits with."""
    argv = [sys.executable, "-I", "-S", w.__file__]
    return subprocess.run(argv, input=data, capture_output=True, timeout=PATIENCE).returncode


def test_the_end_of_the_wire_is_the_end_of_the_warden() -> None:
    assert talk(b"") == w.EXIT_WIRE_CLOSED


@pytest.mark.parametrize(
    "frame",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        w.encode(w.HELLO, 0),
        w.encode(w.SPAWN, 1, b"nonsense"),
        w.encode(w.SPAWN, 2, w.pack(b"3", b"1", b"1", b"/", w.pack(b"true"), b"", b"", b"")),
        w.encode(w.SPAWN, 3, w.pack(b"1", b"1", b"1", b"/", w.pack(b"true"), b"", b"", b"")),
        w.encode(w.SPAWN, 1, w.pack(b"3", b"1", b"1", b"/", b"", b"", b"", b"")),
        w.encode(w.SPAWN, 1, w.pack(b"3", b"1", b"1", b"/", w.pack(b"true"), b"", b"", b"2")),
        w.encode(w.SIGNAL, 0, b"\x09"),
        w.encode(w.SIGNAL, 1, b"\xff"),
        w.encode(w.DATA, 5, b"x"),
        w.encode(w.CREDIT, 1, b""),
        w.encode(w.LEASE, 0, b"soon"),
        w.encode(w.LISTEN, 0, w.pack(b"port", b"x")),
        w.HEADER.pack(w.DATA, 1, 2**31),
    ],
)
def test_a_malformed_frame_is_the_end_of_the_warden(frame: bytes) -> None:
    assert talk(frame) == w.EXIT_MALFORMED


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(w.FROM_HOST - {w.LEASE})),
            st.integers(0, 6),
            st.binary(max_size=20),
        ),
        max_size=8,
    )
)
def test_no_frame_crashes_the_warden(sent: list[tuple[int, int, bytes]]) -> None:
    code = talk(b"".join(w.encode(*frame) for frame in sent))
    assert code in (w.EXIT_WIRE_CLOSED, w.EXIT_MALFORMED)


def test_a_lease_that_ran_out_is_the_end_of_the_warden() -> None:
    assert _exit_after(w.encode(w.LEASE, 0, (50).to_bytes(4, "big") + b"\xff" * 4)) == w.EXIT_LEASE


def test_a_lifetime_that_ran_out_is_the_end_of_the_warden() -> None:
    lifetime = w.encode(w.LEASE, 0, b"\xff" * 4 + (50).to_bytes(4, "big"))
    assert _exit_after(lifetime) == w.EXIT_LIFETIME


def _exit_after(frame: bytes) -> int:
    argv = [sys.executable, "-I", "-S", w.__file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(frame)
        process.stdin.flush()  # and left open: nothing but the clock can end it
        return process.wait(PATIENCE)


async def test_a_program_gets_exactly_the_environment_and_directory_it_was_given() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            launch = Launch(argv=("sh", "-c", "env; pwd"), env={"A": "1", "B": "x=y"}, cwd="/usr")
            done = await wire.run(launch)
    lines = done.stdout.decode().split()
    assert {"A=1", "B=x=y"} <= set(lines)
    assert lines[-1] == "/usr"
    assert not any(line.startswith(("HOME=", "PATH=")) for line in lines)


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        (Launch(argv=("no-such",)), "cannot run no-such: not found on PATH"),
        (Launch(argv=("/etc/passwd",)), "cannot run /etc/passwd: Permission denied"),
        (Launch(argv=("true",), cwd="/nowhere"), "cannot enter /nowhere: No such file"),
        (Launch(argv=("true", "a\0b")), "cannot run true: embedded null byte"),
        (
            Launch(argv=("true",), files=(File(path="/proc/nowhere/x", content=b""),)),
            "cannot place /proc/nowhere/x",
        ),
    ],
)
async def test_a_start_that_fails_says_at_which_step(launch: Launch, says: str) -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            with pytest.raises(SpawnFailed, match=says):
                await wire.run(launch)
            assert (await wire.run(Launch(argv=("true",)))).code == 0


async def test_a_spawn_that_is_too_large_is_refused_before_it_is_sent() -> None:
    big = File(path="/tmp/x", content=b"x" * w.MAX_SPAWN)
    async with local_wire() as (wire, _):
        with pytest.raises(SpawnFailed, match="through a process's stdin"):
            await wire.run(Launch(argv=("true",), files=(big,)))
        assert wire.ended is None


async def test_a_signal_right_after_the_start_reaches_the_child_and_not_the_warden() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            for _ in range(50):
                process = wire._start(Launch(argv=("sleep", "100")))
                process.signal(15)
                assert await process.wait() == -15
            assert wire.ended is None


async def test_a_child_that_outlives_its_parent_does_not_hold_the_answer_back() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            done = await wire.run(Launch(argv=("sh", "-c", "sleep 60 & echo started")))
            assert done.stdout == b"started\n"


async def test_a_program_that_does_not_read_its_input_does_not_hold_up_the_writer() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            closed = Launch(argv=("sh", "-c", "exec <&-; sleep 0.2; echo done"))
            done = await wire.run(closed, b"x" * 5_000_000)
            ended = await wire.run(Launch(argv=("true",)), b"x" * 5_000_000)
    assert (done.code, done.stdout, ended.code) == (0, b"done\n", 0)


async def test_relayed_bytes_arrive_both_ways_in_order_and_to_the_last_one() -> None:
    content = bytes(range(256)) * 20_000

    async def echo(stream: Stream) -> None:
        while data := await stream.read():
            await stream.write(data)

    client = (
        "import socket,sys,threading;s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));"
        "d=bytes(range(256))*20000;"
        "t=threading.Thread(target=lambda:(s.sendall(d),s.shutdown(1)));t.start();"
        "r=b''.join(iter(lambda:s.recv(65536),b''));t.join();print(r==d,len(r))"
    )
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            port = await wire.listen(0, "echo", echo)
            done = await wire.run(Launch(argv=(sys.executable, "-c", client, str(port))))
    assert done.stdout.decode().split() == ["True", str(len(content))], done


async def test_a_service_that_fails_resets_its_connection_and_no_other() -> None:
    async def service(stream: Stream) -> None:
        if await stream.read() == b"bad":
            raise ConnectionResetError
        await stream.write(b"good")

    client = (
        "import socket,sys\n"
        "def ask(what):\n"
        "  s=socket.create_connection(('127.0.0.1',int(sys.argv[1])));s.sendall(what)\n"
        "  try: return s.recv(10)\n"
        "  except ConnectionResetError: return b'reset'\n"
        "print(ask(b'bad'),ask(b'fine'))"
    )
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            port = await wire.listen(0, "web", service)
            done = await wire.run(Launch(argv=(sys.executable, "-c", client, str(port))))
    assert done.stdout == b"b'reset' b'good'\n", done


async def test_a_warden_that_is_killed_ends_the_wire() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, pipes):
            assert pipes.transport is not None
            pipes.transport.kill()
            assert await wire.wait_ended() is WireEnd.EOF


async def test_many_processes_at_once_all_report_back() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            launches = [Launch(argv=("sh", "-c", f"echo {n}; exit {n}")) for n in range(50)]
            done = await asyncio.gather(*(wire.run(launch) for launch in launches))
    assert [(d.code, d.stdout) for d in done] == [(n, b"%d\n" % n) for n in range(50)]


async def test_every_kill_all_is_answered_however_many_ask_at_once() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            await asyncio.gather(*(wire.kill_all() for _ in range(5)))
            assert (await wire.run(Launch(argv=("true",)))).code == 0


async def test_clients_that_connect_and_reset_faster_than_we_answer_do_not_end_the_wire() -> None:
    async def slow(stream: Stream) -> None:
        await stream.read()

    storm = (
        "import socket,struct,sys\n"
        "for _ in range(3000):\n"
        "  s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
        "  s.setsockopt(socket.SOL_SOCKET,socket.SO_LINGER,struct.pack('ii',1,0)); s.close()\n"
    )
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            port = await wire.listen(0, "slow", slow)
            done = await wire.run(Launch(argv=(sys.executable, "-c", storm, str(port))))
            assert done.code == 0, done.stderr
            assert wire.ended is None
