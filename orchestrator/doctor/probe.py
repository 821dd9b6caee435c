"""Runs inside a probe container, as the agent would: tries one thing and prints what came of it.

One file, standard library only: the doctor hands its text to the container's python3 together with
the name of a probe. Each probe answers with one JSON object of plain facts; the doctor judges.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

Facts = dict[str, object]

MIB = 1024 * 1024

CONNECT_SECONDS = 2.0
"""Without an interface a connect fails at once; one that takes so long was on its way somewhere."""

ANSWER_SECONDS = 20.0
"""For what answers on loopback."""

MARGIN = 16
"""How far past a limit to try before calling it unlimited."""

SHOWN = 10
"""How many paths to name."""

DESTINATIONS = (
    (socket.AF_INET, socket.SOCK_STREAM, "1.1.1.1", 443),
    (socket.AF_INET, socket.SOCK_DGRAM, "8.8.8.8", 53),
    (socket.AF_INET, socket.SOCK_STREAM, "169.254.169.254", 80),  # where clouds keep credentials
    (socket.AF_INET6, socket.SOCK_STREAM, "2606:4700:4700::1111", 443),
)

NAME = "example.com"

PTRACE_TRACEME, PTRACE_ATTACH, PTRACE_DETACH = 0, 16, 17
KEYCTL_GET_KEYRING_ID, USER_KEYRING = 0, -4
CLONE_NEWUSER = 0x10000000
UFFD_USER_MODE_ONLY = 1
AF_ALG, AF_VSOCK = 38, 40

NUMBERS = {
    "x86_64": {
        "io_uring_setup": 425,
        "keyctl": 250,
        "process_vm_readv": 310,
        "userfaultfd": 323,
    },
    "aarch64": {
        "io_uring_setup": 425,
        "keyctl": 219,
        "process_vm_readv": 270,
        "userfaultfd": 282,
    },
}
"""Of system calls that the C library has no function for."""


def network() -> Facts:
    """Which interfaces there are, and what becomes of a word to the outside."""
    rows = Path("/proc/net/dev").read_text().splitlines()[2:]
    outcomes = {}
    for family, kind, address, port in DESTINATIONS:
        with socket.socket(family, kind) as client:
            client.settimeout(CONNECT_SECONDS)
            outcomes[f"{address}:{port}"] = _outcome(lambda: client.connect((address, port)))  # noqa: B023
    return {"interfaces": [row.split(":")[0].strip() for row in rows], "outcomes": outcomes}


def dns() -> Facts:
    """What becomes of a name of the outside, and of the container's own."""
    return {"name": NAME, "outside": _looked_up(NAME), "localhost": _looked_up("localhost")}


def _looked_up(name: str) -> Facts:
    try:
        found = socket.getaddrinfo(name, 443)
    except OSError as exc:
        return {"addresses": [], "error": exc.strerror or str(exc)}
    return {"addresses": sorted({str(row[4][0]) for row in found}), "error": ""}


def root_filesystem(*scratch_space: str) -> Facts:
    """Whether / is mounted read-only, and what can be written although it is no scratch space."""
    writable = [
        str(path)
        for path in _tree("/proc", "/sys", "/dev", *scratch_space)
        if os.access(path, os.W_OK) and not path.is_symlink()
    ]
    read_only = bool(os.statvfs("/").f_flag & os.ST_RDONLY)
    return {"read_only": read_only, "writable": writable[:SHOWN]}


def mounted(place: str) -> Facts:
    """Whether what is mounted there can be written. Nothing is."""
    read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    return {"read_only": read_only, "writable": os.access(place, os.W_OK)}


def scratch(*targets_and_sizes: str) -> Facts:
    """Write to each place until it is full, or a little more than it may hold."""
    pairs = zip(targets_and_sizes[::2], map(int, targets_and_sizes[1::2]), strict=True)
    return {target: _fill(Path(target), size) for target, size in pairs}


def status() -> Facts:
    """The kernel's own account of what this process may do."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (row.partition(":") for row in rows)}


def become_root() -> Facts:
    return {
        "setuid(0)": _outcome(lambda: os.setuid(0)),
        "setgid(0)": _outcome(lambda: os.setgid(0)),
        "setgroups(0)": _outcome(lambda: os.setgroups([0])),
    }


def seccomp() -> Facts:
    """Calls that need no privilege, and that a container's usual filter refuses all the same."""
    libc = ctypes.CDLL(None, use_errno=True)
    keyctl = NUMBERS.get(os.uname().machine, {}).get("keyctl", -1)
    return {
        "unshare(CLONE_NEWUSER)": _call(lambda: libc.unshare(CLONE_NEWUSER)),
        "keyctl": _call(lambda: libc.syscall(keyctl, KEYCTL_GET_KEYRING_ID, USER_KEYRING, 1)),
    }


