"""ContainerSpec and Launch: what a container may touch, and what runs in it."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from orchestrator.domain import Frozen

MIB = 1024 * 1024

MODEL_PORT = 8080
"""Where the model is reached inside: on loopback, and nothing but our gateway behind it."""
MODEL_URL = f"http://127.0.0.1:{MODEL_PORT}"

EGRESS_PORT = 8081
"""Where the HTTP proxy is reached inside, if agent.md allows any host."""
EGRESS_URL = f"http://127.0.0.1:{EGRESS_PORT}"

ROUTES_PORT = 8082
"""Where hosts are reached that a secret is added for: ROUTES_URL/HOST/PATH."""
ROUTES_URL = f"http://127.0.0.1:{ROUTES_PORT}"

PARENT_PORT = 8083
"""Where the agent asks its caller: an MCP server of ours."""
PARENT_URL = f"http://127.0.0.1:{PARENT_PORT}/mcp"

TOOLS_PORT = 8084
"""Where the agent finds servers outside of its container: TOOLS_URL/NAME, each an MCP server."""
TOOLS_URL = f"http://127.0.0.1:{TOOLS_PORT}"

SHM_BYTES = 64 * MIB
"""The usual size of /dev/shm, which counts beside scratch space."""

SCRATCH_SHARE = 0.75
"""Of the memory limit, for tmpfs and /dev/shm together."""

HOME = "/home/agent"
WORKSPACE = "/workspace"
AGENT_FILES = "/agent"
"""Where files of the agent's folder are, to read."""

RESERVED_TARGETS = (
    *("/", "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/opt", "/run", "/var"),
    *("/lib", "/lib32", "/lib64", "/libx32", "/root", "/boot"),
)
"""Where nothing may be mounted: the container's own system, and the warden's."""


def _check_target(path: str) -> str:
    pure = PurePosixPath(path)
    if path.startswith("//") or not pure.is_absolute() or ".." in pure.parts or str(pure) != path:
        raise ValueError("must be an absolute path in its shortest form, such as /workspace")
    for reserved in RESERVED_TARGETS:
        if path == reserved or (reserved != "/" and path.startswith(reserved + "/")):
            raise ValueError(f"{reserved} belongs to the container itself; mount elsewhere")
    return path


def leaves_room(scratch_bytes: int, memory_bytes: int) -> bool:
    """Whether processes have memory left when all scratch space is full.

    Scratch space is memory: when it could fill the limit, the kernel kills the writer instead of
    telling it that the disk is full, and perhaps the warden with it.
    """
    return scratch_bytes <= SCRATCH_SHARE * memory_bytes


class User(Frozen):
    """Who the agent is inside. Never root."""

    uid: Annotated[int, Field(ge=1, le=2**31)] = 1000
    gid: Annotated[int, Field(ge=1, le=2**31)] = 1000


class Bind(Frozen):
    """A directory of the engine's host, shown to the container."""

    kind: Literal["bind"] = "bind"
    source: str
    """Absolute; symbolic links are resolved and checked against the allowed roots."""
    target: str = WORKSPACE
    read_only: bool = True
    identity: str = ""
    """device:inode of the one that was looked at: nothing else may be mounted. "" if nobody did."""
    within: str = ""
    """A real path: where the source must be, once links are resolved; anywhere, if empty."""

    _target = field_validator("target")(_check_target)


class Cover(Frozen):
    """Nothing, mounted where something must not be reached: a socket, a FIFO, a device."""

    kind: Literal["cover"] = "cover"
    target: str
    over: str = ""
    """Which one it is: in the place of another, it shows again, so that container is not reused."""
    what: str = ""

    _target = field_validator("target")(_check_target)


class Volume(Frozen):
    """Storage that belongs to one kept container and goes with it."""

    kind: Literal["volume"] = "volume"
    target: str = HOME

    _target = field_validator("target")(_check_target)


Mount = Annotated[Bind | Cover | Volume, Field(discriminator="kind")]


