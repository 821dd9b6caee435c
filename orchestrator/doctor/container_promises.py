"""What we promise of a container, one entry each: what we say, how to find out, what to do if not.

Containers to look at are made just as those of a run are. What runs inside is probe.py.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path

import anyio

from orchestrator.containers import exhaustion
from orchestrator.containers.docker.engine import Engine
from orchestrator.containers.runtime import Container, Runtime
from orchestrator.doctor.promise import Finding, Promise, ask, launch, tally
from orchestrator.domain.container import MIB, ContainerSpec
from orchestrator.errors import WireLost

VANISH_SECONDS = 10.0
"""From a wire's end until its container is gone: 0.1 s, more on a machine under load."""

OOM_EVENT_SECONDS = 10.0
"""For the engine to tell that something was killed for want of memory."""

POLL_SECONDS = 0.05
"""Between two looks at something that no event announces."""

HOG_LIMIT_BYTES = 64 * MIB
"""The memory of the container that is filled: enough for two Pythons, and quickly used up."""

LABEL = "orchestrator.doctor"
"""What marks the probe containers of one examination, so that each is accounted for."""

KILLED = -9
CAPABILITY_SETS = ("CapInh", "CapPrm", "CapEff", "CapAmb")
SECCOMP_FILTER = "2"
CALL_REFUSED = ("EPERM", "ENOSYS", "EAFNOSUPPORT")
"""What is said of a call that is filtered, or that the kernel does not know."""


class Probes:
    """Makes the containers of one examination; the first one is kept for most of it."""

    def __init__(
        self,
        runtime: Runtime,
        spec: ContainerSpec,
        stack: AsyncExitStack,
        workspace: Path | None = None,
    ) -> None:
        self.runtime = runtime
        self.spec = spec
        self.workspace = workspace
        """A directory that may be shown to a container; nothing is written there."""
        self.stack = stack
        """What keeps the first container, until it is closed."""
        self.container: Container | None = None
        self.token = secrets.token_hex(8)

    def open(self, spec: ContainerSpec | None = None) -> AbstractAsyncContextManager[Container]:
        return self.runtime.open(spec or self.spec, labels={LABEL: self.token})


# The engine and the warden


async def _engine(engine: Engine) -> Finding:
    about = await engine.about()
    return True, f"version {about.version}, API {about.api_version}, at {about.address}"


async def _hello(probes: Probes) -> Finding:
    container = await probes.stack.enter_async_context(probes.open())
    detail = f"said hello, and answers a ping in {1000 * await container.wire.ping():.1f} ms"
    probes.container = container
    return True, detail


# What can be seen from inside


async def _network(container: Container) -> Finding:
    seen = await ask(container, "network")
    outcomes: dict[str, str] = seen["outcomes"]
    reached = [name for name, how in outcomes.items() if how in ("", "no answer")]
    detail = f"interfaces: {', '.join(seen['interfaces']) or 'none'}"
    if reached:
        return False, f"{detail}; on the way to {', '.join(reached)}"
    return set(seen["interfaces"]) <= {"lo"}, f"{detail}; {tally(outcomes)}"


async def _dns(container: Container) -> Finding:
    seen = await ask(container, "dns")
    outside, own = seen["outside"], seen["localhost"]
    if outside["addresses"]:
        return False, f"{seen['name']} is {', '.join(outside['addresses'])}"
    if not {"127.0.0.1"} <= set(own["addresses"]) <= {"127.0.0.1", "::1"}:
        return False, f"localhost is {', '.join(own['addresses']) or own['error']}"
    return True, f"{seen['name']}: {outside['error']}"


async def _root_filesystem(container: Container) -> Finding:
    spec = container.spec
    ours = [t.target for t in spec.tmpfs] + [m.target for m in spec.mounts]
    seen = await ask(container, "root_filesystem", *ours)
    if seen["writable"]:
        return False, f"can be written: {', '.join(seen['writable'])}"
    return seen["read_only"], f"/ is mounted {'read-only' if seen['read_only'] else 'writable'}"


