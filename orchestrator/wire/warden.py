"""PID 1 of every container: spawns, signals, reaps and relays, as its wire tells it to.

The wire is this process's stdin and stdout (PROTOCOL.md). It is the only way in or out of the
container, so whatever ends it ends the container: end of file, a malformed frame, a host that
fell silent, the lifetime. The agent runs under another uid and can neither signal nor trace us.

One file, standard library only: it is copied into images as it is, and the host end imports the
codec from here, so that there is one. The C halves of `signal` and `socket` are imported directly,
since their Python halves would nearly double the 11 ms that PID 1 takes to start.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # typeshed has no stub for it
import _socket as socket
import errno
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` itself would cost PID 1 another 10 ms
    from collections.abc import Callable, Iterator

VERSION = 2

HEADER = struct.Struct(">BII")
"""Type, stream, length; then the payload."""

MAX_PAYLOAD = 64 * 1024
MAX_SPAWN = 1024 * 1024
"""A SPAWN carries the files to place first."""

WINDOW = 256 * 1024
"""Bytes that may be under way on one stream, in one direction, before the reader grants more."""

# From the host.
SPAWN, SIGNAL, KILL, LISTEN, LEASE, PING = 1, 2, 3, 4, 5, 6
# Both ways, on one stream.
DATA, END, RESET, CREDIT = 16, 17, 18, 19
# From the warden.
HELLO, STARTED, EXIT, FAULT, OPEN, KILLED, LISTENING, PONG = 32, 33, 34, 35, 36, 37, 38, 39

FROM_HOST = frozenset((SPAWN, SIGNAL, KILL, LISTEN, LEASE, PING, DATA, END, RESET, CREDIT))
FROM_WARDEN = frozenset(
    (HELLO, STARTED, EXIT, FAULT, OPEN, KILLED, LISTENING, PONG, DATA, END, RESET, CREDIT)
)

MAX_CONNECTIONS = 256
"""Relayed connections at once; further ones wait in the listener's queue."""

# Exit codes of PID 1: containers/failure.py reads them.
EXIT_WIRE_CLOSED, EXIT_CRASHED, EXIT_MALFORMED, EXIT_LEASE, EXIT_LIFETIME = 0, 70, 76, 74, 75
EXIT_STOPPED = 143

FIRST_LEASE_SECONDS = 60.0
"""Until the host says otherwise."""

OUT_SOFT = 256 * 1024
"""Unsent output above which nothing more is read from processes and connections."""
OUT_HARD = 8 * 1024 * 1024
"""Unsent output that only a host which asks without listening can cause."""

RESWEEP_SECONDS = 0.02
"""Between two rounds of killing everybody, should somebody have forked in between."""
ACCEPT_PAUSE_SECONDS = 0.1
"""How long to leave connections waiting when there is no file descriptor for them."""

OOM_SCORE_ADJ = b"500"
"""When memory runs out, the kernel takes the agent's processes before the warden."""

AGENT_NICE = 10
"""In its own container the warden comes first: a fork bomb must not keep it from its wire."""

ERRAND_OOM_SCORE_ADJ = b"1000"
ERRAND_NICE = 5
"""An errand of the orchestrator comes after the warden and before the agent, which could otherwise
keep it from answering by spinning; if memory runs out, it is the first to go."""

NOBODY = 65534
ERRAND_UID = 65533
"""The real uid of an errand. Its effective one is the agent's, so that it can read and write what
the agent can; but as the two differ, the kernel lets the agent neither trace it nor open its
descriptors (and the program can put its saved uid out of reach of the agent's signals)."""

ALL_SIGNALS = (signal.SIGSTOP, signal.SIGCONT)
"""What can be sent to every process at once; KILL has a frame of its own, since it is answered."""

HANDLED = (signal.SIGCHLD, signal.SIGTERM)
IGNORED = (signal.SIGINT, signal.SIGHUP)


class Malformed(Exception):
    """The other end did not keep to the protocol. There is no way back from it."""


