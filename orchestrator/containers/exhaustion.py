"""Which limit was hit? A container is asked, in few words, and what it says becomes a sentence.

Limits are hit quietly: a fork fails inside some tool, a child is killed for its memory, a write
comes back short; the CLI tells a story of its own, or none. The kernel has counted.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from pydantic import ValidationError

from orchestrator.containers.runtime import Container
from orchestrator.domain import Frozen
from orchestrator.domain.container import HOME, MIB, Bind, ContainerSpec, Launch, Volume
from orchestrator.domain.result import Reason
from orchestrator.errors import OrchestratorError, SpawnFailed

log = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""For a container to answer; one that is in trouble may never."""

FULL_BYTES = MIB
"""With less than this left, a place counts as full."""

LOOK_EVERY_SECONDS = 3.0
"""Between two looks at what an agent's files take up."""

LOOK_SHARE = 0.05
"""The part of the time that may go into looking: a large tree is looked at less often."""

LIMIT_LOOK_SECONDS = 30.0
"""For one look."""

MISSED_LOOKS = 5
"""So many in a row that came to nothing, and the run is ended: an agent that can stop us from
looking could be hiding something."""

COUNTERS = (
    # Control groups, version 2 and version 1.
    *("/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/memory.events"),
    *("/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/memory/memory.oom_control"),
)

COUNTER_BYTES = 8192
"""What is read of them."""

COUNT = Path(__file__).with_name("disk_count.py").read_text()


LimitQuestion = Callable[[Container], Awaitable[dict[str, object]]]
"""Answers with fields of a Strain."""


class Strain(Frozen):
    """What a container has run short of, as far as could be learned."""

    oom_kills: int = 0
    """Processes that the kernel killed for want of memory."""
    pids_refused: int = 0
    """How often a process or thread was refused."""
    no_process: bool = False
    """Not one could be started, even to ask."""
    full: tuple[str, ...] = ()
    """Places that can be written to and have no room left."""

    def since(self, before: Strain) -> Strain:
        """The same without what was counted before: a kept container serves many runs."""
        return self.model_copy(
            update={
                "oom_kills": max(0, self.oom_kills - before.oom_kills),
                "pids_refused": max(0, self.pids_refused - before.pids_refused),
            }
        )


class Hit(Frozen):
    """A limit that was hit: which one, and a sentence for people."""

    reason: Reason
    message: str


class DiskUse(Frozen):
    """What disk_count.py found."""

    used: int
    hidden: int
    """Directories that could not be looked into."""
    free: int
    """What is left on the file system, for all who write to it."""