async def _scratch(container: Container) -> Finding:
    spec = container.spec
    sizes = {t.target: t.size_bytes for t in spec.tmpfs} | {"/dev/shm": spec.limits.shm_bytes}  # noqa: S108
    arguments = [word for target, size in sizes.items() for word in (target, str(size))]
    seen = await ask(container, "scratch", *arguments)
    ok = all(
        0 < seen[target]["written"] <= size and seen[target]["refused"] == "ENOSPC"
        for target, size in sizes.items()
    )
    took = (
        f"{target} {seen[target]['written'] // MIB} of {size // MIB} MiB"
        f" then {seen[target]['refused'] or 'no end'}"
        for target, size in sizes.items()
    )
    return ok, ", ".join(took)


async def _capabilities(container: Container) -> Finding:
    seen = await ask(container, "status")
    sets = {name: int(seen[name][0], 16) for name in CAPABILITY_SETS}
    return not any(sets.values()), ", ".join(f"{name} {bits:#x}" for name, bits in sets.items())


async def _no_new_privileges(container: Container) -> Finding:
    seen = await ask(container, "status")
    return seen["NoNewPrivs"] == ["1"], f"NoNewPrivs {' '.join(seen['NoNewPrivs'])}"


async def _seccomp(container: Container) -> Finding:
    mode: str = (await ask(container, "status"))["Seccomp"][0]
    outcomes: dict[str, str] = await ask(container, "seccomp")
    allowed = [name for name, how in outcomes.items() if not how]
    if allowed:
        return False, f"Seccomp {mode}; allowed: {', '.join(allowed)}"
    return mode == SECCOMP_FILTER, f"Seccomp {mode}; {tally(outcomes)}"


async def _system_calls(container: Container) -> Finding:
    outcomes: dict[str, str] = await ask(container, "system_calls")
    allowed = [name for name, how in outcomes.items() if how not in CALL_REFUSED]
    if allowed:
        whose = "the engine's own filter" if container.spec.seccomp is None else "our filter"
        return False, f"{whose} allows {', '.join(allowed)}"
    return True, tally(outcomes)


async def _user(container: Container) -> Finding:
    user = container.spec.user
    status = await ask(container, "status")
    outcomes: dict[str, str] = await ask(container, "become_root")
    became = [name for name, how in outcomes.items() if not how]
    detail = f"uid {status['Uid'][0]}, gid {status['Gid'][0]}, groups {status['Groups'] or 'none'}"
    if became:
        return False, f"{detail}; allowed: {', '.join(became)}"
    as_promised = (
        set(status["Uid"]) == {str(user.uid)}
        and set(status["Gid"]) == {str(user.gid)}
        and set(status["Groups"]) <= {str(user.gid)}
    )
    return as_promised, f"{detail}; {tally(outcomes)}"


async def _setuid(container: Container) -> Finding:
    found: list[str] = (await ask(container, "special_files"))["setuid"]
    return not found, ", ".join(found) or "no setuid or setgid file"


async def _sockets(container: Container) -> Finding:
    found: list[str] = (await ask(container, "special_files"))["sockets"]
    return not found, ", ".join(found) or "no socket in the filesystem"


async def _processes(container: Container) -> Finding:
    seen = await ask(container, "processes")
    others = set(seen["pids"]) - {1, seen["own"]}
    return not others, f"sees our PID 1, itself and {len(others) or 'no'} others"


async def _open_files(container: Container) -> Finding:
    limit = container.spec.limits.open_files
    seen = await ask(container, "open_files", str(limit))
    detail = f"opened {seen['opened']} of {limit}, then {seen['refused'] or 'no end'}"
    if not seen["raise"]:
        return False, f"{detail}; raised its own limit"
    return seen["opened"] <= limit and seen["refused"] == "EMFILE", detail


async def _cpus(container: Container) -> Finding:
    seen = await ask(container, "cpus")
    if seen["cpus"] is None:
        return False, f"no limit to be seen; the machine has {seen['available']}"
    allowed = min(container.spec.limits.cpus, seen["available"])
    return seen["cpus"] <= allowed * 1.01, f"{seen['cpus']:g} of {seen['available']} processors"