def system_calls() -> Facts:
    """Calls that need no privilege, that no agent needs, and that many a hole was found in."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = NUMBERS[os.uname().machine]
    keyctl = (KEYCTL_GET_KEYRING_ID, USER_KEYRING, 1)
    nothing = (os.getpid(), None, 0, None, 0, 0)
    return {
        "io_uring_setup": _call(lambda: libc.syscall(number["io_uring_setup"], 1, None)),
        "userfaultfd": _call(lambda: libc.syscall(number["userfaultfd"], UFFD_USER_MODE_ONLY)),
        "keyctl": _call(lambda: libc.syscall(number["keyctl"], *keyctl)),
        "process_vm_readv": _call(lambda: libc.syscall(number["process_vm_readv"], *nothing)),
        "ptrace": _call(lambda: libc.ptrace(PTRACE_TRACEME, 0, 0, 0)),
        "socket(AF_VSOCK)": _call(lambda: libc.socket(AF_VSOCK, socket.SOCK_STREAM, 0)),
        "socket(AF_ALG)": _call(lambda: libc.socket(AF_ALG, socket.SOCK_SEQPACKET, 0)),
    }


def special_files() -> Facts:
    """Programs that change their user, and sockets that lead to other processes."""
    setuid, sockets = [], []
    for path in _tree("/proc", "/sys"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            setuid.append(str(path))
        elif stat.S_ISSOCK(mode):
            sockets.append(str(path))
    return {"setuid": setuid[:SHOWN], "sockets": sockets[:SHOWN]}


def hog(limit: str) -> Facts:
    """Use twice the memory there is. Something is printed only if the limit did not hold."""
    kept = [b"x" * MIB for _ in range(2 * int(limit) // MIB)]
    return {"mebibytes": len(kept)}


def forks(limit: str) -> NoReturn:
    """Fork until told to stop. The children stay, each in a session of its own."""
    made, refused = 0, ""
    while made < int(limit) + MARGIN and not refused:
        try:
            if os.fork() == 0:
                os.setsid()
                _wait_for_ever()
            made += 1
        except OSError as exc:
            refused = _errno_name(exc)
    print(json.dumps({"made": made, "refused": refused}), flush=True)
    _wait_for_ever()


def open_files(limit: str) -> Facts:
    """Open files until told to stop, then ask for more of them."""
    kept: list[int] = []
    refused = ""
    while len(kept) < int(limit) + MARGIN and not refused:
        try:
            kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as exc:
            refused = _errno_name(exc)
    more = (int(limit) + MARGIN, int(limit) + MARGIN)
    return {
        "opened": len(kept),
        "refused": refused,
        "raise": _outcome(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, more)),
    }


def cpus() -> Facts:
    """The processors that the control group grants; none when there is no limit to be seen."""
    quota, period = "", ""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except OSError:
        for folder in (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpu,cpuacct")):
            if folder.is_dir():
                quota = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
    limited = quota.isdigit() and period.isdigit()
    return {"cpus": int(quota) / int(period) if limited else None, "available": os.cpu_count()}


def attack(pid: str) -> Facts:
    """All that one process may try on another; what ends it comes last."""
    target, proc = int(pid), Path("/proc") / pid
    libc = ctypes.CDLL(None, use_errno=True)

    def trace() -> int:
        result: int = libc.ptrace(PTRACE_ATTACH, target, 0, 0)
        if result == 0:
            os.waitpid(target, 0)
            libc.ptrace(PTRACE_DETACH, target, 0, 0)
        return result

    tries: dict[str, Callable[[], object]] = {
        "read its environment": (proc / "environ").read_bytes,
        "read its memory map": (proc / "maps").read_bytes,
        "open its memory": lambda: os.close(os.open(proc / "mem", os.O_RDWR)),
        "list its files": lambda: list((proc / "fd").iterdir()),
        "write to its stdout": lambda: os.close(os.open(proc / "fd/1", os.O_WRONLY)),
        "enter its root": lambda: list((proc / "root").iterdir()),
        "enter its directory": lambda: list((proc / "cwd").iterdir()),
        "name its program": (proc / "exe").readlink,
        "change its limits": lambda: resource.prlimit(target, resource.RLIMIT_NOFILE),
        "change its priority": lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
        "change its processors": lambda: os.sched_setaffinity(target, {0}),
        "offer it for want of memory": lambda: (proc / "oom_score_adj").write_text("1000"),
    }
    outcomes = {what: _outcome(attempt) for what, attempt in tries.items()}
    outcomes["trace it"] = _call(trace)
    for name in ("SIGSTOP", "SIGCONT", "SIGTERM", "SIGKILL"):
        number = signal.Signals[name]
        outcomes[f"send it {name}"] = _outcome(lambda: os.kill(target, number))  # noqa: B023
    return {"outcomes": outcomes}


def processes() -> Facts:
    """All processes that can be seen, and which of them this is."""
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {"pids": pids, "own": os.getpid()}


def proxy(port: str, tunnel: str, *targets: str) -> Facts:
    """What a proxy on loopback answers: to GET of each target, and to CONNECT."""
    return {
        target: _exchange(port, *(("CONNECT", tunnel) if target == "CONNECT" else ("GET", target)))
        for target in targets
    }


def fetch(port: str, *paths: str) -> Facts:
    """What a server on loopback answers to each path."""
    return {path: _exchange(port, "GET", path) for path in paths}


def post(port: str, path: str, *bodies: str) -> Facts:
    """What a server on loopback answers to each of these."""
    return {body: _exchange(port, "POST", path, body) for body in bodies}


def search(*places: str) -> Facts:
    """Where a text is to be found that is read backwards: in files, and in what processes show."""
    wanted = sys.stdin.buffer.read()[::-1]
    shown = [
        process / name
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        for name in ("environ", "cmdline")
    ]
    files = [
        Path(folder) / name
        for place in (*places, "/dev/shm", "/run")  # noqa: S108 inside
        for folder, _, names in os.walk(place)
        for name in names
    ]
    found = []
    for path in (*shown, *files):
        try:
            if (path in shown or path.is_file()) and wanted in path.read_bytes():
                found.append(str(path))
        except OSError:
            pass  # gone in between, or the warden's
    return {"found": found[:SHOWN]}


def stubborn() -> NoReturn:
    """Ignore every signal that can be ignored, with a child in a session of its own, for ever."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
    else:
        print("{}", flush=True)
    _wait_for_ever()


