"""What runs in a container while its holder dies: one Launch for each way of being in the way."""

from __future__ import annotations

from orchestrator.domain import Frozen
from orchestrator.domain.container import HOME, MIB, ContainerSpec, Launch, Limits, Tmpfs

SCRATCH_BYTES = 16 * MIB
"""Small, so that it is full at once."""


class Mischief(Frozen):
    """Something that a run may be in the middle of."""

    name: str
    launch: Launch
    read: bool = False
    """Whether the holder reads what it writes."""


def _shell(name: str, script: str) -> Mischief:
    return Mischief(name=name, launch=Launch(argv=("sh", "-c", script)))


# Never ends by itself. Where there are no pids left, fork fails and is tried again.
_FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

KINDS = (
    _shell("ignores signals", "trap '' TERM INT HUP; while :; do sleep 1; done"),
    _shell(
        "setsid and double fork",
        "setsid -f sh -c 'trap \"\" TERM HUP; setsid -f sleep 1000; sleep 1000'; exec sleep 1000",
    ),
    Mischief(name="floods, unread", launch=Launch(argv=("yes",))),
    Mischief(name="floods, read", launch=Launch(argv=("yes",)), read=True),
    Mischief(name="fork bomb", launch=Launch(argv=("python3", "-I", "-S", "-c", _FORK_BOMB))),
    _shell("busy", "while :; do :; done"),
    _shell("fills its scratch space", "while :; do cat /dev/zero > /tmp/full; done 2>/dev/null"),
)


def mischief_spec(image: str, lease_seconds: float) -> ContainerSpec:
    """An ordinary container with little room."""
    return ContainerSpec(
        image=image,
        tmpfs=(
            Tmpfs(target="/tmp", size_bytes=SCRATCH_BYTES),
            Tmpfs(target=HOME, size_bytes=SCRATCH_BYTES),
        ),
        limits=Limits(memory_bytes=256 * MIB, pids=64, shm_bytes=MIB),
        lease_seconds=lease_seconds,
    )
