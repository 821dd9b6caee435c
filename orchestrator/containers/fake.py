"""A runtime without an engine: the promises of runtime.py, with programs written in Python.

For tests of everything above this package. The wire, its windows and its errors are the real ones;
only the far end is a script, and nothing is isolated from anything.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from orchestrator.containers.labels import ContainerInfo, ContainerKind
from orchestrator.containers.mounts import MountPolicy
from orchestrator.containers.reaper import why_reap
from orchestrator.containers.runtime import Container, Fate, Reaped
from orchestrator.domain.container import ContainerSpec, Volume
from orchestrator.errors import ImageMissing, NameTaken, WireLost
from orchestrator.wire import warden as w
from orchestrator.wire.host import Wire
from orchestrator.wire.streams import Mux, Stream

FakeProgram = Callable[["FakeProcess"], Awaitable[int]]
"""Plays one process: reads stdin, writes stdout and stderr, returns the exit code."""

FAKE_STATE = "fake"


@dataclass
class FakeEngine:
    """What outlives an orchestrator: images, containers, and the volumes of kept ones."""

    images: frozenset[str]
    programs: Mapping[str, FakeProgram]
    containers: dict[str, ContainerInfo] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """By kept container: what lies on its volumes."""
    alive: set[str] = field(default_factory=set)
    """Owners that live."""


class FakeProcess:
    """What a program can see of its container."""

    def __init__(
        self, argv: list[str], env: dict[str, str], files: dict[str, bytes], warden: _FakeWarden
    ) -> None:
        self.argv = argv
        self.env = env
        self.files = files
        """The container's filesystem, shared by its processes: path -> content."""
        self._warden = warden

    stdin: Stream
    stdout: Stream
    stderr: Stream

    def connect(self, port: int) -> Stream:
        """Connect to 127.0.0.1:port, where a service of the host may listen."""
        return self._warden.connect(port)