def _exchange(port: str, method: str, target: str, body: str = "") -> Facts:
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    size = f"Content-Length: {len(body.encode())}\r\n" if body else ""
    request = f"{head}{size}\r\n{body}"
    answer = b""
    with socket.create_connection(("127.0.0.1", int(port)), ANSWER_SECONDS) as client:
        client.sendall(request.encode())
        while data := client.recv(65536):
            answer += data
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    return {"status": int(head.split(maxsplit=2)[1]), "body": body[:500]}


def _tree(*but: str) -> Iterator[Path]:
    """Every file and directory that can be seen, but what is below these."""
    skipped = {Path(folder) for folder in but}
    for folder, names, files in os.walk("/"):
        here = Path(folder)
        names[:] = [name for name in names if here / name not in skipped]
        yield here
        for name in files:
            yield here / name


def _fill(folder: Path, size: int) -> Facts:
    path = folder / "fill"
    chunk = bytes(MIB)
    written, refused = 0, ""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        while written < size + MARGIN * MIB and not refused:
            try:
                written += os.write(fd, chunk)
            except OSError as exc:
                refused = _errno_name(exc)
    finally:
        path.unlink()
        os.close(fd)
    return {"written": written, "refused": refused}


def _outcome(attempt: Callable[[], object]) -> str:
    """How an attempt was refused; empty when it worked."""
    try:
        attempt()
    except TimeoutError:
        return "no answer"
    except OSError as exc:
        return _errno_name(exc)
    except ValueError as exc:  # what setrlimit says for EPERM
        return str(exc)
    return ""


def _call(attempt: Callable[[], int]) -> str:
    """The same for a call into C, which answers -1."""
    if attempt() != -1:
        return ""
    return errno.errorcode.get(ctypes.get_errno(), "refused")


def _errno_name(exc: OSError) -> str:
    return errno.errorcode.get(exc.errno or 0, str(exc))


def _wait_for_ever() -> NoReturn:
    while True:
        signal.pause()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