async def _pids(container: Container) -> Finding:
    limit = container.spec.limits.pids
    async with container.spawn(launch("forks", str(limit))) as process:
        seen = json.loads(await process.stdout.read())
        detail = f"{seen['made']} forks of {limit}, then {seen['refused'] or 'no end'}"
        await container.kill_all()
        if await process.wait() != KILLED:
            return False, f"{detail}; not killed with the rest"
    left = set((await ask(container, "processes"))["pids"])
    if len(left) > 2:
        return False, f"{detail}; {len(left) - 2} survived being killed"
    return seen["made"] < limit and seen["refused"] == "EAGAIN", f"{detail}; all killed"


async def _warden(container: Container) -> Finding:
    outcomes: dict[str, str] = (await ask(container, "attack", "1"))["outcomes"]
    worked = [what for what, how in outcomes.items() if not how]
    if worked:
        return False, f"could {', '.join(worked)}"
    await container.wire.ping()
    return True, f"{tally(outcomes)}; it still answers"


# What takes a container of its own


async def _memory(probes: Probes) -> Finding:
    async with probes.open(_small(probes.spec)) as container:
        limit = f"{HOG_LIMIT_BYTES // MIB} MiB"
        try:
            done = await container.run(launch("hog", str(HOG_LIMIT_BYTES)))
        except WireLost:
            failure = await container.failure()
            whose = failure.whose if failure else "nobody"
            return whose == "memory", f"{limit}: the container was ended, for want of {whose}"
        if done.code != KILLED:
            return False, f"{limit}: took twice as much (exit code {done.code})"
        if not (await exhaustion.ask(container)).oom_kills:  # as the kernel counts inside
            with anyio.move_on_after(OOM_EVENT_SECONDS):
                await container.fate.out_of_memory.wait()
            if not container.fate.out_of_memory.is_set():
                return False, f"{limit}: killed, but neither the engine nor the kernel tells why"
        await container.wire.ping()
        return True, f"{limit}: killed, and reported; our PID 1 still answers"


async def _cut(probes: Probes) -> Finding:
    async with probes.open() as container:
        await container.wire.close()
        return await _vanishing(probes, container)


async def _cut_stubborn(probes: Probes) -> Finding:
    async with probes.open() as container, container.spawn(launch("stubborn")) as process:
        await process.stdout.read()
        await container.wire.close()
        return await _vanishing(probes, container)


async def _nothing_left(probes: Probes) -> Finding:
    found = [i.name for i in await probes.runtime.list() if i.labels.get(LABEL) == probes.token]
    return not found, ", ".join(found) or "no probe container"


ENGINE: Promise[Engine] = Promise(
    "engine",
    "the engine answers",
    _engine,
    "is it running? `docker version` tells",
)

HELLO_PROMISE: Promise[Probes] = Promise(
    "hello",
    "a container starts, and our program in it answers",
    _hello,
    "make the image again: `orchestrator images build`; unset ORCHESTRATOR_AGENT_IMAGE if it is "
    "not built on ours",
)

_SANDBOX = "do not run agents here: the engine or its OCI runtime ignores"

