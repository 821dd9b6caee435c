"""Attacks on a container's limits: each runs out inside, and nowhere else."""

from __future__ import annotations

import errno

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.exhaustion import ask
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, ContainerSpec, Launch, Limits, Tmpfs
from orchestrator.errors import SpawnFailed, WireLost
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, Rig, answers, python


@attack(
    "processes and resources",
    "fork without end",
    "EAGAIN, also for what we start; killing all mends it, the neighbour notices nothing",
)
async def test_using_up_all_pids_is_an_answer_and_kill_all_mends_it(
    box: Container, closed: Rig
) -> None:
    bomb = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n"
    async with box.spawn(python(bomb)):
        with pytest.raises(SpawnFailed, match="cannot start a process") as refused:
            await _run_until_refused(box)
        assert refused.value.errno == errno.EAGAIN
        assert await closed.answers()
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
    box: Container, closed: Rig
) -> None:
    done = await box.run(python("x = []\nwhile True: x.append(bytearray(10_000_000))"))

    assert done.code == -9
    assert await closed.answers()
    assert await answers(box)
    assert (await ask(box)).oom_kills  # the engine tells, or the kernel's own counter


@attack(
    "processes and resources",
    "open files without end",
    "EMFILE at the limit; the container answers",
)
async def test_using_up_all_descriptors_hurts_only_oneself(box: Container) -> None:
    code = (
        "import os\nn = 0\ntry:\n  while True: os.open('/', 0); n += 1\nexcept OSError: print(n)\n"
    )
    done = await box.run(python(code))

    assert 0 < int(done.stdout) <= 1024
    assert await answers(box)


@attack(
    "processes and resources",
    "fill /tmp, the home and /dev/shm",
    "ENOSPC at their sizes; the container answers",
)
async def test_filling_scratch_space_is_a_full_disk_and_nothing_worse(box: Container) -> None:
    for place in ("/tmp/x", "/home/agent/x", "/dev/shm/x"):
        done = await box.run(Launch(argv=("dd", "if=/dev/zero", f"of={place}", "bs=1M")))
        assert b"No space left on device" in done.stderr
        assert await answers(box)


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
    "whichever process the kernel kills, the failure is told as memory, and nothing is left",
)
async def test_a_full_memory_and_full_scratch_space_end_in_an_answer(
    engine: DockerRuntime, closed: Rig, image: str
) -> None:
    """Scratch space is memory too: the kernel may kill the warden for it as well as the hog."""
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
        async with engine.open(ContainerSpec(image=image, limits=limits, tmpfs=scratch)) as tight:
            try:
                assert (await tight.run(python(code))).code != 0
            except (WireLost, SpawnFailed):
                failure = await tight.failure()
                assert failure is not None
                assert failure.whose == "memory"
        assert await closed.answers()
