"""Attacks from inside a container on its warden and on us, with a bystander that must not notice.

Each attack runs as the agent in a real container with the real flags. What is asserted is what
happened on both sides: the attacker got nowhere, and the wire, the host and the bystander go on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, ContainerSpec, Launch, Limits, Tmpfs
from orchestrator.errors import SpawnFailed, WireLost
from orchestrator.wire import warden as w
from orchestrator.wire.streams import Stream
from tests.attacks.mark import attack

PATIENCE = 180
HOST_GROWTH_BYTES = 96 * MIB
"""What the host process may grow by under attack: a few windows, not what was sent."""


def python(code: str) -> Launch:
    return Launch(argv=("python3", "-c", code))


@pytest.fixture
async def bystander(runtime: DockerRuntime, spec: ContainerSpec) -> AsyncIterator[Container]:
    """Another container, which must answer before, during and after."""
    async with runtime.open(spec) as container:
        yield container
        assert await answers(container)


@pytest.fixture
async def box(runtime: DockerRuntime, bystander: Container, image: str) -> AsyncIterator[Container]:
    """A container with small limits, to be attacked from inside."""
    limits = Limits(memory_bytes=256 * MIB, pids=64, open_files=1024, shm_bytes=16 * MIB)
    scratch = (Tmpfs(target="/tmp", size_bytes=32 * MIB), Tmpfs(target="/home/agent"))
    small = scratch[1].model_copy(update={"size_bytes": 32 * MIB})
    spec = ContainerSpec(image=image, limits=limits, tmpfs=(scratch[0], small))
    before = rss()
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            yield container
    assert rss() - before < HOST_GROWTH_BYTES


async def answers(container: Container) -> bool:
    with anyio.fail_after(PATIENCE):
        return (await container.run(Launch(argv=("echo", "here")))).stdout == b"here\n"


def rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


TRY = """
import ctypes, errno, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what):
    try:
        what()
    except OSError as exc:
        return errno.errorcode[exc.errno]
    return "WORKED"
def c(name, *args):
    def call():
        if getattr(libc, name)(*args) == -1:
            raise OSError(ctypes.get_errno(), name)
    return call