class Decoder:
    """Bytes -> frames, whatever way the bytes were cut."""

    def __init__(self, accepted: frozenset[int]) -> None:
        self._accepted = accepted
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, stream, payload); raise Malformed at the first frame that cannot be."""
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while len(buffer) - at >= HEADER.size:
                kind, stream, length = HEADER.unpack_from(buffer, at)
                if kind not in self._accepted:
                    raise Malformed(f"unknown frame type {kind}")
                if length > (MAX_SPAWN if kind == SPAWN else MAX_PAYLOAD):
                    raise Malformed(f"frame of {length} bytes")
                end = at + HEADER.size + length
                if end > len(buffer):
                    break
                payload = bytes(buffer[at + HEADER.size : end])
                at = end
                yield kind, stream, payload
        finally:
            del buffer[:at]


def encode(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, stream, len(payload)) + payload


def pack(*fields: bytes) -> bytes:
    """Byte strings -> one payload."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def unpack(payload: bytes) -> list[bytes]:
    """One payload -> its byte strings."""
    fields = []
    at = 0
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
        if at + 4 > len(payload) or end > len(payload):
            raise Malformed("a field is cut short")
        fields.append(payload[at + 4 : end])
        at = end
    return fields


class Channel:
    """One stream inside: bytes from `source` go out, bytes that come in go to `sink`."""

    __slots__ = ("connection", "credit", "ending", "pending", "sink", "source", "stream")

    def __init__(self, stream: int, source: int, sink: int) -> None:
        self.stream = stream
        self.source = source
        """A file descriptor, or -1 when there is nothing (more) to read."""
        self.sink = sink
        """A file descriptor, or -1 when what still comes in is dropped."""
        self.credit = WINDOW
        self.pending = bytearray()
        self.ending = False
        """The host has sent END: close the sink once nothing is pending."""
        self.connection: socket.socket | None = None
        """Set for a relayed connection; source and sink are then its descriptor."""


class Child:
    """A process that the host asked for. It leads a session of its own."""

    __slots__ = ("errors", "main", "pid", "report", "stream")

    def __init__(self, stream: int, pid: int, report: int, main: Channel, errors: Channel) -> None:
        self.stream = stream
        self.pid = pid
        self.report = report
        """Where the child says what went wrong before exec; -1 once that is settled."""
        self.main = main
        self.errors = errors