async def ask(container: Container) -> Strain:
    """What the container has run short of. Bounded, and raises nothing."""
    learned: dict[str, object] = {}

    async def learn(question: LimitQuestion) -> None:
        try:
            learned.update(await question(container))
        except SpawnFailed as exc:
            learned["no_process"] = exc.errno == errno.EAGAIN
        except OrchestratorError:
            pass  # the container has ended, which others tell

    with anyio.move_on_after(ASK_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(learn, _counters)
            tasks.start_soon(learn, _full_places)
    told = int(container.fate.out_of_memory.is_set())
    return Strain.model_validate({"oom_kills": told} | learned)


def hits(strain: Strain, spec: ContainerSpec) -> tuple[Hit, ...]:
    """The limits that were hit, the gravest first. Pure."""
    found = []
    limits = spec.limits
    if strain.oom_kills:
        memory = f"{limits.memory_bytes // MIB} MiB"
        message = f"memory ran out: of {memory}, which scratch space counts against, none was left "
        message += f"{_times(strain.oom_kills)}, and a process was killed"
        found.append(Hit(reason="oom_killed", message=f"{message}; raise resources.memory_mb"))
    if strain.no_process or strain.pids_refused:
        message = f"the limit of {limits.pids} processes and threads was reached"
        message += f" {_times(strain.pids_refused)}" if strain.pids_refused else ""
        message += ", and not one more can be started" if strain.no_process else ""
        found.append(Hit(reason="pids_exhausted", message=f"{message}; raise resources.pids"))
    if strain.full:
        scratch = {t.target: t.size_bytes for t in spec.scratch}
        places = ", ".join(
            f"{place} ({scratch[place] // MIB} MiB)" if place in scratch else place
            for place in strain.full
        )
        advice = (
            "raise resources.scratch_mb, or write less"
            if scratch.keys() & set(strain.full)
            else "make room on the engine's disk"
        )
        found.append(Hit(reason="disk_full", message=f"no room is left in {places}; {advice}"))
    return tuple(found)


class DiskWatch:
    """Looks at what a container's volumes take up: a copied workspace, the files of a session."""

    def __init__(self, container: Container, limit_bytes: int) -> None:
        self._container = container
        self._limit = limit_bytes
        mounts = container.spec.mounts
        self._places = tuple(mount.target for mount in mounts if isinstance(mount, Volume))
        self._free_at_first: int | None = None
        self._missed = 0

    async def until_full(self, *, at_once: bool = True) -> Hit:
        """Look now and then; returns when it is too much."""
        if not self._places:
            await anyio.sleep_forever()
        took = 0.0
        while True:
            if at_once:
                began = anyio.current_time()
                hit = await self.look()
                if hit is not None:
                    return hit
                took = anyio.current_time() - began
            at_once = True
            await anyio.sleep(max(LOOK_EVERY_SECONDS, took / LOOK_SHARE))

    async def look(self) -> Hit | None:
        """One look: what is to be said if it is too much, or was not let be seen too often."""
        use = await _disk_use(self._container, self._limit, self._places)
        if self._container.wire.ended is not None:
            return None  # others tell, and end this
        if use is None:
            self._missed += 1
            return await self._not_counted() if self._missed == MISSED_LOOKS else None
        self._missed = 0
        if self._free_at_first is None:
            self._free_at_first = use.free
        # What is hidden from us is still missing on the disk.
        used = max(use.used, self._free_at_first - use.free) if use.hidden else use.used
        return self._too_much(used) if used > self._limit else None

    async def _not_counted(self) -> Hit:
        grave = hits(await ask(self._container), self._container.spec)
        if grave:
            return grave[0]
        return Hit(
            reason="disk_full",
            message=f"what {self._shown} takes up could not be counted {MISSED_LOOKS} times in a "
            "row, so the run was ended; it may hold too many files, or something inside may have "
            "prevented it",
        )

    def _too_much(self, used: int) -> Hit:
        remove = ", or remove the session" if HOME in self._places else ""
        return Hit(
            reason="disk_full",
            message=f"the agent's {self._shown} takes {used // MIB} MiB of at most "
            f"{self._limit // MIB} MiB; raise resources.disk_mb, or ask for less{remove}",
        )

    @property
    def _shown(self) -> str:
        return " and ".join(self._places)


async def _counters(container: Container) -> dict[str, object]:
    argv = ("grep", "-sH", "-m", "20", ".", *COUNTERS)
    done = await container.run(Launch(argv=argv, errand=True))
    if done.code < 0:
        return {}  # it was killed: half an answer is none
    said = done.stdout[:COUNTER_BYTES].decode(errors="replace")
    kills = re.findall(r"memory\.(?:events|oom_control):oom_kill (\d{1,18})$", said, re.MULTILINE)
    refused = re.findall(r"pids\.events:max (\d{1,18})$", said, re.MULTILINE)
    told = int(container.fate.out_of_memory.is_set())
    return {
        "oom_kills": max(told, *map(int, kills or "0")),
        "pids_refused": max(map(int, refused or "0")),
    }


async def _full_places(container: Container) -> dict[str, object]:
    spec = container.spec
    writable = [
        mount.target
        for mount in spec.mounts
        if isinstance(mount, Volume) or (isinstance(mount, Bind) and not mount.read_only)
    ]
    places = (*(t.target for t in spec.scratch), *writable)
    argv = ("stat", "-f", "-c", "%a %S %c %d %n", *places)
    done = await container.run(Launch(argv=argv, errand=True))
    if done.code < 0:
        return {}
    rows = done.stdout.decode(errors="replace").splitlines()
    full = {row.split(maxsplit=4)[-1] for row in rows if _is_full(row)}
    return {"full": tuple(place for place in places if place in full)}


def _is_full(row: str) -> bool:
    """A row of `stat -f`: free blocks, their size, inodes, free inodes, path."""
    numbers = [int(word) for word in row.split(maxsplit=4)[:4] if word.isdigit()]
    if len(numbers) < 4:
        return False
    free_blocks, block, inodes, free_inodes = numbers
    return free_blocks * block < FULL_BYTES or (inodes > 0 and free_inodes == 0)


async def _disk_use(
    container: Container, limit_bytes: int, places: tuple[str, ...]
) -> DiskUse | None:
    """What is used and free; None if that could not be learned."""
    argv = ("python3", "-I", "-S", "-c", COUNT, str(limit_bytes), *places)
    try:
        with anyio.fail_after(LIMIT_LOOK_SECONDS):
            done = await container.run(Launch(argv=argv, errand=True))
        return DiskUse.model_validate_json(done.stdout) if done.code == 0 else None
    except (OrchestratorError, TimeoutError, ValidationError) as exc:
        log.debug("%s: no look at %s: %s", container.name, ", ".join(places), exc)
        return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
