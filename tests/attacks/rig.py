"""A run as it is staged in earnest, with an attacker in its container instead of a task.

The container has the flags of a real run (`plan`), the CLI is running in it, and the gateway's
services are bound to the run. Attacks are programs started beside the CLI, as the agent, with the
CLI's own environment: what a tool of the agent would be.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import EGRESS_PORT, Launch
from orchestrator.domain.events import Event
from orchestrator.domain.task import Task
from orchestrator.engine.prepared import Prepared
from orchestrator.gateway.reach import Reach
from orchestrator.wire.host import Completed
from tests.attacks.canary import Book, Canary, WatchedDialer
from tests.engine.harness import Harness

PATIENCE = 120
"""For anything at all; the machine may be busy."""

TOOLS = r"""
import base64, ctypes, errno, json, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what):
    try:
        what()
    except OSError as exc:
        return errno.errorcode.get(exc.errno, str(exc))
    return "WORKED"
def c(name, *args):
    def call():
        if getattr(libc, name)(*args) == -1:
            raise OSError(ctypes.get_errno(), name)
    return call
def syscall(number, *args):
    return c("syscall", number, *args)
def tcp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(5)
        s.connect((host, port))
        s.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return s.recv(100)
def udp(host, port, data=b"hello", family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.sendto(data, (host, port))
def ask(port, data, half_close=False):
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.settimeout(60)
        try:
            s.sendall(data)
            if half_close:
                s.shutdown(socket.SHUT_WR)
            while piece := s.recv(65536):
                answer += piece
        except OSError:
            pass
    return answer
def say(value):
    print(json.dumps(value))
"""


@dataclass
class Seen:
    """What an attack left on this side."""

    heard: list[bytes] = field(default_factory=list)
    """What reached the canary."""
    asked: list[str] = field(default_factory=list)
    """Names that were resolved."""
    passed: list[str] = field(default_factory=list)
    """Hosts that the rules let through."""
    events: list[Event] = field(default_factory=list)
    model_requests: int = 0

    @property
    def denied(self) -> list[str]:
        return [str(event.data["host"]) for event in self.events if event.kind == "egress_denied"]

    @property
    def nothing_left(self) -> bool:
        """No connection, no name, no request got out."""
        return (self.heard, self.asked, self.passed, self.model_requests) == ([], [], [], 0)


@dataclass
class Rig:
    container: Container
    prepared: Prepared
    reach: Reach
    env: dict[str, str]
    canary: Canary
    book: Book
    dialer: WatchedDialer
    events: list[Event]

    @property
    def token(self) -> str:
        return self.reach.model.token

    async def run(self, *argv: str, stdin: bytes = b"", cwd: str = "/tmp") -> Completed:
        with anyio.fail_after(PATIENCE):
            return await self.container.run(self.launch(*argv, cwd=cwd), stdin)

    def launch(self, *argv: str, cwd: str = "/tmp") -> Launch:
        return Launch(argv=argv, env=self.env, cwd=cwd)

    async def sh(self, script: str) -> str:
        done = await self.run("bash", "-c", script)
        return (done.stdout + done.stderr).decode(errors="replace")

    async def python(self, code: str) -> Any:
        """Run it as the agent; what it `say`s, which is JSON, comes back."""
        done = await self.run("python3", "-c", TOOLS + code)
        assert done.code == 0, done.stderr.decode(errors="replace")
        return json.loads(done.stdout)

    async def tries(self, *attempts: str) -> dict[str, str]:
        """Each is a Python expression to be called -> the name of its error, or "WORKED"."""
        rows = ", ".join(f"{text!r}: attempt({text})" for text in attempts)
        answers: dict[str, str] = await self.python(f"say({{{rows}}})")
        assert list(answers) == list(attempts)
        return answers

    async def ask(self, data: bytes | Sequence[bytes], port: int = EGRESS_PORT) -> list[bytes]:
        """Bytes to a port of the gateway, each on a connection of its own -> all it answers."""
        pieces = [data] if isinstance(data, bytes) else list(data)
        told = [base64.b64encode(piece).decode() for piece in pieces]
        code = (
            f"told = json.loads(sys.stdin.read())\n"
            f"say([base64.b64encode(ask({port}, base64.b64decode(t))).decode() for t in told])"
        )
        done = await self.run("python3", "-c", TOOLS + code, stdin=json.dumps(told).encode())
        assert done.code == 0, done.stderr.decode(errors="replace")
        answers = [base64.b64decode(text) for text in json.loads(done.stdout)]
        assert len(answers) == len(pieces)
        return answers

    @contextmanager
    def watched(self) -> Iterator[Seen]:
        """What happens on this side during the block is in what it gives, afterwards."""
        seen = Seen()
        if self.reach.egress is not None:  # a run is told of so many; tests share this one
            self.reach.egress._observer._denials.clear()
        heard, asked = len(self.canary.heard), len(self.book.asked)
        passed, events = len(self.dialer.passed), len(self.events)
        requests = self.reach.model.bill.usage.requests
        yield seen
        seen.heard = self.canary.heard[heard:]
        seen.asked = self.book.asked[asked:]
        seen.passed = [host for host, _ in self.dialer.passed[passed:]]
        seen.events = self.events[events:]
        seen.model_requests = self.reach.model.bill.usage.requests - requests

    async def answers(self) -> bool:
        return (await self.run("echo", "here")).stdout == b"here\n"


def python(code: str) -> Launch:
    return Launch(argv=("python3", "-c", code))


async def answers(container: Container) -> bool:
    with anyio.fail_after(PATIENCE):
        return (await container.run(Launch(argv=("echo", "here")))).stdout == b"here\n"


RIG_MS = 3_600_000
"""What a container lives for at least: many tests share one, on a machine under load."""


@asynccontextmanager
async def staged(
    harness: Harness,
    canary: Canary,
    task: Task | None = None,
    *,
    steps: Sequence[dict[str, object]] = ({"text": "."},),
    trust: ssl.SSLContext | None = None,
    **fields: object,
) -> AsyncIterator[Rig]:
    """A run that is ready to begin, and does not."""
    book, events = Book(), list[Event]()
    dialer = WatchedDialer(book, ssl_context=trust)
    dialer.passed = []
    harness.dialer = dialer
    fields = {"timeout_ms": RIG_MS, **fields}
    service = harness.service(steps, each_task=False, **fields)
    staging = service._staging
    task = task or Task(agent="worker", prompt="Attack.")
    live = await service.accept(task, events.append)
    prepared = live.prepared
    async with staging.stage(prepared, live) as stage:
        env = prepared.planned(stage.reach.model.token).launch.env
        yield Rig(stage.container, prepared, stage.reach, env, canary, book, dialer, events)


def status(answer: bytes) -> int:
    """Of an HTTP answer; 0 if there was none."""
    words = answer.split(b" ", 2)
    return int(words[1]) if answer.startswith(b"HTTP/") and len(words) > 1 else 0


def get(url: str, *headers: str) -> bytes:
    """A request for a proxy."""
    host = url.split("/")[2]
    return "\r\n".join((f"GET {url} HTTP/1.1", f"Host: {host}", *headers, "", "")).encode()


def connect(target: str) -> bytes:
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()