INSIDE_PROMISES: tuple[Promise[Container], ...] = (
    Promise(
        "network",
        "there is no network but loopback",
        _network,
        f"{_SANDBOX} network mode none; compare with `docker run --network none`",
    ),
    Promise(
        "dns",
        "no name can be resolved but localhost",
        _dns,
        f"{_SANDBOX} network mode none, or the image is not built on ours",
    ),
    Promise(
        "root filesystem",
        "nothing can be written but scratch space",
        _root_filesystem,
        f"{_SANDBOX} a read-only root filesystem; compare with `docker run --read-only`",
    ),
    Promise(
        "scratch space",
        "scratch space can be written, up to its size",
        _scratch,
        "the engine ignores the size or mode of a tmpfs: use Docker 20.10 or Podman 4.3, or later",
    ),
    Promise(
        "capabilities",
        "the agent has no capability",
        _capabilities,
        f"{_SANDBOX} dropped capabilities, or the image is of another version: build it again",
    ),
    Promise(
        "privileges",
        "no program can gain privileges",
        _no_new_privileges,
        f"{_SANDBOX} no-new-privileges",
    ),
    Promise(
        "seccomp",
        "system calls are filtered",
        _seccomp,
        "let the engine filter: take `seccomp-profile: unconfined` out of its configuration, and "
        "run a kernel with CONFIG_SECCOMP_FILTER (`docker info` lists seccomp)",
    ),
    Promise(
        "system calls",
        "only system calls that agents need can be made",
        _system_calls,
        "the engine does not take our seccomp profile, so that its own is used, which allows more: "
        "use Docker 20.10.10 or later, or run only agents that you trust (the log says why)",
    ),
    Promise(
        "user",
        "the agent is not root, and cannot become it",
        _user,
        "the image is of another version: build it again with `orchestrator images build`",
    ),
    Promise(
        "setuid files",
        "no program changes its user",
        _setuid,
        "take the bits away in the image: `find / -xdev -perm /6000 -exec chmod a-s {} +`",
    ),
    Promise(
        "sockets",
        "no socket is inside, of the engine or of another program",
        _sockets,
        "remove it from the image; nothing of the host belongs into an agent's container",
    ),
    Promise(
        "processes",
        "the host's processes are invisible",
        _processes,
        f"{_SANDBOX} process namespaces",
    ),
    Promise(
        "open files",
        "a process can open so many files and no more",
        _open_files,
        "the engine ignores ulimits: use Docker 20.10 or Podman 4.3, or later",
    ),
    Promise(
        "processors",
        "a container gets its share of the processors",
        _cpus,
        "give the engine the cpu control group; a rootless one needs `Delegate=cpu cpuset io "
        "memory pids` in its user service",
    ),
    Promise(
        "process count",
        "a fork bomb stops at the limit, and all of it can be killed",
        _pids,
        "give the engine the pids control group; a rootless one needs `Delegate=pids`",
    ),
    Promise(
        "PID 1",
        "the agent can neither signal, trace nor read our PID 1",
        _warden,
        "the image is of another version, or lets our program run as the agent's user: build it "
        "again with `orchestrator images build`",
    ),
)

ENDINGS: tuple[Promise[Probes], ...] = (
    Promise(
        "memory",
        "who takes too much memory is killed, and it is said why",
        _memory,
        "give the engine the memory control group, with swap accounting (`docker info` warns when "
        "it is missing: boot with `cgroup_enable=memory swapaccount=1`)",
    ),
    Promise(
        "orchestrator gone",
        "a container goes when the connection to it is cut",
        _cut,
        "use an engine that honours StdinOnce and AutoRemove; until then a crash leaves "
        "containers, which the next start of an orchestrator removes",
    ),
    Promise(
        "gone, and defied",
        "so does one whose processes ignore signals",
        _cut_stubborn,
        "use an engine that honours StdinOnce and AutoRemove, on a kernel with pid namespaces",
    ),
    Promise(
        "nothing left",
        "this examination leaves no container",
        _nothing_left,
        "remove them with `docker rm --force`, and look into the engine's log for why they stayed",
    ),
)


def _small(spec: ContainerSpec) -> ContainerSpec:
    """The same container with little memory; scratch space shrinks with it."""
    limits = {"memory_bytes": HOG_LIMIT_BYTES, "shm_bytes": MIB}
    return spec.model_copy(
        update={
            "limits": spec.limits.model_copy(update=limits),
            "tmpfs": tuple(t.model_copy(update={"size_bytes": MIB}) for t in spec.tmpfs),
        }
    )


async def _vanishing(probes: Probes, container: Container) -> Finding:
    began = time.monotonic()
    with anyio.move_on_after(VANISH_SECONDS):
        while await _listed(probes, container.name):  # noqa: ASYNC110 what counts is the list
            await anyio.sleep(POLL_SECONDS)
        return True, f"gone after {time.monotonic() - began:.1f} s"
    return False, f"still there after {VANISH_SECONDS:g} s"


async def _listed(probes: Probes, name: str) -> bool:
    return any(info.name == name for info in await probes.runtime.list())
