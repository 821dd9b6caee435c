"""Attacks on the programs that the orchestrator runs beside the agent, and on what all share."""

from __future__ import annotations

import base64

import anyio
import anyio.lowlevel

from orchestrator.domain.container import Launch
from tests.attacks.mark import attack
from tests.attacks.rig import PATIENCE, Rig
from tests.attacks.spoils import work
from tests.engine.harness import Harness

WAITING = "import os, sys; os.setresuid(-1, -1, os.getuid()); "
WAITING += "print(os.getpid(), flush=True); sys.stdin.read()"

FORGER = """
import os, signal
while True:
    for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
        try:
            if b"st_blocks" not in open(f"/proc/{pid}/cmdline", "rb").read():
                continue
        except OSError:
            continue
        for act in (
            lambda: os.kill(int(pid), signal.SIGSTOP),
            lambda: open(f"/proc/{pid}/fd/1", "w").write('{"used": 0, "hidden": 0, "free": 1}'),
            lambda: os.kill(int(pid), signal.SIGKILL),
        ):
            try:
                act()
            except OSError:
                pass
"""


@attack(
    "helpers of the orchestrator",
    "answer in the place of the program that counts the disk, and fill it meanwhile",
    "its pipes cannot be opened and only its exit code 0 counts: the run ends as disk_full",
)
async def test_what_the_disk_holds_cannot_be_forged(harness: Harness) -> None:
    forger = base64.b64encode(FORGER.encode()).decode()
    script = (
        f"echo {forger} | base64 -d > /tmp/forger.py\n"
        "python3 /tmp/forger.py & sleep 1\n"  # one: several would kill it unanswered
        "head -c 40000000 /dev/zero > filled; sleep 40; kill %1"
    )
    result = (await work(harness, script, resources={"disk_mb": 16})).result
    assert (result.status, result.reason) == ("failed", "disk_full"), result


@attack(
    "helpers of the orchestrator",
    "trace, stop, kill or starve a helper, or open what it reads and writes",
    "EPERM and EACCES: its real user is another one, although it reads files as the agent",
)
async def test_a_helper_is_out_of_reach(closed: Rig) -> None:
    launch = Launch(argv=("python3", "-I", "-S", "-c", WAITING), errand=True)
    with anyio.fail_after(PATIENCE):
        async with closed.container.spawn(launch) as process:
            pid = int(await process.stdout.read())
            answers = await closed.tries(
                *(f"lambda: os.kill({pid}, {number})" for number in (9, 19, 15, 2)),
                *(f"lambda: open('/proc/{pid}/{name}', 'rb')" for name in ("mem", "environ")),
                f"lambda: os.listdir('/proc/{pid}/fd')",
                f"lambda: open('/proc/{pid}/fd/1', 'wb')",
                f"lambda: os.listdir('/proc/{pid}/map_files')",
                f"lambda: resource.prlimit({pid}, resource.RLIMIT_CPU, (1, 1))",
                f"lambda: open('/proc/{pid}/oom_score_adj', 'w').write('1000')",
            )
            assert process.code is None
    assert len(answers) == 11
    assert set(answers.values()) <= {"EPERM", "EACCES"}, answers


@attack(
    "processes and resources",
    "leave a set-user-ID shell of the workspace's owner on the host",
    "EPERM for every call that would set the bit, and the file is not there or plain",
)
async def test_no_file_gets_a_set_user_id_bit(closed: Rig) -> None:
    answers = await closed.tries(
        "lambda: os.close(os.open('/tmp/made', os.O_CREAT | os.O_WRONLY, 0o4755))",
        "lambda: os.mknod('/tmp/node', 0o104755)",
        "lambda: os.chmod('/tmp/plain', 0o4755)",
        "lambda: os.chmod('/tmp/plain', 0o2755)",
        "lambda: os.fchmod(os.open('/tmp/plain', os.O_CREAT | os.O_RDWR, 0o755), 0o6755)",
        "c('syscall', 85, b'/tmp/creat', 0o4755)",
    )
    assert set(answers.values()) == {"EPERM"}, answers
    bits = "find / -xdev -perm /6000 2>/dev/null | wc -l"
    assert (await closed.sh(bits)).strip() == "0"


@attack(
    "processes and resources",
    "take all contexts of asynchronous I/O, and all terminals, of the machine",
    "ENOSYS and ENOENT: there are none inside, so the machine's counters stay as they are",
)
async def test_counters_of_the_whole_machine_are_out_of_reach(closed: Rig) -> None:
    code = """
buffer = ctypes.c_ulong()
say([attempt(c("syscall", 206, 65536, ctypes.byref(buffer))), attempt(os.openpty)])
"""
    assert await closed.python(code) == ["ENOSYS", "ENOENT"]


async def test_everything_inside_can_be_stopped_and_continued(closed: Rig) -> None:
    ticking = "import time\nwhile True:\n    print('.', flush=True); time.sleep(0.05)"
    with anyio.fail_after(PATIENCE):
        escaped = (await closed.sh("setsid sleep 1000 > /dev/null 2>&1 & echo $!")).strip()
        state = f"cut -d' ' -f3 /proc/{escaped}/stat"
        async with closed.container.spawn(closed.launch("python3", "-c", ticking)) as process:
            assert await process.stdout.read()
            closed.container.wire.stop_all()
            for pid in (escaped, process.pid):  # one on another processor stops a moment later
                while await closed.sh(f"cut -d' ' -f3 /proc/{pid}/stat") != "T\n":
                    await anyio.lowlevel.checkpoint()
            closed.container.wire.continue_all()
            assert await closed.sh(state) != "T\n"
            for _ in range(3):
                assert await process.stdout.read()
        await closed.sh(f"kill {escaped}")