"""


@attack(
    "wire",
    "signal, trace, limit, slow down, read or write PID 1, or become root",
    "EPERM, EACCES or EROFS each time; PID 1 answers, and so does the neighbour",
)
@pytest.mark.parametrize(
    ("attack", "refused"),
    [
        ("lambda: os.kill(1, signal.SIGKILL)", "EPERM"),
        ("lambda: os.kill(1, signal.SIGSTOP)", "EPERM"),
        ("lambda: os.kill(1, signal.SIGTERM)", "EPERM"),
        ("c('ptrace', 16, 1, 0, 0)", "EPERM"),  # PTRACE_ATTACH
        ("c('ptrace', 0x4206, 1, 0, 0)", "EPERM"),  # PTRACE_SEIZE
        ("lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))", "EPERM"),
        ("lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))", "EPERM"),
        ("lambda: os.setpriority(os.PRIO_PROCESS, 1, 19)", "EPERM"),
        ("lambda: os.setpriority(os.PRIO_PROCESS, 0, 0)", "EACCES"),  # to come before the warden
        ("lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))", "EPERM"),
        ("lambda: os.sched_setaffinity(1, {0})", "EPERM"),
        ("c('syscall', 251, 1, 1, 3 << 13)", "EPERM"),  # ioprio_set: idle
        ("lambda: open('/proc/1/environ').read()", "EACCES"),
        ("lambda: open('/proc/1/mem', 'r+b')", "EACCES"),
        ("lambda: open('/proc/1/maps').read()", "EACCES"),
        ("lambda: os.listdir('/proc/1/fd')", "EACCES"),
        ("lambda: open('/proc/1/fd/0')", "EACCES"),
        ("lambda: open('/proc/1/fd/1', 'wb')", "EACCES"),
        ("lambda: os.readlink('/proc/1/exe')", "EACCES"),
        ("lambda: os.listdir('/proc/1/root/')", "EACCES"),
        ("lambda: open('/proc/1/oom_score_adj', 'w').write('1000')", "EACCES"),
        ("lambda: open('/proc/1/coredump_filter', 'w').write('1')", "EACCES"),
        ("lambda: os.setuid(0)", "EPERM"),
        ("lambda: os.setgroups([0])", "EPERM"),
        ("lambda: open('/opt/orchestrator/warden.pyc', 'wb')", "EROFS"),
        ("lambda: open('/proc/sys/kernel/core_pattern', 'w')", "EROFS"),
        ("c('mount', b'none', b'/mnt', b'tmpfs', 0, 0)", "EPERM"),
        ("c('unshare', 0x10000000)", "EPERM"),  # CLONE_NEWUSER
        ("c('setns', os.open('/proc/self/ns/mnt', 0), 0)", "EPERM"),
    ],
)
async def test_the_warden_cannot_be_touched_from_inside(
    box: Container, bystander: Container, attack: str, refused: str
) -> None:
    done = await box.run(python(TRY + f"print(attempt({attack}))"))

    assert done.stdout.decode().strip() == refused, done.stderr.decode()
    assert await answers(box)


@attack(
    "wire",
    "kill PID 1, or take its descriptors, by a pidfd",
    "EPERM; the wire goes on",
)
async def test_a_pidfd_gives_no_way_into_the_warden(box: Container) -> None:
    code = TRY + "fd = os.pidfd_open(1)\nprint(attempt(lambda: signal.pidfd_send_signal(fd, 9)))\n"
    code += "print(attempt(c('syscall', 438, fd, 1, 0)))"  # pidfd_getfd
    done = await box.run(python(code))

    assert set(done.stdout.decode().split()) <= {"EPERM", "EACCES", "ENOSYS"}, done
    assert await answers(box)


@attack(
    "processes and resources",
    "look for a capability, a second group or a set-user-ID program",
    "none is there; no_new_privs and a seccomp filter are on",
)
async def test_the_agent_has_no_capability_and_cannot_gain_one(box: Container) -> None:
    done = await box.run(Launch(argv=("cat", "/proc/self/status")))
    lines = done.stdout.decode().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    setuid = await box.run(Launch(argv=("find", "/", "-xdev", "-perm", "/6000", "-type", "f")))

    for held in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[held], 16) == 0
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Groups"].split() in ([], ["1000"])
    assert setuid.stdout == b""


@attack(
    "processes and resources",
    "fork without end",
    "EAGAIN, also for what we start; killing all mends it, the neighbour notices nothing",
)
async def test_using_up_all_pids_is_an_answer_and_kill_all_mends_it(
    box: Container, bystander: Container
) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
    async with box.spawn(python(bomb)):
        with pytest.raises(SpawnFailed, match="cannot start a process") as refused:
            await _run_until_refused(box)
        assert refused.value.errno == errno.EAGAIN
        assert await answers(bystander)
        await box.kill_all()
        assert await answers(box)


async def _run_until_refused(box: Container) -> None:
    with anyio.fail_after(PATIENCE):
        while True:  # until the bomb has gone off
            await box.run(Launch(argv=("true",)))


@attack(
    "processes and resources",
    "take all memory",
    "the hog is killed and it is reported; the container and the neighbour answer",
)
async def test_using_up_all_memory_kills_the_hog_and_is_reported(
    box: Container, bystander: Container
) -> None:
    done = await box.run(python("x = []\nwhile True: x.append(bytearray(10_000_000))"))

    assert done.code == -9
    assert await answers(bystander)
    assert await answers(box)
    await box.fate.out_of_memory.wait()


@attack(
    "processes and resources",
    "open files without end",
    "EMFILE at the limit; the container answers",
)
async def test_using_up_all_descriptors_hurts_only_oneself(
    box: Container, bystander: Container
) -> None:
    code = (
        "import os\nn = 0\ntry:\n  while True: os.open('/', 0); n += 1\nexcept OSError: print(n)\n"
    )
    done = await box.run(python(code))

    assert 0 < int(done.stdout) <= 1024
    assert await answers(box)


@attack(
    "wire",
    "open 10,000 connections to a relay",
    "only so many are open at once outside; the next one is answered in its turn",
)
async def test_ten_thousand_relay_connections_hurt_nobody(
    box: Container, bystander: Container
) -> None:
    seen, open_now, most = 0, 0, 0

    async def service(stream: Stream) -> None:
        nonlocal seen, open_now, most
        seen, open_now = seen + 1, open_now + 1
        most = max(most, open_now)
        try:
            await stream.write(await stream.read())
        finally:
            open_now -= 1

    port = await box.listen(0, "web", service)
    flood = f"""
