"""Which system calls exist inside: a list of what is allowed, as the engine takes it (OCI, JSON).

What is not named here fails with EPERM. An engine's own profile allows what some container may
need; ours what agents and their tools need: no io_uring, no keyrings, no namespaces, no tracing,
no sockets but those of loopback.
"""

from __future__ import annotations

import json

ARCHITECTURES = frozenset(("x86_64", "amd64", "aarch64", "arm64"))
"""Where arguments are in the order that the rules below look at, as Docker and Podman call them.
The profile names none: an engine then allows its own alone, and a call by way of i386 or x32 ends
who makes it."""

ENOSYS = 38

FILES = """
    access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2
    fadvise64 fallocate fchdir fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr
    fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch lchown lgetxattr link
    linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat
    newfstatat pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink
    readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr
    setxattrat splice stat statfs statx symlink symlinkat sync_file_range tee truncate umask
    unlink unlinkat utime utimensat utimes vmsplice write writev
"""

WAITING_CALLS = """
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait
    epoll_wait_old eventfd eventfd2 poll ppoll pselect6 select signalfd signalfd4 timerfd_create
    timerfd_gettime timerfd_settime
"""

MEMORY = """
    brk madvise map_shadow_stack mincore mlock mlock2 mlockall mprotect mremap mseal msync munlock
    munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise process_mrelease
"""

PROCESSES = """
    arch_prctl capget capset execve execveat exit exit_group fork getcpu getpgid getpgrp getpid
    getppid getpriority getrlimit getrusage getsid gettid ioprio_get ioprio_set kill pidfd_open
    pidfd_send_signal prctl rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
    rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield setpgid
    setpriority setsid sigaltstack sysinfo tgkill times tkill uname vfork wait4 waitid
"""

THREADS = """
    futex futex_requeue futex_wait futex_waitv futex_wake get_robust_list get_thread_area
    membarrier restart_syscall rseq set_robust_list set_thread_area set_tid_address
"""

IDENTITY = """
    getegid geteuid getgid getgroups getresgid getresuid getuid setfsgid setfsuid setgid setgroups
    setregid setresgid setresuid setreuid setuid
"""
"""Asked for freely, changed only by the warden, which alone has the capabilities."""

CLOCKS = """
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep pause
    setitimer time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
"""

SOCKETS = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg
    recvmsg sendmmsg sendmsg sendto setsockopt shutdown
"""
"""What is done with a socket; which ones can be made is said in `profile`."""

SHARING = """
    msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""
"""Between processes of one container: each has an IPC namespace of its own."""

CONFINEMENT = """
    getrandom landlock_add_rule landlock_create_ruleset landlock_restrict_self seccomp
"""
"""By which a program gives up more."""

ALLOWED = (
    *(FILES, WAITING_CALLS, MEMORY, PROCESSES, THREADS, IDENTITY, CLOCKS, SOCKETS, SHARING),
    CONFINEMENT,
)

MISSING = """
    clone3 file_getattr file_setattr io_cancel io_destroy io_getevents io_pgetevents io_setup
    io_submit listmount listns open_tree_attr openat2 statmount
"""
"""Said to be unknown to the kernel (ENOSYS), since programs then take an older way. The flags of
clone3 and the mode of openat2 lie in memory, where no filter can see them. The contexts of
asynchronous I/O (io_setup) are counted for the whole machine: an agent could leave none to the
databases of the host."""

PRETENDED = """
    sync syncfs
"""
"""Answered with success and not done: they write out what the whole machine has in memory."""

CORE = 4
"""RLIMIT_CORE. It is 1 for good, at which the kernel dumps nothing, not even to a program: that
would be one of the host, run as root, and a limit of 0 does not keep the kernel from it. To set it
is answered with success and not done."""
CORE_BITS = 0xF

LEASES, LEASE_BITS = 0x400, 0x40C
"""F_SETLEASE, F_GETLEASE and F_NOTIFY of fcntl: with a lease on a file of the workspace, each
program of the host that opens it waits for 45 seconds."""

SOCKET_IOCTLS, IOCTL_TYPE_BITS = 0x8900, 0x8900
PLAIN_SOCKET_IOCTLS = ((0x8900, 0xFFC0), (0x8942, 0xFFFE), (0x8944, 0xFFFC), (0x8948, 0xFFF8))
"""Those that ask about interfaces. The others are for bridges and virtual networks, whose kernel
modules they load. (The bits are those that other ioctls in use do not have all.)"""

HUGE_PAGES = {"mmap": (3, 0x40000), "memfd_create": (1, 0x4)}
"""Flags that ask for huge pages, of which the host has set a number aside for its databases; and
which argument they are in."""

