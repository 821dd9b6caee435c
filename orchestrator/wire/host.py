"""The host end of a wire: processes, relays and pings, over whatever carries the bytes."""

from __future__ import annotations

import asyncio
import enum
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import anyio

from orchestrator.domain import Frozen
from orchestrator.domain.container import Launch, User
from orchestrator.errors import SpawnFailed, WireLost
from orchestrator.wire import warden as w
from orchestrator.wire.streams import Mux, Stream, pass_through

log = logging.getLogger(__name__)

PROCESS_REAP_SECONDS = 10.0
"""After SIGKILL, until the warden reports the exit: only a stuck kernel takes longer."""

DRAIN_SECONDS = 2.0
"""After a process has exited, for more of its output, or its end: a child that it left behind may
hold it open."""

OUTPUT_LIMIT = 16 * 1024 * 1024
"""What `Process.communicate` keeps of either output."""

RELAY_LINGER_SECONDS = 5.0
"""After a service has answered, for the client inside to read it and close the connection."""

SILENCES = 3
"""Leases without a word from the warden before we take it for dead."""

PINGS_PER_LEASE = 4

MAX_UNSENT = 32 * 1024 * 1024
"""Bytes that may wait for a container to read them. Stream data waits in its writer, and our
requests take less: only a container that keeps asking and does not read the answers gets here."""

RelayService = Callable[[Stream], Awaitable[None]]
"""Answers one connection that a process inside made to a listener."""


class Link(Protocol):
    """What carries a wire's bytes. No call blocks."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def unsent(self) -> int:
        """How many bytes wait for the other end to read."""
        ...


class WireEnd(enum.Enum):
    """How a wire ended."""

    CLOSED = "closed by us"
    EOF = "ended by the container or its engine"
    MALFORMED = "ended by us, since the container did not keep to the protocol"
    SILENT = "ended by us, since the container did not answer pings"


class Completed(Frozen):
    """A process that has exited, with what it wrote."""

    code: int
    """The exit code; -N when signal N ended it."""
    stdout: bytes
    stderr: bytes


class Process:
    """A process inside. `stdin` and `stdout` are the two directions of one stream."""

    def __init__(self, wire: Wire, launch: Launch, stream: Stream, stderr: Stream) -> None:
        self.launch = launch
        self.stdin = self.stdout = stream
        self.stderr = stderr
        self.pid = 0
        self.code: int | None = None
        self._wire = wire
        self._fault: SpawnFailed | None = None
        self._started = asyncio.Event()
        self._exited = asyncio.Event()
        self._draining: anyio.CancelScope | None = None

    async def wait(self) -> int:
        """The exit code, -N for signal N; WireLost when the container ended first."""
        await self._exited.wait()
        if self.code is None:
            raise self._wire.lost_error()
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal to the process and the group that it leads."""
        if self.code is None:
            self._wire.send(w.SIGNAL, self.stdin.number, bytes([number]))

    async def communicate(self, data: bytes = b"") -> Completed:
        """Write all of `data`, read all that comes, wait for the exit."""
        kept: dict[str, bytes] = {}

        async def write() -> None:
            try:
                await self.stdin.write(data)
                self.stdin.end()
            except (BrokenPipeError, ConnectionResetError):
                pass  # it exited without reading all of it

        async def keep(name: str, stream: Stream) -> None:
            parts, size = [], 0
            try:
                while chunk := await stream.read():
                    if self.code is not None:
                        self._drain()
                    if size < OUTPUT_LIMIT:
                        parts.append(chunk[: OUTPUT_LIMIT - size])
                        size += len(chunk)
            except ConnectionResetError:
                pass  # our warden never resets an output; what came before is kept
            finally:
                kept[name] = b"".join(parts)

        lost = False
        try:
            async with anyio.create_task_group() as tasks:
                # A deadline and not a task: a short process pays for every task that is made.
                self._draining = tasks.cancel_scope
                if self.code is not None:
                    self._drain()
                tasks.start_soon(keep, "stderr", self.stderr)
                if data:
                    tasks.start_soon(write)
                else:
                    self.stdin.end()
                await keep("stdout", self.stdout)
        except* WireLost:
            lost = True  # raised inside `except*`, it would reach the caller in an ExceptionGroup
        if lost:
            raise self._wire.lost_error()
        return Completed(
            code=await self.wait(), stdout=kept.get("stdout", b""), stderr=kept.get("stderr", b"")
        )

    # Called by the wire

    def _on_started(self, pid: int) -> None:
        self.pid = pid
        self._started.set()

    def _on_fault(self, fault: SpawnFailed) -> None:
        self._fault = fault
        self._started.set()
        self._exited.set()
        for stream in (self.stdout, self.stderr):
            stream._break()  # the warden has dropped them already

    def _on_exit(self, code: int) -> None:
        self.code = code
        self._exited.set()
        self._drain()
        self.stdin.stop_writing()
        self.stderr.stop_writing()

    def _on_lost(self) -> None:
        self._started.set()
        self._exited.set()

    def _drain(self) -> None:
        if self._draining is not None:
            self._draining.deadline = self._wire.time() + DRAIN_SECONDS