import errno, socket
held, tried = [], 0
for n in range(10_000):
    s = socket.socket(); s.setblocking(False)
    s.connect_ex(("127.0.0.1", {port})); tried += 1
    held.append(s)
    if len(held) > 900:
        for s in held[:300]: s.close()
        del held[:300]
print(tried)
"""
    done = await box.run(python(flood))

    assert done.stdout.split() == [b"10000"], done.stderr.decode()
    assert most <= 2 * w.MAX_CONNECTIONS
    assert await answers(bystander)
    ask = f"""
import socket
s = socket.create_connection(("127.0.0.1", {port})); s.sendall(b"still there?")
print(s.recv(100).decode())
"""
    done = await box.run(python(ask))  # in its turn: the flood's connections are closed by now
    assert done.stdout.strip() == b"still there?", done.stderr.decode()


@attack(
    "wire",
    "never read what 100 connections are sent",
    "each holds one window; other streams go on",
)
async def test_relay_connections_that_are_never_read_hold_a_window_each(
    box: Container, bystander: Container
) -> None:
    async def firehose(stream: Stream) -> None:
        while True:
            await stream.write(b"x" * 65536)

    port = await box.listen(0, "hose", firehose)
    code = f"""
import socket, sys, time
held = [socket.create_connection(("127.0.0.1", {port})) for _ in range(100)]
print("held", flush=True); time.sleep(600)
"""
    async with box.spawn(python(code)) as process:
        assert await process.stdout.read() == b"held\n"
        assert await answers(box)
        assert await answers(bystander)


@attack(
    "wire",
    "write frames of the wire to standard output",
    "they arrive as output, byte for byte, and mean nothing",
)
async def test_frames_forged_on_a_process_stdout_are_only_its_output(box: Container) -> None:
    forged = w.encode(w.EXIT, 1, b"\0\0\0\0") + w.encode(w.KILLED, 0) + bytes(range(256))
    done = await box.run(python(f"import sys; sys.stdout.buffer.write({forged!r})"))

    assert done.stdout == forged
    assert await answers(box)


@attack(
    "processes and resources",
    "fill /tmp, the home and /dev/shm",
    "ENOSPC at their sizes; the container answers",
)
async def test_filling_scratch_space_is_a_full_disk_and_nothing_worse(
    box: Container, bystander: Container
) -> None:
    for place in ("/tmp/x", "/home/agent/x", "/dev/shm/x"):
        done = await box.run(Launch(argv=("dd", "if=/dev/zero", f"of={place}", "bs=1M")))
        assert b"No space left on device" in done.stderr
        assert await answers(box)


@attack(
    "files, links and archives",
    "write anywhere but to scratch space",
    "refused everywhere, PID 1's own program included",
)
async def test_nothing_but_scratch_space_can_be_written(box: Container) -> None:
    places = "/ /usr /usr/bin /etc /opt/orchestrator /var/tmp /run /mnt /workspace /dev /proc /sys"
    code = f"for d in {places}; do touch $d/x 2>/dev/null && echo $d; done; true"
    done = await box.run(Launch(argv=("sh", "-c", code)))

    assert done.stdout == b""


async def test_a_program_can_open_its_own_standard_streams(box: Container) -> None:
    code = "read line < /dev/stdin; echo $line > /dev/stdout; echo $line > /dev/stderr"
    done = await box.run(Launch(argv=("sh", "-c", code)), b"hello\n")

    assert (done.stdout, done.stderr) == (b"hello\n", b"hello\n")


@attack(
    "processes and resources",
    "write a gigabyte to standard output",
    "all of it passes; the process outside does not grow with it",
)
async def test_a_gigabyte_on_stdout_passes_through_a_bounded_host(
    box: Container, bystander: Container
) -> None:
    before, total, peak = rss(), 0, 0
    async with box.spawn(Launch(argv=("head", "-c", "1G", "/dev/zero"))) as process:
        while chunk := await process.stdout.read():
            if (total + len(chunk)) // MIB > total // MIB:
                peak = max(peak, rss())
            total += len(chunk)
        assert await process.wait() == 0

    assert total == 2**30
    assert peak - before < HOST_GROWTH_BYTES


@attack(
    "wire",
    "flood a stream that nobody reads",
    "it stops at its window; other streams go on",
)
async def test_a_flood_that_nobody_reads_stops_at_its_window(
    box: Container, bystander: Container
) -> None:
    async with box.spawn(Launch(argv=("yes",))) as process:
        while process.stdout._waiting < w.WINDOW:
            await anyio.sleep(0.01)
        assert await answers(box)
        assert process.stdout._waiting == w.WINDOW


@attack(
    "processes and resources",
    "escape the process group and ignore every signal",
    "killing all gets them all",
)
async def test_processes_that_escape_their_group_do_not_escape_kill_all(box: Container) -> None:
    code = """
