"""Our seccomp profile: what it says, what it refuses in a container, and what works under it."""

from __future__ import annotations

import json
import logging

import anyio
import pytest

from orchestrator.containers import seccomp
from orchestrator.containers.docker import runtime as docker_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.failure import ProfileRefused
from orchestrator.domain.container import ContainerSpec, Launch
from orchestrator.errors import SpecRefused

PATIENCE = 120

BROKEN = '{"defaultAction":"SCMP_ACT_NONSENSE","syscalls":[]}'

NEVER = """
    io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key userfaultfd bpf
    perf_event_open ptrace process_vm_readv process_vm_writev mount umount2 pivot_root chroot
    move_mount open_tree fsopen fsmount fspick fsconfig mount_setattr unshare setns kexec_load
    kexec_file_load init_module finit_module delete_module reboot swapon swapoff acct quotactl
    nfsservctl kcmp lookup_dcookie open_by_handle_at name_to_handle_at pidfd_getfd fanotify_init
    syslog settimeofday clock_settime sethostname iopl ioperm modify_ldt socketcall vhangup
"""


@pytest.fixture
def spec(image: str) -> ContainerSpec:
    return ContainerSpec(image=image, seccomp=seccomp.profile())


def test_the_profile_refuses_what_it_does_not_name() -> None:
    whole = json.loads(seccomp.profile())
    plain = [rule for rule in whole["syscalls"] if "args" not in rule]
    named = [name for rule in whole["syscalls"] for name in rule["names"]]

    assert whole["defaultAction"] == "SCMP_ACT_ERRNO"
    assert [rule["action"] for rule in plain] == ["SCMP_ACT_ALLOW", *2 * ["SCMP_ACT_ERRNO"]]
    assert not set(NEVER.split()) & set(named)
    assert not {"clone", "socket", "socketpair", "personality"} & set(plain[0]["names"])


def test_the_profile_is_the_same_each_time_names_each_call_once_and_is_small() -> None:
    rules = json.loads(seccomp.profile())["syscalls"]
    named = [name for rule in rules if "args" not in rule for name in rule["names"]]

    assert seccomp.profile() == seccomp.profile()
    assert len(named) == len(set(named))
    assert len(seccomp.profile()) < 12288


CALLS = """
import ctypes, errno, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
def call(x86, other, *args):
    answer = libc.syscall(other if arm else x86, *args)
    return "WORKED" if answer != -1 else errno.errorcode[ctypes.get_errno()]
def socket(*args):
    return "WORKED" if libc.socket(*args) != -1 else errno.errorcode[ctypes.get_errno()]
"""