class FakeRuntime:
    """Runtime (runtime.py) for tests. Several of them on one FakeEngine are several processes."""

    def __init__(
        self, engine: FakeEngine, policy: MountPolicy | None = None, owner: str = "owner"
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._owner = owner
        self._held: set[str] = set()
        self._names = itertools.count(1)
        engine.alive.add(owner)

    @asynccontextmanager
    async def open(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[Container]:
        spec = self._checked(spec)
        name = name or f"fake-{self._owner}-{next(self._names)}"
        if name in self._engine.containers:
            raise NameTaken(f"the name {name} is already in use")
        self._engine.containers[name] = self._info(name, spec, "disposable", labels)
        try:
            async with self._started(name, spec, {}) as container:
                yield container
        finally:
            del self._engine.containers[name]

    @asynccontextmanager
    async def keep(
        self, key: str, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Container]:
        spec = self._checked(spec)
        name = f"fake-kept-{key}"
        if name in self._held:
            raise NameTaken(f"{name} is in use by another run; try again when it has ended")
        self._held.add(name)
        info = self._info(name, spec, "kept", labels, key)
        self._engine.containers[name] = info
        volumes = [m.target + "/" for m in spec.mounts if isinstance(m, Volume)]
        files = dict(self._engine.files.get(name, {}))
        try:
            async with self._started(name, spec, files) as container:
                yield container
        finally:
            self._engine.files[name] = {
                path: content
                for path, content in files.items()
                if any(path.startswith(volume) for volume in volumes)
            }
            self._engine.containers[name] = info.model_copy(update={"status": "exited"})
            self._held.discard(name)

    async def forget(self, key: str) -> bool:
        name = f"fake-kept-{key}"
        if name in self._held:
            raise NameTaken(f"{name} is in use by another run; try again when it has ended")
        self._engine.files.pop(name, None)
        return self._engine.containers.pop(name, None) is not None

    async def seccomp_profile(self) -> str | None:
        return None

    async def list(self) -> tuple[ContainerInfo, ...]:
        return tuple(i for i in self._engine.containers.values() if i.state == FAKE_STATE)

    async def reap(self) -> tuple[Reaped, ...]:
        reaped = []
        for info in [*self._engine.containers.values()]:
            why = why_reap(
                info,
                now=time.time(),
                our_state=FAKE_STATE,
                owner_alive=info.kind == "disposable" and info.owner in self._engine.alive,
                held=info.name in self._held,
            )
            if why is not None:
                del self._engine.containers[info.name]
                reaped.append(Reaped(name=info.name, why=why))
        return tuple(reaped)

    def _checked(self, spec: ContainerSpec) -> ContainerSpec:
        if self._policy is not None:
            spec = self._policy.checked(spec).spec
        if spec.image not in self._engine.images:
            raise ImageMissing(f"No such image: {spec.image}")
        return spec

    def _info(
        self,
        name: str,
        spec: ContainerSpec,
        kind: ContainerKind,
        labels: Mapping[str, str] | None,
        key: str = "",
    ) -> ContainerInfo:
        return ContainerInfo(
            id=f"{name}-{spec.digest}",  # another spec, another container
            name=name,
            status="running",
            kind=kind,
            state=FAKE_STATE,
            owner=self._owner,
            key=key,
            created=time.time(),
            deadline=0.0 if kind == "kept" else time.time() + spec.lifetime_seconds,
            labels=dict(labels or {}),
        )

    @asynccontextmanager
    async def _started(
        self, name: str, spec: ContainerSpec, files: dict[str, bytes]
    ) -> AsyncIterator[Container]:
        fate = Fate()
        link = _MemoryLink()
        wire = Wire(link, spec.user, name)
        far = _FakeWarden(self._engine.programs, files, link.answer, link.hang_up)
        link.join(wire, far, fate)
        try:
            far.hello()
            await wire.hello()
            wire.lease(spec.lease_seconds, spec.lifetime_seconds)
            yield Container(name, spec, wire, fate)
        finally:
            await wire.close()
            await far.stop()


class _MemoryLink:
    """Carries bytes between the two ends, each in a later turn of the loop, as a socket would."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def join(self, wire: Wire, far: _FakeWarden, fate: Fate) -> None:
        self._wire, self._far, self._fate = wire, far, fate

    def write(self, data: bytes) -> None:
        self._loop.call_soon(self._far.feed, data)

    def answer(self, data: bytes) -> None:
        self._loop.call_soon(self._wire.feed, data)

    def unsent(self) -> int:
        return 0

    def close(self) -> None:
        self._end(w.EXIT_WIRE_CLOSED)

    def hang_up(self, code: int) -> None:
        self._end(code)
        self._loop.call_soon(self._wire.disconnected)

    def _end(self, code: int) -> None:
        if not self._fate.died.is_set():
            self._fate.exit_code = code
            self._fate.died.set()
            self._fate.gone.set()
            self._far.end()


class _FakeWarden:
    """The container's end of the wire, playing programs."""

    def __init__(
        self,
        programs: Mapping[str, FakeProgram],
        files: dict[str, bytes],
        write: Callable[[bytes], None],
        hang_up: Callable[[int], None],
    ) -> None:
        self._programs = programs
        self._files = files
        self._hang_up = hang_up
        self._mux = Mux(write, self._on_control, w.FROM_HOST)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._signals: dict[int, int] = {}
        self._ports: dict[int, bytes] = {}
        self._pids = itertools.count(2)
        self._ended = False
        self._reporting: asyncio.Task[None] | None = None

    def hello(self) -> None:
        self._mux.send(w.HELLO, 0, w.pack(b"%d" % w.VERSION, b"fake"))

    def feed(self, data: bytes) -> None:
        if self._ended:
            return
        try:
            self._mux.feed(data)
        except (w.Malformed, ValueError):
            self._hang_up(w.EXIT_MALFORMED)

    def connect(self, port: int) -> Stream:
        service = self._ports.get(port)
        if service is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on port {port}")
        stream = self._mux.open()
        self._mux.send(w.OPEN, stream.number, service)
        return stream

    def end(self) -> None:
        self._ended = True
        self._mux.lose("the container has ended")
        for task in self._tasks.values():
            task.cancel()

    async def stop(self) -> None:
        self.end()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _on_control(self, kind: int, number: int, payload: bytes) -> None:
        if kind == w.SPAWN:
            self._spawn(number, payload)
        elif kind == w.PING:
            self._mux.send(w.PONG, 0, payload)
        elif kind == w.SIGNAL and number:  # programs in Python cannot be stopped all at once
            self._signal(number, payload[0])
        elif kind == w.KILL:
            for running in list(self._tasks):
                self._signal(running, 9)
            self._reporting = asyncio.get_running_loop().create_task(self._report_killed())
        elif kind == w.LISTEN:
            port, service = w.unpack(payload)
            bound = int(port) or 40000 + len(self._ports)
            problem = b"Address already in use" if bound in self._ports else b""
            if not problem:
                self._ports[bound] = service
            self._mux.send(w.LISTENING, 0, w.pack(service, b"%d" % bound, problem))

    def _spawn(self, number: int, payload: bytes) -> None:
        errors, _uid, _gid, _cwd, packed_argv, packed_env, packed_files, _errand = w.unpack(payload)
        argv = [arg.decode() for arg in w.unpack(packed_argv)]
        stdin, stderr = self._mux.accept(number), self._mux.accept(int(errors))
        program = self._programs.get(argv[0])
        if program is None:
            message = f"cannot run {argv[0]}: not found on PATH"
            self._mux.send(w.FAULT, number, w.pack(b"%d" % errno.ENOENT, message.encode()))
            return
        placed = w.unpack(packed_files)
        for at in range(0, len(placed), 3):
            self._files[placed[at].decode()] = placed[at + 2]
        env = dict(item.decode().split("=", 1) for item in w.unpack(packed_env))
        process = FakeProcess(argv, env, self._files, self)
        process.stdin = process.stdout = stdin
        process.stderr = stderr
        self._mux.send(w.STARTED, number, next(self._pids).to_bytes(4, "big"))
        self._tasks[number] = asyncio.get_running_loop().create_task(
            self._play(number, program, process)
        )

    async def _play(self, number: int, program: FakeProgram, process: FakeProcess) -> None:
        try:
            code = await program(process)
        except asyncio.CancelledError:
            code = -self._signals.get(number, 9)
        except (OSError, WireLost):
            code = -13  # SIGPIPE
        for stream in (process.stdout, process.stderr):
            with suppress(OSError):
                stream.end()
        del self._tasks[number]
        self._mux.send(w.EXIT, number, code.to_bytes(4, "big", signed=True))

    def _signal(self, number: int, signal: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            self._signals[number] = signal
            task.cancel()

    async def _report_killed(self) -> None:
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._mux.send(w.KILLED, 0)
