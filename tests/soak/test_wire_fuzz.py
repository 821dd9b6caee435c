"""Garbage against both ends of a wire, for SOAK_SECONDS each. SOAK_SEED repeats a run.

Either end may end the wire or go on. It may not crash, hang, or raise anything but what it says.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.container import Launch, User
from orchestrator.errors import SpawnFailed, WireLost
from orchestrator.wire import warden as w
from orchestrator.wire.host import Wire
from orchestrator.wire.streams import Stream
from tests.soak.garbage import Frame, garbage, pieces

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))
SEED = int(os.environ.get("SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

HANG_SECONDS = 20.0
"""An end that has not made up its mind after so long hangs."""

NOBODY = 65534

pytestmark = pytest.mark.timeout(0)


def test_no_bytes_from_a_container_make_the_host_end_fail() -> None:
    ends: Counter[str] = Counter()
    for seed in _seeds():
        try:
            ends[asyncio.run(_feed_host(random.Random(seed)))] += 1
        except BaseException as exc:
            exc.add_note(f"to see it again: SOAK_SEED={seed}")
            raise
    print(f"\nhost end, seeds from {SEED}: {dict(ends)}")
    assert ends.keys() <= {"MALFORMED", "none"}


def test_no_bytes_from_a_host_make_the_warden_crash_or_hang() -> None:
    codes: Counter[int] = Counter()
    with _warden_argv() as (argv, cwd):
        for seed in _seeds():
            codes[_feed_warden(random.Random(seed), argv, cwd, seed)] += 1
    print(f"\nwarden, seeds from {SEED}: {dict(codes)}")
    # A lease or a lifetime that was mutated to next to nothing ends it as well.
    assert codes.keys() <= {w.EXIT_WIRE_CLOSED, w.EXIT_MALFORMED, w.EXIT_LEASE, w.EXIT_LIFETIME}


def _seeds() -> Iterator[int]:
    until = time.monotonic() + SECONDS
    seed = SEED
    while time.monotonic() < until:
        yield seed
        seed += 1


# The host end


class _NoLink:
    """A Link to nowhere."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def unsent(self) -> int:
        return 0


async def _feed_host(rng: random.Random) -> str:
    """A busy wire is fed garbage; how it ended, before we closed it."""
    wire = Wire(_NoLink(), User())
    errors: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: errors.append(context.get("exception") or RuntimeError(str(context)))
    )
    with anyio.fail_after(HANG_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_lost, wire.hello())
            tasks.start_soon(_expect_lost, wire.ping())
            tasks.start_soon(_expect_lost, wire.kill_all())
            tasks.start_soon(_expect_lost, wire.listen(8080, "echo", _echo))
            for _ in range(2):
                tasks.start_soon(_expect_lost, wire.run(Launch(argv=("cat",)), b"x" * 1000))
            await asyncio.sleep(0)
            for piece in pieces(rng, garbage(rng, _from_warden)):
                wire.feed(piece)
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
            ended = wire.ended
            await wire.close()
    assert errors == []
    return "none" if ended is None else ended.name


async def _expect_lost(asked: Awaitable[object]) -> None:
    with suppress(WireLost, SpawnFailed, OSError):  # what these calls say they raise
        await asked


async def _echo(stream: Stream) -> None:
    while chunk := await stream.read():
        await stream.write(chunk)