class Warden:
    """One loop over two sets of descriptors, the wire always and the bulk while there is room."""

    def __init__(self) -> None:
        self._decoder = Decoder(FROM_HOST)
        self._out = bytearray()
        self._wire = select.epoll()
        self._bulk = select.epoll()  # watched by self._wire, unless the wire is congested
        self._bulk_watched = False
        self._masks: dict[int, int] = {}
        self._ready: dict[int, Callable[[int], object]] = {}
        self._channels: dict[int, Channel] = {}
        self._children: dict[int, Child] = {}  # by pid
        self._listeners: dict[int, tuple[socket.socket, bytes]] = {}
        self._connections = 0
        self._accept_at = 0.0
        self._last_host_stream = -1
        self._last_own_stream = 0
        self._killing = 0  # how many have asked for it
        self._lease_seconds = FIRST_LEASE_SECONDS
        self._lease_until = time.monotonic() + FIRST_LEASE_SECONDS
        self._lifetime_until = float("inf")

    # The loop

    def run(self, wakeup: int) -> int:
        """Serve until something ends the wire; return what PID 1 exits with."""
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        self._wire.register(0, select.EPOLLIN)
        self._wire.register(wakeup, select.EPOLLIN)
        self._watch_bulk(True)
        self._send(HELLO, 0, pack(b"%d" % VERSION, sys.version.split()[0].encode()))
        bulk = self._bulk.fileno()
        while True:
            for fd, _ in self._wire.poll(self._patience()):
                if fd == 0:
                    if not self._read_wire():
                        return EXIT_WIRE_CLOSED
                elif fd == 1:
                    self._flush()
                elif fd == wakeup:
                    if signal.SIGTERM in os.read(wakeup, 4096):
                        return EXIT_STOPPED
                    self._reap()
                elif fd == bulk:
                    for ready, mask in self._bulk.poll(0, 64):
                        handler = self._ready.get(ready)
                        if handler is not None:  # an earlier one of this round may have closed it
                            handler(mask)
            # After reading, not before: pings may have waited while the container was paused.
            now = time.monotonic()
            if now >= self._lifetime_until:
                return EXIT_LIFETIME
            if now >= self._lease_until:
                # Thawed after its time, a poll comes back with nothing, whatever waits.
                if not self._read_wire():
                    return EXIT_WIRE_CLOSED
                if time.monotonic() >= self._lease_until:
                    return EXIT_LEASE
            if self._killing:
                self._sweep()
            if self._accept_at and now >= self._accept_at:
                self._accept_at = 0.0
                self._watch_listeners()

    def _patience(self) -> float:
        until = min(self._lease_until, self._lifetime_until)
        if self._accept_at:
            until = min(until, self._accept_at)
        seconds = until - time.monotonic()
        if self._killing:
            seconds = min(seconds, RESWEEP_SECONDS)
        return max(0.0, seconds)

    # The wire

    def _read_wire(self) -> bool:
        try:
            data = os.read(0, 4 * MAX_PAYLOAD)
        except BlockingIOError:
            return True
        if not data:
            return False
        for kind, stream, payload in self._decoder.feed(data):
            self._lease_until = time.monotonic() + self._lease_seconds
            if kind == DATA:
                self._on_data(stream, payload)
            elif kind == CREDIT:
                self._on_credit(stream, payload)
            elif kind == PING:
                self._send(PONG, 0, payload[:64])
            elif kind == END:
                self._on_end(stream)
            elif kind == SPAWN:
                self._on_spawn(stream, payload)
            elif kind == SIGNAL:
                self._on_signal(stream, payload)
            elif kind == RESET:
                channel = self._channel(stream)
                if channel is not None:
                    self._drop(channel, reset=True)
            elif kind == KILL:
                self._killing += 1
                self._sweep()
            elif kind == LISTEN:
                self._on_listen(payload)
            elif kind == LEASE:
                self._on_lease(payload)
        return True

    def _send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        header = HEADER.pack(kind, stream, len(payload))
        if not self._out:
            try:
                sent = os.writev(1, (header, payload))
            except BlockingIOError:
                sent = 0
            if sent == len(header) + len(payload):
                return
            self._wire.register(1, select.EPOLLOUT)
            self._out += (header + payload)[sent:]
        else:
            self._out += header
            self._out += payload
        if len(self._out) > OUT_HARD:
            raise Malformed("the host asks without listening")
        if len(self._out) > OUT_SOFT:
            self._watch_bulk(False)

    def _flush(self) -> None:
        try:
            del self._out[: os.write(1, self._out)]
        except BlockingIOError:
            return
        if not self._out:
            self._wire.unregister(1)
        if len(self._out) <= OUT_SOFT:
            self._watch_bulk(True)

    def _watch_bulk(self, watched: bool) -> None:
        if watched and not self._bulk_watched:
            self._wire.register(self._bulk.fileno(), select.EPOLLIN)
        elif not watched and self._bulk_watched:
            self._wire.unregister(self._bulk.fileno())
        self._bulk_watched = watched

    # Streams

    def _channel(self, stream: int) -> Channel | None:
        """The open channel, or None for one that has ended; a number never used is malformed."""
        channel = self._channels.get(stream)
        if channel is None:
            last = self._last_host_stream if stream % 2 else self._last_own_stream
            if stream > last or stream == 0:
                raise Malformed(f"stream {stream} was never opened")
        return channel

    def _on_data(self, stream: int, payload: bytes) -> None:
        channel = self._channel(stream)
        if channel is None:
            return
        if channel.ending or len(channel.pending) + len(payload) > WINDOW:
            raise Malformed(f"stream {stream} sent more than it may")
        channel.pending += payload
        self._write(channel)

    def _on_credit(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Malformed("credit is four bytes")
        channel = self._channel(stream)
        if channel is None:
            return
        channel.credit += int.from_bytes(payload, "big")
        if channel.credit > WINDOW:
            raise Malformed(f"stream {stream} was granted more than a window")
        self._watch(channel)

    def _on_end(self, stream: int) -> None:
        channel = self._channel(stream)
        if channel is not None:
            channel.ending = True
            self._write(channel)

    def _write(self, channel: Channel) -> None:
        """Move what is pending into the sink, as far as it goes, and grant as much again."""
        before = len(channel.pending)
        if channel.sink < 0:
            channel.pending.clear()
        try:
            while channel.pending:
                del channel.pending[: os.write(channel.sink, channel.pending)]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE, ECONNRESET: nobody reads any more
            channel.pending.clear()
            if channel.connection is not None:
                self._abort(channel)
                return
            self._close_sink(channel)
        if before > len(channel.pending):
            self._send(CREDIT, channel.stream, (before - len(channel.pending)).to_bytes(4, "big"))
        if channel.ending and not channel.pending:
            self._close_sink(channel)
        self._watch(channel)

    def _read(self, channel: Channel) -> None:
        """Move what the source has onto the wire, as far as the credit goes."""
        try:
            data = os.read(channel.source, min(MAX_PAYLOAD, channel.credit))
        except BlockingIOError:
            return
        except OSError:  # ECONNRESET
            self._abort(channel)
            return
        if data:
            channel.credit -= len(data)
            self._send(DATA, channel.stream, data)
            if not channel.credit:
                self._watch(channel)
            return
        self._send(END, channel.stream)
        self._close_source(channel)

    def _watch(self, channel: Channel) -> None:
        """Ask to be told of exactly what this channel can use now."""
        reading = select.EPOLLIN if channel.credit > 0 else 0
        writing = select.EPOLLOUT if channel.pending else 0
        if channel.source == channel.sink:
            self._set_mask(channel.source, reading | writing, channel)
        else:
            self._set_mask(channel.source, reading, channel)
            self._set_mask(channel.sink, writing, channel)

    def _set_mask(self, fd: int, mask: int, channel: Channel) -> None:
        if fd < 0 or self._masks.get(fd, 0) == mask:
            return
        if not mask:  # unregistered, since EPOLLHUP is reported for an empty mask as well
            self._bulk.unregister(fd)
            del self._masks[fd], self._ready[fd]
            return
        if fd in self._masks:
            self._bulk.modify(fd, mask)
        else:
            self._bulk.register(fd, mask)
        self._masks[fd] = mask
        self._ready[fd] = lambda seen: self._channel_ready(channel, fd, seen)

    def _channel_ready(self, channel: Channel, fd: int, seen: int) -> None:
        wanted = self._masks[fd]
        if wanted & select.EPOLLOUT and seen & ~select.EPOLLIN:
            self._write(channel)
        if wanted & select.EPOLLIN and seen & ~select.EPOLLOUT and channel.source == fd:
            self._read(channel)

    def _forget_fd(self, fd: int) -> None:
        if self._masks.pop(fd, 0):
            self._bulk.unregister(fd)
            del self._ready[fd]

    def _close_source(self, channel: Channel) -> None:
        if channel.connection is None:
            self._forget_fd(channel.source)
            os.close(channel.source)
            channel.source = -1
            self._settle(channel)
        else:
            self._forget_fd(channel.source)
            channel.source = -1
            if channel.sink < 0:
                self._drop(channel)
            else:
                self._watch(channel)

    def _close_sink(self, channel: Channel) -> None:
        if channel.sink < 0:
            return
        if channel.connection is None:
            self._forget_fd(channel.sink)
            os.close(channel.sink)
            channel.sink = -1
            return
        fd, channel.sink = channel.sink, -1
        if channel.source < 0:
            self._drop(channel)
            return
        self._forget_fd(fd)
        try:
            channel.connection.shutdown(socket.SHUT_WR)
        except OSError:
            self._abort(channel)  # the peer is gone already
            return
        self._watch(channel)

    def _abort(self, channel: Channel) -> None:
        self._send(RESET, channel.stream)
        self._drop(channel, reset=True)

    def _drop(self, channel: Channel, reset: bool = False) -> None:
        """Close both halves now; with `reset`, the peer of a connection is told so."""
        self._channels.pop(channel.stream, None)
        for fd in {channel.source, channel.sink} - {-1}:
            self._forget_fd(fd)
            if channel.connection is None:
                os.close(fd)
        channel.source = channel.sink = -1
        if channel.connection is not None:
            if reset:
                linger = struct.pack("ii", 1, 0)
                channel.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            channel.connection.close()
            channel.connection = None
            self._connections -= 1
            self._watch_listeners()

    def _settle(self, channel: Channel) -> None:
        """Forget a process's stream once it has ended and the process is gone."""
        if any(channel in (c.main, c.errors) for c in self._children.values()):
            return
        if channel.source < 0:
            self._drop(channel)

    # Processes

    def _on_spawn(self, stream: int, payload: bytes) -> None:
        try:
            errors, uid, gid, cwd, argv, env, files, errand = unpack(payload)
            errors_stream, ids = int(errors), (int(uid), int(gid))
            arguments, variables, placed = unpack(argv), unpack(env), unpack(files)
        except ValueError as exc:
            raise Malformed("a spawn that makes no sense") from exc
        if not (stream % 2 and self._last_host_stream < stream < errors_stream):
            raise Malformed(f"streams {stream} and {errors_stream} cannot be opened now")
        if errors_stream % 2 == 0 or not arguments or len(placed) % 3 or errand not in (b"", b"1"):
            raise Malformed("a spawn that makes no sense")
        self._last_host_stream = errors_stream
        if self._killing:
            self._fault(stream, errno.EAGAIN, "everything is being killed; try again afterwards")
            return
        pipes: list[int] = []
        try:
            for _ in range(4):
                pipes += os.pipe()
            if not errand:
                # The agent's programs may open theirs again, as /dev/stdout and so on. An errand's
                # pipes stay root's own: an agent that could open them would answer in its place.
                for fd in pipes[0], pipes[3], pipes[5]:
                    os.fchmod(fd, 0o666)
            # A signal for the child must not reach our handlers in it: they share our wake-up pipe.
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
            pid = os.fork()
        except OSError as exc:  # EAGAIN: no pids left; EMFILE: no descriptors
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            for fd in pipes:
                os.close(fd)
            self._fault(stream, exc.errno or 0, f"cannot start a process: {exc.strerror}")
            return
        in_read, in_write, out_read, out_write, err_read, err_write, report, reporter = pipes
        if pid == 0:
            stdio = (in_read, out_write, err_write)
            _become(stdio, reporter, ids, cwd, arguments, variables, placed, errand == b"1")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        for fd in (in_read, out_write, err_write, reporter):
            os.close(fd)
        for fd in (in_write, out_read, err_read, report):
            os.set_blocking(fd, False)
        main = self._channels[stream] = Channel(stream, out_read, in_write)
        lost = self._channels[errors_stream] = Channel(errors_stream, err_read, -1)
        child = self._children[pid] = Child(stream, pid, report, main, lost)
        self._watch(main)
        self._watch(lost)
        self._bulk.register(report, select.EPOLLIN)
        self._masks[report] = select.EPOLLIN
        self._ready[report] = lambda _: self._settle_start(child)

    def _settle_start(self, child: Child) -> bool:
        """What became of the exec: nothing said means that it worked."""
        if child.report < 0:
            return True
        try:
            said = os.read(child.report, 4096)
        except BlockingIOError:
            return True
        self._forget_fd(child.report)
        os.close(child.report)
        child.report = -1
        if not said:
            self._send(STARTED, child.stream, child.pid.to_bytes(4, "big"))
            return True
        del self._children[child.pid]  # it exits by itself and is reaped like any other
        self._drop(child.main)
        self._drop(child.errors)
        number, _, message = said.partition(b" ")
        self._send(FAULT, child.stream, pack(number, message))
        return False

    def _fault(self, stream: int, number: int, message: str) -> None:
        self._send(FAULT, stream, pack(b"%d" % number, message.encode()))

    def _reap(self) -> bool:
        """Collect the dead, ours and the orphans; False when nobody is left alive."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            child = self._children.get(pid)
            if child is None or not self._settle_start(child):
                continue
            code = os.waitstatus_to_exitcode(status)
            self._send(EXIT, child.stream, code.to_bytes(4, "big", signed=True))
            del self._children[pid]
            self._settle(child.main)
            self._settle(child.errors)

    def _on_signal(self, stream: int, payload: bytes) -> None:
        if len(payload) != 1 or not 0 < payload[0] < signal.NSIG:
            raise Malformed("no such signal")
        if not stream:
            if payload[0] not in ALL_SIGNALS:
                raise Malformed("everybody can only be stopped and continued")
            self._signal_all(payload[0])
            return
        for child in self._children.values():
            if child.stream == stream:
                try:
                    os.killpg(child.pid, payload[0])
                except ProcessLookupError:  # between fork and setsid: the group is not there yet
                    os.kill(child.pid, payload[0])

    def _signal_all(self, number: int) -> None:
        """To every process but PID 1, setsid or not; the kernel reaches all of them at once."""
        try:
            if os.getpid() == 1:
                os.kill(-1, number)
            else:  # outside a container, in tests: only what is ours
                for child in self._children.values():
                    os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    def _sweep(self) -> None:
        """Kill every process but PID 1, and again until no process is left."""
        self._signal_all(signal.SIGKILL)
        if not self._reap():
            answers, self._killing = self._killing, 0
            for _ in range(answers):
                self._send(KILLED, 0)

    # Relays

    def _on_listen(self, payload: bytes) -> None:
        try:
            port, service = unpack(payload)
            number = int(port)
        except ValueError as exc:
            raise Malformed("a listener that makes no sense") from exc
        listener = None
        try:
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", number))
            listener.listen(128)
            bound = listener.getsockname()[1]
        except (OSError, OverflowError) as exc:  # in use, or no descriptor left
            if listener is not None:
                listener.close()
            self._send(LISTENING, 0, pack(service, b"0", str(exc).encode()))
            return
        self._listeners[listener.fileno()] = (listener, service)
        self._watch_listeners()
        self._send(LISTENING, 0, pack(service, b"%d" % bound, b""))

    def _watch_listeners(self) -> None:
        open_now = self._connections < MAX_CONNECTIONS and not self._accept_at
        for fd in self._listeners:
            if open_now and fd not in self._masks:
                self._bulk.register(fd, select.EPOLLIN)
                self._masks[fd] = select.EPOLLIN
                self._ready[fd] = lambda _, fd=fd: self._accept(fd)  # type: ignore[misc]
            elif not open_now:
                self._forget_fd(fd)

    def _accept(self, fd: int) -> None:
        listener, service = self._listeners[fd]
        try:
            # The C socket has no accept() of its own; this is what socket.accept() calls.
            accepted, _ = listener._accept()  # type: ignore[attr-defined]
        except BlockingIOError:
            return
        except OSError:  # EMFILE, ENFILE, ENOMEM: leave it in the queue for a moment
            self._accept_at = time.monotonic() + ACCEPT_PAUSE_SECONDS
            self._watch_listeners()
            return
        os.set_blocking(accepted, False)
        self._last_own_stream += 2
        channel = Channel(self._last_own_stream, accepted, accepted)
        channel.connection = socket.socket(fileno=accepted)
        channel.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channels[channel.stream] = channel
        self._connections += 1
        self._send(OPEN, channel.stream, service)
        self._watch(channel)
        if self._connections >= MAX_CONNECTIONS:
            self._watch_listeners()

    def _on_lease(self, payload: bytes) -> None:
        if len(payload) != 8:
            raise Malformed("a lease is eight bytes")
        now = time.monotonic()
        self._lease_seconds = int.from_bytes(payload[:4], "big") / 1000
        self._lease_until = now + self._lease_seconds
        self._lifetime_until = now + int.from_bytes(payload[4:], "big") / 1000


def _become(
    stdio: tuple[int, int, int],
    reporter: int,
    ids: tuple[int, int],
    cwd: bytes,
    argv: list[bytes],
    env: list[bytes],
    placed: list[bytes],
    errand: bool,
) -> None:
    """In the child, from fork to exec: drop everything of PID 1's, then become the program."""
    step = "start"
    try:
        os.setsid()
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
        signal.set_wakeup_fd(-1)
        for number in (*HANDLED, *IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        _prefer_for_oom(ERRAND_OOM_SCORE_ADJ if errand else OOM_SCORE_ADJ)
        os.nice(ERRAND_NICE if errand else AGENT_NICE)
        uid, gid = ids
        if os.getuid() == 0:
            step = f"become {uid}:{gid}"
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            own = ERRAND_UID if errand else uid
            os.setresuid(own, uid, own)
        os.umask(0o022)
        for at in range(0, len(placed), 3):
            step = "place " + os.fsdecode(placed[at])
            _place(placed[at], int(placed[at + 1]), placed[at + 2])
        step = "enter " + os.fsdecode(cwd)
        os.chdir(cwd)
        step = "run " + os.fsdecode(argv[0])
        variables = dict(item.split(b"=", 1) for item in env)
        _exec(argv, variables)
    except BaseException as exc:  # noqa: BLE001 nothing may escape into the parent's code
        number = getattr(exc, "errno", None) or 0
        reason = getattr(exc, "strerror", None) or str(exc)
        os.write(reporter, f"{number} cannot {step}: {reason}".encode("utf-8", "replace")[:4096])
    os._exit(127)


def _exec(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    program = argv[0]
    if b"/" in program:
        os.execve(program, argv, env)  # noqa: S606 becoming another program is the point
    failure: OSError = FileNotFoundError(errno.ENOENT, "not found on PATH")
    for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
        try:
            os.execve(folder + b"/" + program, argv, env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as exc:  # found, but it cannot run
            failure = exc
    raise failure


def _place(path: bytes, mode: int, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        os.unlink(path)  # a link that the agent left there is replaced, not followed
    except FileNotFoundError:
        pass
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    while content:
        content = content[os.write(fd, content) :]
    os.fchmod(fd, mode)
    os.close(fd)


def _prefer_for_oom(score: bytes) -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, score)
        os.close(fd)
    except OSError:
        pass  # advice to the kernel, not a protection


def main() -> None:
    """Be PID 1. Whatever goes wrong ends the container: that is the safe direction."""
    code = EXIT_CRASHED
    try:
        if os.getuid() == 0:
            # Changing the effective uid makes a process non-dumpable: no ptrace, and /proc/1 shut.
            os.seteuid(NOBODY)
            os.seteuid(0)
        wakeup, waker = os.pipe()
        os.set_blocking(wakeup, False)
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, lambda *_: None)
        for number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        code = Warden().run(wakeup)
    except Malformed as exc:
        code = EXIT_MALFORMED
        sys.stderr.write(f"warden: malformed frame: {exc}\n")
    except BrokenPipeError:
        code = EXIT_WIRE_CLOSED
    except BaseException:  # noqa: BLE001 to be told, then to end
        import traceback  # noqa: PLC0415 it costs 10 ms that only a crash should pay

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