ANSWERS = {
    "call(425, 425, 1, None)": "EPERM",  # io_uring_setup
    "call(250, 219, 0, -4, 1)": "EPERM",  # keyctl
    "call(248, 217, b'user', b'x', b'y', 1, -2)": "EPERM",  # add_key
    "call(323, 282, 1)": "EPERM",  # userfaultfd
    "call(321, 280, 0, None, 0)": "EPERM",  # bpf
    "call(298, 241, None, 0, -1, -1, 0)": "EPERM",  # perf_event_open
    "call(101, 117, 0, 0, 0, 0)": "EPERM",  # ptrace(PTRACE_TRACEME)
    "call(310, 270, os.getpid(), None, 0, None, 0, 0)": "EPERM",  # process_vm_readv
    "call(272, 97, 0x10000000)": "EPERM",  # unshare(CLONE_NEWUSER)
    "call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)": "EPERM",  # clone(CLONE_NEWUSER)
    "call(435, 435, None, 0)": "ENOSYS",  # clone3
    "call(72, 25, 0, 1024, 0)": "EPERM",  # fcntl(F_SETLEASE)
    "call(72, 25, 0, ctypes.c_ulong(0x100000400), 0)": "EPERM",  # the kernel drops the upper half
    "call(72, 25, 0, 1026, 0)": "EPERM",  # F_NOTIFY
    "call(72, 25, 0, 1030, 3)": "WORKED",  # F_DUPFD_CLOEXEC
    "call(72, 25, 1, 1032)": "WORKED",  # F_GETPIPE_SZ
    "call(16, 29, libc.socket(2, 1, 0), 0x8940, bytes(64))": "EPERM",  # SIOCGIFBR
    "call(16, 29, libc.socket(2, 1, 0), 0x8982, bytes(64))": "EPERM",  # SIOCGIFVLAN
    "call(16, 29, libc.socket(2, 1, 0), 0x8913, b'lo' + bytes(62))": "WORKED",  # SIOCGIFFLAGS
    "call(16, 29, 1, 0x541B, bytes(8))": "WORKED",  # FIONREAD
    "call(9, 222, 0, 1 << 21, 3, 0x40022, -1, 0)": "EPERM",  # mmap(MAP_HUGETLB)
    "call(319, 279, b'x', 4)": "EPERM",  # memfd_create(MFD_HUGETLB)
    "call(319, 279, b'x', 1)": "WORKED",
    "call(302, 261, 0, 4, (ctypes.c_ulong * 2)(), None)": "WORKED",  # RLIMIT_CORE: not done
    "call(302, 261, 0, 4, None, (ctypes.c_ulong * 2)())": "WORKED",
    "[*__import__('resource').getrlimit(4)]": [1, 1],
    "call(302, 261, 0, 7, None, (ctypes.c_ulong * 2)())": "WORKED",
    "call(162, 81)": "WORKED",  # sync: not done
    "call(447, 447, 0)": "EPERM",  # memfd_secret
    "call(303, 264, -100, b'/', None, None, 0)": "EPERM",  # name_to_handle_at
    "call(438, 438, os.pidfd_open(os.getpid()), 0, 0)": "EPERM",  # pidfd_getfd
    "call(300, 262, 0x200, 0)": "EPERM",  # fanotify_init
    "call(429, 429, b'/', 0)": "EPERM",  # move_mount
    "call(135, 92, 0x0040000)": "EPERM",  # personality(ADDR_NO_RANDOMIZE)
    "call(135, 92, ctypes.c_ulong(0xFFFFFFFF))": "WORKED",  # personality: which one is it?
    "call(206, 0, 1, ctypes.byref(ctypes.c_ulong()))": "ENOSYS",  # io_setup
    "call(437, 437, -100, b'/', (ctypes.c_uint64 * 3)(), 24)": "ENOSYS",  # openat2
    "call(268, 53, -100, b'/tmp', 0o4755)": "EPERM",  # fchmodat
    "call(268, 53, -100, b'/tmp', 0o2755)": "EPERM",
    "call(452, 452, -100, b'/tmp', 0o6755, 0)": "EPERM",  # fchmodat2
    "call(91, 52, 0, 0o4755)": "EPERM",  # fchmod
    "call(259, 33, -100, b'/tmp/node', 0o104755, 0)": "EPERM",  # mknodat
    "call(259, 33, -100, b'/tmp/node', 0o100755, 0)": "WORKED",
    "call(257, 56, -100, b'/tmp/file', 0o101, 0o4755)": "EPERM",  # openat(O_CREAT)
    "call(257, 56, -100, b'/tmp', 0o20200002, 0o4755)": "EPERM",  # openat(O_TMPFILE)
    "call(257, 56, -100, b'/tmp/file', 0o101, 0o1755)": "WORKED",
    "call(257, 56, -100, b'/tmp/file', 0, 0o7777)": "WORKED",  # the mode counts for nothing
    "socket(40, 1, 0)": "EPERM",  # AF_VSOCK
    "socket(38, 5, 0)": "EPERM",  # AF_ALG
    "socket(17, 3, 0)": "EPERM",  # AF_PACKET
    "socket(31, 3, 1)": "EPERM",  # AF_BLUETOOTH
    "socket(16, 3, 9)": "EPERM",  # NETLINK_AUDIT
    "socket(2, 1, 132)": "EPERM",  # SCTP
    "socket(2, 6, 0)": "EPERM",  # DCCP
    "socket(2, 3, 1)": "EPERM",  # raw
    "socket(1, 5, 0)": "WORKED",
    "socket(2, 1 | 0o2004000, 6)": "WORKED",  # with SOCK_CLOEXEC and SOCK_NONBLOCK
    "socket(10, 2, 0)": "WORKED",
    "socket(16, 3 | 0o2000000, 0)": "WORKED",  # NETLINK_ROUTE
}