class Wire:
    """One container's wire. It reads by callback and pings by timer: no thread and no task waits.

    A wire that ended stays ended. Every task that waits on it gets WireLost, which says why.
    """

    def __init__(self, link: Link, user: User, name: str = "container") -> None:
        self.name = name
        self.ended: WireEnd | None = None
        self.detail = ""
        self.last_words = b""
        """The tail of what PID 1 said on stderr: only ever a crash."""
        self._link = link
        self._user = user
        self._mux = Mux(link.write, self._on_control, w.FROM_WARDEN)
        self._loop = asyncio.get_running_loop()
        self._hello = asyncio.Event()
        self._over = asyncio.Event()
        self._processes: dict[int, Process] = {}
        self._services: dict[str, RelayService] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = 0
        """Connections that wait for their turn to be served."""
        self._pings: dict[bytes, asyncio.Event | None] = {}
        self._ping_count = 0
        self._kills: list[asyncio.Event] = []
        self._listening: dict[str, tuple[asyncio.Event, list[bytes]]] = {}
        self._lease_seconds = w.FIRST_LEASE_SECONDS
        self._heard = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # What a container can be asked for

    async def hello(self) -> None:
        """Wait until the warden has said hello in our version of the protocol."""
        await self._hello.wait()
        if self.ended is not None:
            raise self.lost_error()

    def lease(self, lease_seconds: float, lifetime_seconds: float) -> None:
        """Let the container live so long without a word from us, and so long at all from now."""
        self._lease_seconds = lease_seconds
        milliseconds = (int(lease_seconds * 1000), int(lifetime_seconds * 1000))
        self.send(w.LEASE, 0, b"".join(ms.to_bytes(4, "big") for ms in milliseconds))
        self._schedule_ping()

    @asynccontextmanager
    async def spawn(self, launch: Launch) -> AsyncIterator[Process]:
        """Start a process, after its files; leaving the block kills it and the group it leads."""
        process = self._start(launch)
        try:
            await process._started.wait()
            if process._fault is not None:
                raise process._fault
            if self.ended is not None:
                raise self.lost_error()
            yield process
        finally:
            if process.code is None and self.ended is None and process._fault is None:
                process.signal(signal.SIGKILL)
                with anyio.move_on_after(PROCESS_REAP_SECONDS, shield=True):
                    await process._exited.wait()
            process.stdout.reset()
            process.stderr.reset()

    async def run(self, launch: Launch, data: bytes = b"") -> Completed:
        """Start a process, feed it, and wait for its end."""
        async with self.spawn(launch) as process:
            return await process.communicate(data)

    def stop_all(self) -> None:
        """Stop every process in the container, escapees included; those started later run."""
        self.send(w.SIGNAL, 0, bytes([signal.SIGSTOP]))

    def continue_all(self) -> None:
        """Let every process that was stopped go on."""
        self.send(w.SIGNAL, 0, bytes([signal.SIGCONT]))

    async def kill_all(self) -> None:
        """Kill every process in the container, escapees included; the container goes on."""
        done = asyncio.Event()
        self._kills.append(done)
        self.send(w.KILL, 0)
        await self._settled(done)

    async def listen(self, port: int, name: str, service: RelayService) -> int:
        """Relay connections to 127.0.0.1:port inside to a service here; 0 picks a free port."""
        if name in self._services:
            raise ValueError(f"a service called {name!r} listens already")
        done, answer = asyncio.Event(), list[bytes]()
        self._services[name] = service
        self._listening[name] = (done, answer)
        self.send(w.LISTEN, 0, w.pack(b"%d" % port, name.encode()))
        try:
            await self._settled(done)
        except BaseException:
            self._services.pop(name, None)
            raise
        bound, problem = int(answer[0]), answer[1]
        if problem:
            del self._services[name]
            raise OSError(f"port {port} in {self.name}: {problem.decode(errors='replace')}")
        return bound

    async def ping(self) -> float:
        """Seconds for a word to the warden and back."""
        done = asyncio.Event()
        began = time.perf_counter()
        self._send_ping(done)
        await self._settled(done)
        return time.perf_counter() - began

    async def wait_ended(self) -> WireEnd:
        await self._over.wait()
        assert self.ended is not None  # noqa: S101 set before the event
        return self.ended

    def lost_error(self) -> WireLost:
        return WireLost(self._mux.lost or f"{self.name}: the connection to the container ended")

    async def close(self) -> None:
        """Cut the wire, which ends the container, and let go of everything that waits on it."""
        self._end(WireEnd.CLOSED)
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self._mux.send(kind, stream, payload)

    def time(self) -> float:
        """The clock that deadlines on this wire are set by."""
        return self._loop.time()

    # What the link reports

    def feed(self, data: bytes | memoryview) -> None:
        """Bytes from the container, which is not trusted: anything malformed ends the wire."""
        if self.ended is not None:
            return
        self._heard = self._loop.time()
        try:
            self._mux.feed(data)
        except w.Malformed as exc:
            self._end(WireEnd.MALFORMED, str(exc))
        except ValueError as exc:  # a number or a text that is none
            self._end(WireEnd.MALFORMED, f"{type(exc).__name__} in what it sent")
        if self._link.unsent() > MAX_UNSENT:
            self._end(WireEnd.MALFORMED, "it asks, and does not read the answers")

    def feed_stderr(self, data: bytes) -> None:
        self.last_words = (self.last_words + data)[-4096:]

    def disconnected(self) -> None:
        self._end(WireEnd.EOF)

    def hold(self) -> None:
        self._mux.hold()

    def release(self) -> None:
        self._mux.release()

    # Frames

    def _on_control(self, kind: int, number: int, payload: bytes) -> None:
        if kind == w.PONG:
            if payload not in self._pings:
                raise w.Malformed("an answer to no ping")
            pong = self._pings.pop(payload)
            if pong is not None:
                pong.set()
        elif kind == w.OPEN:
            self._on_open(number, payload)
        elif kind in (w.STARTED, w.EXIT, w.FAULT):
            self._on_process(kind, number, payload)
        elif kind == w.HELLO:
            version = w.unpack(payload)[:1]
            if self._hello.is_set() or version != [b"%d" % w.VERSION]:
                shown = b"".join(version).decode(errors="replace")[:20]
                raise w.Malformed(
                    f"our program in the image speaks version {shown!r}, we speak {w.VERSION}; "
                    "rebuild it with `orchestrator images build`"
                )
            self._hello.set()
        elif kind == w.KILLED:
            if not self._kills:
                raise w.Malformed("an answer to no kill")
            self._kills.pop(0).set()
        elif kind == w.LISTENING:
            fields = w.unpack(payload)
            name = fields[0].decode() if len(fields) == 3 else ""
            if name not in self._listening:
                raise w.Malformed("an answer to no listen")
            int(fields[1])
            done, answer = self._listening.pop(name)
            answer.extend(fields[1:])
            done.set()

    def _on_process(self, kind: int, number: int, payload: bytes) -> None:
        process = self._processes.get(number)
        if process is None or (kind != w.FAULT and len(payload) != 4):
            raise w.Malformed(f"news of process {number}, which is not running")
        if process._started.is_set() != (kind == w.EXIT):
            raise w.Malformed(f"process {number} starts once, and before it exits")
        if kind == w.STARTED:
            process._on_started(int.from_bytes(payload, "big"))
            return
        if kind == w.EXIT:
            del self._processes[number]
            process._on_exit(int.from_bytes(payload, "big", signed=True))
            return
        fields = w.unpack(payload)
        if len(fields) != 2:
            raise w.Malformed("a fault has a number and a text")
        fault = SpawnFailed(
            f"{self.name}: {fields[1].decode(errors='replace')}", errno=int(fields[0])
        )
        # Not before: were a field above malformed, `_end` would wake the caller through this entry.
        del self._processes[number]
        process._on_fault(fault)

    def _on_open(self, number: int, payload: bytes) -> None:
        service = self._services.get(payload.decode(errors="replace"))
        if service is None:
            raise w.Malformed("a connection to a service that it was not given")
        stream = self._mux.accept(number)
        if len(self._tasks) + self._starting >= 2 * w.MAX_CONNECTIONS:
            # A process that connects and resets faster than we can answer: the warden limits open
            # connections only.
            stream.reset()
            return
        self._starting += 1
        self._mux.turnstile.call(partial(self._start_serving, service, stream))

    def _start_serving(self, service: RelayService, stream: Stream) -> None:
        self._starting -= 1
        if self.ended is not None:
            return
        task = self._loop.create_task(self._serve(service, stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, service: RelayService, stream: Stream) -> None:
        pass_through(self._mux.turnstile)
        try:
            await service(stream)
            stream.end()
            with anyio.move_on_after(RELAY_LINGER_SECONDS):
                while await stream.read():
                    pass  # a reset now could overtake the answer: let the client close first
        except (OSError, WireLost):
            pass  # the peer went away in the middle: nothing to add
        except Exception:
            log.exception("%s: a relayed connection failed", self.name)
        finally:
            stream.reset()

    # Inside

    def _start(self, launch: Launch) -> Process:
        if self.ended is not None:
            raise self.lost_error()
        files = [
            part
            for file in launch.files
            for part in (file.path.encode(), b"%d" % file.mode, file.content)
        ]
        payload = w.pack(
            b"%d" % self._mux.number_after_next,
            b"%d" % (0 if launch.root else self._user.uid),
            b"%d" % (0 if launch.root else self._user.gid),
            launch.cwd.encode(),
            w.pack(*(arg.encode() for arg in launch.argv)),
            w.pack(*(f"{key}={value}".encode() for key, value in launch.env.items())),
            w.pack(*files),
            b"1" if launch.errand else b"",
        )
        if len(payload) > w.MAX_SPAWN:
            raise SpawnFailed(
                f"{launch.argv[0]} with its arguments and files takes {len(payload)} bytes, of at "
                f"most {w.MAX_SPAWN}; write large files through a process's stdin"
            )
        main, errors = self._mux.open(), self._mux.open()
        process = Process(self, launch, main, errors)
        self._processes[main.number] = process
        self.send(w.SPAWN, main.number, payload)
        return process

    def _send_ping(self, done: asyncio.Event | None) -> None:
        self._ping_count += 1
        payload = b"%d" % self._ping_count
        self._pings[payload] = done
        self.send(w.PING, 0, payload)

    def _schedule_ping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._lease_seconds / PINGS_PER_LEASE, self._beat)

    def _beat(self) -> None:
        if self._loop.time() - self._heard > SILENCES * self._lease_seconds:
            self._end(WireEnd.SILENT)
            return
        self._send_ping(None)
        self._schedule_ping()

    async def _settled(self, done: asyncio.Event) -> None:
        if self.ended is None:
            await done.wait()
        if self.ended is not None:
            raise self.lost_error()

    def _end(self, how: WireEnd, detail: str = "") -> None:
        if self.ended is not None:
            return
        self.ended, self.detail = how, detail
        self._mux.lose(
            f"{self.name}: the connection to the container was {how.value}"
            + (f" ({detail})" if detail else "")
        )
        if self._timer is not None:
            self._timer.cancel()
        self._link.close()
        for process in self._processes.values():
            process._on_lost()
        self._processes.clear()
        waiting = [*self._pings.values(), *self._kills, *(d for d, _ in self._listening.values())]
        for event in (self._hello, *waiting, self._over):
            if event is not None:
                event.set()
