"""What a process that the warden starts is given, and what the warden keeps to itself."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.container import File, Launch, User
from orchestrator.wire import warden as w
from orchestrator.wire.host import Wire
from orchestrator.wire.streams import Stream
from tests.wire.local_warden import local_wire

PATIENCE = 60


async def said(script: str) -> list[str]:
    """What a shell script says, line by line."""
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            return await _lines(wire, script)


async def _lines(wire: Wire, script: str) -> list[str]:
    launch = Launch(argv=("sh", "-c", script), env={"PATH": os.environ["PATH"]}, cwd="/")
    done = await wire.run(launch)
    assert (done.code, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
async def test_a_process_has_the_ids_it_was_given_and_no_group_besides() -> None:
    with anyio.fail_after(PATIENCE):
        async with local_wire(User(uid=1234, gid=2345), groups=[3456]) as (wire, _):
            found = await _lines(wire, "grep -E '^(Uid|Gid|Groups)' /proc/self/status")
    assert [line.split() for line in found] == [
        ["Uid:", *["1234"] * 4],
        ["Gid:", *["2345"] * 4],
        ["Groups:"],
    ]


async def test_a_process_is_killed_before_the_warden_and_runs_after_it() -> None:
    found = await said("cat /proc/self/oom_score_adj; nice; umask")
    assert found == [w.OOM_SCORE_ADJ.decode(), str(os.nice(0) + w.AGENT_NICE), "0022"]


async def test_a_process_has_no_signal_blocked_or_ignored_and_a_session_of_its_own() -> None:
    script = (
        "import os,sys;print(open('/proc/self/status').read());print(os.getsid(0)==os.getpid())"
    )
    found = await said(f'exec {sys.executable} -S -c "{script}"')
    masks = dict(line.split(":") for line in found if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    ignored = {n for n in range(1, 32) if int(masks["SigIgn"], 16) >> (n - 1) & 1}
    # As PID 1 the warden ignores nothing; here it has what these tests were started with.
    given = {n for n in range(1, 32) if signal.getsignal(n) == signal.SIG_IGN}
    assert ignored <= {13, 25} | given  # Python's own: SIGPIPE, SIGXFSZ
    assert found[-1] == "True"


async def test_a_process_finds_its_three_pipes_and_nothing_of_the_wardens() -> None:
    (found,) = await said("echo /proc/$$/fd/*")
    assert {Path(fd).name for fd in found.split()} <= {"0", "1", "2", "3"}  # 3: to look


async def test_a_file_is_placed_with_its_mode_in_the_place_of_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    linked, deep = tmp_path / "linked", tmp_path / "a" / "b" / "deep"
    linked.symlink_to(elsewhere)
    content = bytes(range(256)) * 512
    files = (
        File(path=str(linked), mode=0o640, content=b"theirs"),
        File(path=str(deep), mode=0o777, content=content),
    )
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            assert (await wire.run(Launch(argv=("true",), files=files, cwd="/"))).code == 0
    assert elsewhere.read_bytes() == b"mine"
    assert (linked.is_symlink(), linked.read_bytes()) == (False, b"theirs")
    assert deep.read_bytes() == content
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (linked, deep, deep.parent)}
    assert modes == {linked: 0o640, deep: 0o777, deep.parent: 0o700}


async def test_a_program_is_looked_for_in_all_of_path_and_a_broken_one_is_told_of(
    tmp_path: Path,
) -> None:
    broken, fine = tmp_path / "broken", tmp_path / "fine"
    for folder in (broken, fine):
        folder.mkdir()
    (broken / "program").write_text("not for running")
    (fine / "program").write_text("#!/bin/sh\necho found\n")
    (fine / "program").chmod(0o755)
    path = f"/dev/null/none:{tmp_path}/nowhere:{broken}:{fine}"
    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            launch = Launch(argv=("program",), env={"PATH": path}, cwd="/")
            assert (await wire.run(launch)).stdout == b"found\n"


async def test_connections_past_the_most_wait_until_another_is_closed() -> None:
    more = 4
    served = 0

    async def service(stream: Stream) -> None:
        nonlocal served
        served += 1
        await stream.read()

    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _), AsyncExitStack() as stack:
            port = await wire.listen(0, "slow", service)
            clients = [
                await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
                for _ in range(w.MAX_CONNECTIONS + more)
            ]
            while served < w.MAX_CONNECTIONS:
                await anyio.sleep(0.01)
            for _ in range(3):
                await wire.ping()
            assert served == w.MAX_CONNECTIONS
            for client in clients[:more]:
                await client.aclose()
            while served < w.MAX_CONNECTIONS + more:
                await anyio.sleep(0.01)


SPAWN_TRUE = w.pack(b"3", b"1", b"1", b"/", w.pack(b"cat"), b"", b"", b"")


@pytest.mark.parametrize(
    "frames",
    [
        [(w.END, 1, b"")],
        [(w.RESET, 1, b"")],
        [(w.RESET, 2, b"")],
        [(w.DATA, 0, b"x")],
        [(w.CREDIT, 1, b"\0\0\0\1")],
        [(w.SIGNAL, 1, b"\0")],
        [(w.SIGNAL, 1, b"\x0f\x0f")],
        [(w.SIGNAL, 1, b"\x41")],
        [(w.LEASE, 0, b"\0" * 9)],
        [(w.SPAWN, 1, w.pack(b"4", b"1", b"1", b"/", w.pack(b"true"), b"", b"", b""))],
        [
            (
                w.SPAWN,
                1,
                w.pack(b"3", b"1", b"1", b"/", w.pack(b"true"), b"", w.pack(b"a", b"1"), b""),
            )
        ],
        [(w.SPAWN, 1, SPAWN_TRUE), (w.SPAWN, 3, w.pack(b"5", *w.unpack(SPAWN_TRUE)[1:]))],
        [(w.SPAWN, 1, SPAWN_TRUE), (w.DATA, 5, b"x")],
        [(w.SPAWN, 1, SPAWN_TRUE), (w.CREDIT, 1, b"\0\0\0\1")],
        [(w.SPAWN, 1, SPAWN_TRUE), (w.CREDIT, 1, b"\0\0\0")],
        [(w.SPAWN, 1, SPAWN_TRUE), (w.END, 1, b""), (w.DATA, 1, b"x")],
    ],
    ids=lambda frames: " ".join(f"{kind}-{number}" for kind, number, _ in frames),
)
def test_frames_that_do_not_keep_to_the_protocol_end_the_warden(
    frames: list[tuple[int, int, bytes]],
) -> None:
    argv = [sys.executable, "-I", "-S", w.__file__]
    sent = b"".join(w.encode(*frame) for frame in frames)
    done = subprocess.run(argv, input=sent, capture_output=True, timeout=PATIENCE)
    assert done.returncode == w.EXIT_MALFORMED, done.stderr


def _spoken(*frames: tuple[int, int, bytes]) -> list[tuple[int, int, bytes]]:
    """What a warden says to some frames, after its hello and before the end of the wire."""
    argv = [sys.executable, "-I", "-S", w.__file__]
    sent = b"".join(w.encode(*frame) for frame in frames)
    done = subprocess.run(argv, input=sent, capture_output=True, timeout=PATIENCE)
    hello, *said = w.Decoder(w.FROM_WARDEN).feed(done.stdout)
    assert hello[:2] == (w.HELLO, 0)
    return said


def test_what_is_about_no_stream_has_the_number_0() -> None:
    assert _spoken((w.PING, 0, b"7"), (w.KILL, 0, b"")) == [(w.PONG, 0, b"7"), (w.KILLED, 0, b"")]
    ((kind, number, payload),) = _spoken((w.LISTEN, 0, w.pack(b"0", b"web")))
    assert (kind, number) == (w.LISTENING, 0)
    name, port, problem = w.unpack(payload)
    assert (name, port != b"0", problem) == (b"web", True, b"")


def test_a_warden_that_is_told_to_stop_says_so_with_its_exit_code() -> None:
    argv = [sys.executable, "-I", "-S", w.__file__]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == bytes([w.HELLO])  # it listens to signals by now
        process.terminate()
        assert process.wait(PATIENCE) == w.EXIT_STOPPED


async def test_a_port_that_is_taken_is_refused_and_the_wire_goes_on() -> None:
    async def service(stream: Stream) -> None: ...

    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            port = await wire.listen(0, "one", service)
            with pytest.raises(OSError, match="Address already in use"):
                await wire.listen(port, "two", service)
            assert await wire.ping() >= 0


async def test_a_port_can_be_had_again_right_after_a_connection_on_it() -> None:
    """The side that closes first keeps a closed connection for a minute."""

    async def service(stream: Stream) -> None:
        await stream.write(b"x")

    with anyio.fail_after(PATIENCE):
        async with local_wire() as (wire, _):
            port = await wire.listen(0, "web", service)
            async with await anyio.connect_tcp("127.0.0.1", port) as client:
                assert await client.receive() == b"x"
                with pytest.raises(anyio.EndOfStream):
                    await client.receive()
            await wire.ping()
        async with local_wire() as (wire, _):
            assert await wire.listen(port, "web", service) == port
