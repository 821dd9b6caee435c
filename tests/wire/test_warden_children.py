"""What a process that the warden starts is given, and what the warden keeps to itself."""

from __future__ import annotations

import os
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
    assert ignored <= {13, 25}  # Python's own: SIGPIPE, SIGXFSZ
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