def _from_warden(rng: random.Random) -> list[Frame]:
    """What a warden would say to the wire of `_feed_host`: streams 1 and 3, 5 and 7, 2 and 4."""
    news: list[Frame] = [(w.HELLO, 0, w.pack(b"%d" % w.VERSION, b"3.11")), (w.PONG, 0, b"1")]
    news += [(w.KILLED, 0, b""), (w.LISTENING, 0, w.pack(b"echo", b"8080", b""))]
    for stream in (1, 5):
        if rng.random() < 0.2:
            news.append((w.FAULT, stream, w.pack(b"2", b"cannot run cat")))
            continue
        news.append((w.STARTED, stream, (7).to_bytes(4, "big")))
        news.append((w.DATA, stream, rng.randbytes(rng.choice((0, 10, w.MAX_PAYLOAD)))))
        news.append((w.CREDIT, stream, rng.choice((0, 0, 1000)).to_bytes(4, "big")))
        news.append((w.DATA, stream + 2, b"oops"))
        news += [(w.END, stream, b""), (w.END, stream + 2, b"")]
        news.append((w.EXIT, stream, (-9).to_bytes(4, "big", signed=True)))
    for stream in (2, 4):
        news += [(w.OPEN, stream, b"echo"), (w.DATA, stream, b"hello")]
        news.append((rng.choice((w.END, w.RESET)), stream, b""))
    return news


# The warden


@contextmanager
def _warden_argv() -> Iterator[tuple[list[str], Path]]:
    """The warden as PID 1 of a namespace and as nobody: what garbage starts, cannot do harm."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and unshare")
    argv = ["unshare", "--pid", "--fork", "--kill-child"]
    if os.getuid() == 0:
        argv += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    else:
        argv += ["--user"]
    if subprocess.run([*argv, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("needs PID namespaces")
    with tempfile.TemporaryDirectory(prefix="orchestrator-fuzz-") as folder:
        cwd = Path(folder)
        cwd.chmod(0o777)
        warden = cwd / "warden.py"
        shutil.copy(w.__file__, warden)
        warden.chmod(0o644)
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        yield [*argv, python, "-I", "-S", str(warden)], cwd


def _feed_warden(rng: random.Random, argv: list[str], cwd: Path, seed: int) -> int:
    """A warden is fed garbage, then the end of its stdin; what it exited with."""
    parts = pieces(rng, garbage(rng, _from_host))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0
    ) as process:
        assert process.stdin is not None
        try:
            for part in parts[:-1]:
                process.stdin.write(part)
                process.stdin.flush()
                time.sleep(rng.choice((0, 0, 0.005)))  # to let what was asked for begin
        except BrokenPipeError:
            pass  # it had enough
        try:
            _, errors = process.communicate(b"".join(parts[-1:]), timeout=HANG_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"the warden hangs with SOAK_SEED={seed}")
    if process.returncode not in (w.EXIT_WIRE_CLOSED, w.EXIT_MALFORMED):
        print(f"\nSOAK_SEED={seed}: exit {process.returncode} {errors.decode(errors='replace')}")
    return process.returncode


def _from_host(rng: random.Random) -> list[Frame]:
    """A host with two processes and a listener. Every program here ends when its pipes do."""
    asked: list[Frame] = [(w.PING, 0, b"1"), (w.LISTEN, 0, w.pack(b"0", b"echo"))]
    asked.append((w.LEASE, 0, (60_000).to_bytes(4, "big") + (3_600_000).to_bytes(4, "big")))
    for stream, program in ((1, b"cat"), (5, b"yes")):
        files = w.pack(b"placed/file", b"384", b"content") if rng.random() < 0.5 else b""
        argv, env = w.pack(program), w.pack(b"PATH=/usr/bin:/bin", b"A=1")
        ids = (b"%d" % (stream + 2), b"%d" % NOBODY, b"%d" % NOBODY)
        errand = rng.choice((b"", b"1"))
        asked.append((w.SPAWN, stream, w.pack(*ids, b".", argv, env, files, errand)))
        asked.append((w.DATA, stream, rng.randbytes(rng.choice((1, 1000, w.MAX_PAYLOAD)))))
        asked.append((w.CREDIT, stream, rng.choice((0, 1)).to_bytes(4, "big")))
        asked.append((w.SIGNAL, stream, bytes([rng.choice((1, 15, 18, 19, 9))])))
        asked.append((rng.choice((w.END, w.RESET)), stream, b""))
        asked.append((w.RESET, stream + 2, b""))
    asked += [(w.KILL, 0, b""), (w.PING, 0, b"2")]
    return asked