class Tmpfs(Frozen):
    """Memory-backed scratch space; it counts against the memory limit."""

    target: str
    size_bytes: Annotated[int, Field(ge=MIB)] = 256 * MIB
    writable: bool = True
    """By the agent; otherwise by root alone, before the agent's programs run."""

    _target = field_validator("target")(_check_target)


class Limits(Frozen):
    """What a container may use up before the kernel says no."""

    memory_bytes: Annotated[int, Field(ge=6 * MIB)] = 2048 * MIB
    """Memory and swap together. Scratch space counts; claude alone wants some 300 MB."""
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    pids: Annotated[int, Field(ge=8, le=65536)] = 256
    open_files: Annotated[int, Field(ge=64, le=1048576)] = 4096
    shm_bytes: Annotated[int, Field(ge=MIB)] = SHM_BYTES
    """Shared memory between processes; it counts as memory as well."""


class ContainerSpec(Frozen):
    """All that a container can touch, apart from its wire. There is no network to configure."""

    image: Annotated[str, StringConstraints(min_length=1)]
    user: User = User()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = (Tmpfs(target="/tmp"), Tmpfs(target=HOME))  # noqa: S108 inside
    limits: Limits = Limits()
    oci_runtime: str | None = None
    """Another OCI runtime of the engine, such as "runsc"; None is the engine's default."""
    seccomp: str | None = None
    """The text of a seccomp profile (JSON); None is the engine's default one."""
    lease_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 60.0
    """The container ends itself when the orchestrator has been silent for so long."""
    lifetime_seconds: Annotated[float, Field(gt=0, le=30 * 86400)] = 3600.0
    """The container ends itself after so long, whatever happens."""

    @model_validator(mode="after")
    def _one_thing_per_target(self) -> Self:
        targets = [m.target for m in (*self.mounts, *self.tmpfs)]
        twice = sorted({t for t in targets if targets.count(t) > 1})
        if twice:
            raise ValueError(f"mounted twice: {', '.join(twice)}")
        return self

    @model_validator(mode="after")
    def _scratch_leaves_room(self) -> Self:
        scratch = sum(t.size_bytes for t in self.scratch) + self.limits.shm_bytes
        if not leaves_room(scratch, self.limits.memory_bytes):
            raise ValueError(
                f"tmpfs and /dev/shm add up to {scratch // MIB} MiB of a memory limit of "
                f"{self.limits.memory_bytes // MIB} MiB; leave at least a quarter for processes"
            )
        return self

    @property
    def scratch(self) -> tuple[Tmpfs, ...]:
        """What the agent can fill up."""
        return tuple(each for each in self.tmpfs if each.writable)

    @property
    def digest(self) -> str:
        """The same for equal specs: what makes two containers interchangeable."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]


class File(Frozen):
    """A file to place before a program starts, written as the agent's user."""

    path: str
    content: bytes
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0o600


class Launch(Frozen):
    """One program inside a container: nothing is inherited, all of it is written here."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    env: dict[str, str] = {}
    cwd: str = "/"
    files: tuple[File, ...] = ()
    opening: dict[str, object] = {}
    """What an agent CLI is told on its stdin, before anything else is said to it."""
    errand: bool = False
    """A program of the orchestrator's, whose answer is believed: the agent beside it can neither
    trace it nor reach its pipes. It needs a program that does not give up an effective uid that
    differs from its real one, as shells do."""
    root: bool = False
    """As root inside, which is not the agent's user: for an errand that writes what the agent is
    only to read."""


class Ending(Frozen):
    """How a container's wire ended, as far as it is known."""

    how: Literal["closed", "eof", "malformed", "silent"]
    detail: str = ""
    exit_code: int | None = None
    """Of PID 1, from the engine; None when the engine did not say."""
    out_of_memory: bool = False
    """The kernel killed something inside for want of memory, at some time."""
    last_words: str = ""
    """What PID 1 said on stderr: only ever a crash."""


class Failure(Frozen):
    """Whose failure it was that a container ended, and a sentence for people."""

    whose: Literal["agent", "memory", "machinery", "engine"]
    message: str