SET_ID_BITS = 0o6000
"""Set-user-ID and set-group-ID. On a workspace that is mounted to be written, a file with one of
them would run as the workspace's owner for every user of the host."""

MODES = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
"""Calls that give a file its mode, and which argument that is."""

CREATING = 0o100 | 0o20000000
"""O_CREAT and O_TMPFILE; without one of them, the mode of open and openat is any number."""

OPENS = {"open": 1, "openat": 2}
"""Calls that may give a file its mode: which argument are the flags. The mode is the next one."""

NEW_NAMESPACES = 0x7E020000
"""All of CLONE_NEWNS, -CGROUP, -UTS, -IPC, -USER, -PID and -NET."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
"""Plain Linux, its look-alikes for `uname`, and the question which one it is."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
STREAM, DATAGRAM = 1, 2
TYPE_BITS = 0xF
"""Of socket()'s second argument; the rest are flags."""
USUAL, TCP, UDP = 0, 6, 17
NETLINK_ROUTE = 0
"""Which interfaces there are: asked by getaddrinfo, and by node's os.networkInterfaces."""

INTERNET = tuple(
    (family, kind, protocol)
    for family in (AF_INET, AF_INET6)
    for kind, protocol in ((STREAM, USUAL), (STREAM, TCP), (DATAGRAM, USUAL), (DATAGRAM, UDP))
)
"""Sockets for TCP and UDP. All others (vsock, alg, packet, bluetooth; SCTP, DCCP) are kernel
modules that no agent needs, and asking for one would load it."""

SyscallRule = dict[str, object]


def profile() -> str:
    """The profile as JSON text: the same each time, and without a byte too many."""
    rules = [
        _rule(" ".join(ALLOWED)),
        _rule("clone", _masked(0, NEW_NAMESPACES, 0)),
        *(_rule("personality", _equal(0, value)) for value in PERSONALITIES),
        _rule("socket", _equal(0, AF_UNIX)),
        _rule("socket", _equal(0, AF_NETLINK), _equal(2, NETLINK_ROUTE)),
        *(
            _rule("socket", _equal(0, family), _masked(1, TYPE_BITS, kind), _equal(2, protocol))
            for family, kind, protocol in INTERNET
        ),
        _rule("socketpair", _equal(0, AF_UNIX)),
        *(_rule(name, _masked(at, SET_ID_BITS, 0)) for name, at in MODES.items()),
        *(_rule(name, _masked(at + 1, SET_ID_BITS, 0)) for name, at in OPENS.items()),
        *(_rule(name, _masked(at, CREATING, 0)) for name, at in OPENS.items()),
        *(_rule("fcntl", each) for each in _others(1, LEASE_BITS, LEASES)),
        *(_rule("ioctl", each) for each in _others(1, IOCTL_TYPE_BITS, SOCKET_IOCTLS)),
        *(_rule("ioctl", _masked(1, mask, value)) for value, mask in PLAIN_SOCKET_IOCTLS),
        *(_rule(name, _masked(at, flag, 0)) for name, (at, flag) in HUGE_PAGES.items()),
        *(_rule("setrlimit", each) for each in _others(0, CORE_BITS, CORE)),
        *(_rule("prlimit64", each) for each in _others(1, CORE_BITS, CORE)),
        _rule("prlimit64", _equal(2, 0)),  # a question
        _answered(0, "setrlimit", _masked(0, CORE_BITS, CORE)),
        _answered(0, "prlimit64", _masked(1, CORE_BITS, CORE), _above(2, 0)),
        _answered(0, PRETENDED),
        _answered(ENOSYS, MISSING),
    ]
    whole = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules}
    return json.dumps(whole, separators=(",", ":"))


def _rule(names: str, *args: SyscallRule) -> SyscallRule:
    row: SyscallRule = {"names": sorted(names.split()), "action": "SCMP_ACT_ALLOW"}
    return row | ({"args": list(args)} if args else {})


def _answered(errno: int, names: str, *args: SyscallRule) -> SyscallRule:
    """Not done; the program hears of this error, or of none if it is 0."""
    return {**_rule(names, *args), "action": "SCMP_ACT_ERRNO", "errnoRet": errno}


def _others(index: int, mask: int, value: int) -> list[SyscallRule]:
    """Every number that is another one in the bits of the mask: it differs in one of them."""
    bits = [1 << at for at in range(mask.bit_length()) if mask >> at & 1]
    return [_masked(index, bit, ~value & bit) for bit in bits]


def _above(index: int, value: int) -> SyscallRule:
    # Not SCMP_CMP_NE, which libseccomp 2.5.4 forgets beside a rule for the same value.
    return {"index": index, "value": value, "op": "SCMP_CMP_GT"}


def _equal(index: int, value: int) -> SyscallRule:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> SyscallRule:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