async def test_calls_are_answered_as_the_profile_says(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    script = f"{CALLS}import json\nprint(json.dumps({{a: eval(a) for a in {[*ANSWERS]!r}}}))"
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            done = await container.run(Launch(argv=("python3", "-c", script)))

    assert json.loads(done.stdout) == ANSWERS


async def test_a_call_by_way_of_another_architecture_ends_who_makes_it(
    runtime: DockerRuntime, spec: ContainerSpec
) -> None:
    x32 = "import ctypes, os; ctypes.CDLL(None).syscall(0x40000000 | 39); print('still here')"
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            machine = (await container.run(Launch(argv=("uname", "-m")))).stdout.strip()
            if machine != b"x86_64":
                pytest.skip("there is no other way in on this machine")
            done = await container.run(Launch(argv=("python3", "-c", x32)))

    assert done.stdout == b""
    assert done.code < 0


WORKS = {
    "threads": """
import threading
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(20)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == 20
""",
    "processes": """
import multiprocessing, subprocess
from multiprocessing import shared_memory
assert subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True).stdout == b"a\\n"
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
block = shared_memory.SharedMemory(create=True, size=4096); block.close(); block.unlink()
""",
    "event loops": """
import asyncio
async def main():
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        done = await asyncio.create_subprocess_exec("true")
        assert await done.wait() == 0
asyncio.run(main())
""",
    "files": """
import fcntl, mmap, os, shutil, sqlite3, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.mkfifo(f"{folder}/fifo"); os.symlink("a", f"{folder}/b")
    with open(f"{folder}/a", "w+b") as file:
        file.write(bytes(8192)); file.flush(); os.fsync(file.fileno())
        fcntl.flock(file, fcntl.LOCK_EX)
        mmap.mmap(file.fileno(), 0).close()
    shutil.copy2(f"{folder}/a", f"{folder}/c"); os.chmod(f"{folder}/c", 0o600)
    db = sqlite3.connect(f"{folder}/db"); db.execute("pragma journal_mode=wal")
    db.execute("create table t (a)"); db.commit(); db.close()
""",
    "names": """
import os, pwd, socket
assert pwd.getpwuid(os.getuid()).pw_name == "agent"
for name in ("localhost", socket.gethostname()):  # an engine writes no /etc/hosts for us
    found = {row[4][0] for row in socket.getaddrinfo(name, 80)}
    assert found <= {"127.0.0.1", "127.0.0.2", "::1"}, found
    with socket.create_server((name, 0)) as server:
        socket.create_connection((name, server.getsockname()[1])).close()
assert [name for _, name in socket.if_nameindex()] == ["lo"]
a, b = socket.socketpair(); a.send(b"x"); assert b.recv(1) == b"x"
""",
}


@pytest.mark.parametrize("what", WORKS)
async def test_what_programs_need_works(
    runtime: DockerRuntime, spec: ContainerSpec, what: str
) -> None:
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            home = {"HOME": "/home/agent", "PATH": "/usr/local/bin:/usr/bin:/bin"}
            done = await container.run(Launch(argv=("python3", "-c", WORKS[what]), env=home))

    assert done.code == 0, done.stderr.decode()


async def test_the_tools_of_the_image_work(runtime: DockerRuntime, spec: ContainerSpec) -> None:
    script = """
set -eu
cd "$(mktemp -d)"
git init -q . && echo hello > a && git add a
git -c user.name=a -c user.email=a@b.c commit -qm first && git gc -q && git clone -q . copy
rg -q hello copy && jq -n '{a: 1}' > b.json && tar cz a b.json | tar tz
python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 & server=$!
curl -sS --retry 20 --retry-connrefused --retry-delay 0 http://127.0.0.1:8000/a
kill $server
claude --version
"""
    env = {"HOME": "/home/agent", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec) as container:
            done = await container.run(Launch(argv=("bash", "-c", script), env=env))

    said = done.stdout.decode().splitlines()
    assert done.code == 0, done.stderr.decode()
    assert said[:3] == ["a", "b.json", "hello"]
    assert "Claude Code" in said[-1]


async def test_a_runtime_offers_the_profile_where_the_engine_filters_calls(
    runtime: DockerRuntime,
) -> None:
    assert await runtime.seccomp_profile() == seccomp.profile()


async def test_an_engine_that_refuses_our_profile_gets_none_from_then_on(
    runtime: DockerRuntime,
    image: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(docker_runtime, "profile", lambda: BROKEN)  # so the real engine refuses it
    spec = ContainerSpec(image=image, seccomp=BROKEN)
    with anyio.fail_after(PATIENCE), caplog.at_level(logging.WARNING):
        for _ in range(2):
            async with runtime.open(spec) as container:
                done = await container.run(Launch(argv=("grep", "Seccomp:", "/proc/self/status")))
                assert done.stdout.split() == [b"Seccomp:", b"2"]  # the engine's own
                assert container.spec.seccomp is None

    assert await runtime.seccomp_profile() is None
    said = [r.getMessage() for r in caplog.records if "seccomp" in r.getMessage()]
    assert len(said) == 1
    assert "which allows more" in said[0]


async def test_an_oci_runtime_that_refuses_our_profile_takes_it_from_no_other(
    runtime: DockerRuntime, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_runtime, "profile", lambda: BROKEN)
    odd = ContainerSpec(image=image, seccomp=BROKEN, oci_runtime="runc")
    with anyio.fail_after(PATIENCE):
        async with runtime.open(odd) as container:
            assert container.spec.seccomp is None
    assert await runtime.seccomp_profile() == seccomp.profile()


async def test_a_profile_of_somebody_else_is_never_left_out(
    runtime: DockerRuntime, image: str
) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(ProfileRefused, match="seccomp"):
        async with runtime.open(ContainerSpec(image=image, seccomp=BROKEN)):
            pass
    assert await runtime.list() == ()
    assert await runtime.seccomp_profile() == seccomp.profile()


async def test_a_runtime_that_the_engine_does_not_have_is_refused_with_those_it_has(
    runtime: DockerRuntime, image: str
) -> None:
    spec = ContainerSpec(image=image, oci_runtime="no-such-runtime")
    with anyio.fail_after(PATIENCE):
        with pytest.raises(SpecRefused, match=r"no runtime 'no-such-runtime'; it has: .*runc"):
            async with runtime.open(spec):
                pass
        with pytest.raises(SpecRefused, match=r"take `runtime` out of agent\.md"):
            async with runtime.keep("a-session", spec):
                pass
    assert await runtime.list() == ()