import os, signal, time
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        for n in range(1, 64):
            try: signal.signal(n, signal.SIG_IGN)
            except (OSError, ValueError): pass
        time.sleep(600)
print("out", flush=True)
time.sleep(600)
"""
    async with box.spawn(python(code)) as process:
        assert await process.stdout.read() == b"out\n"
        await box.kill_all()
        listed = await box.run(Launch(argv=("sh", "-c", "ls -d /proc/[0-9]*")))
    assert len(listed.stdout.split()) <= 3  # PID 1, sh and ls


@attack(
    "processes and resources",
    "fill memory and scratch space at once",
    "whoever is killed for it, it is told as memory, and nothing is left",
)
async def test_a_full_memory_and_full_scratch_space_end_in_an_answer(
    runtime: DockerRuntime, bystander: Container, image: str
) -> None:
    """Scratch space is memory too: whoever is killed for it, we are told, and nothing is left."""
    limits = Limits(memory_bytes=64 * MIB, shm_bytes=16 * MIB)
    scratch = (
        Tmpfs(target="/tmp", size_bytes=30 * MIB),
        Tmpfs(target="/home/agent", size_bytes=MIB),
    )
    code = (
        "import os\nfor p in ('/tmp/x', '/dev/shm/x'):\n"
        "  try:\n    f = open(p, 'wb')\n    while True: f.write(bytes(1_000_000))\n"
        "  except OSError: pass\n"
        "x = []\nwhile True: x.append(bytearray(1_000_000))"
    )
    with anyio.fail_after(PATIENCE):
        async with runtime.open(ContainerSpec(image=image, limits=limits, tmpfs=scratch)) as tight:
            try:
                assert (await tight.run(python(code))).code != 0
            except (WireLost, SpawnFailed):
                failure = await tight.failure()
                assert failure is not None
                assert failure.whose == "memory"
        assert await answers(bystander)
