"""One CLI process and what is said to and by it: bytes in, turns out."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import anyio
import anyio.lowlevel

from orchestrator.domain.events import EventKind
from orchestrator.engine.record import Record
from orchestrator.errors import WireLost
from orchestrator.runners import claude
from orchestrator.runners.signs import (
    Noise,
    Ready,
    Retrying,
    Said,
    Sign,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)
from orchestrator.wire.host import Process

READ_BYTES = 16 * 1024
"""What is understood at one go."""

STDERR_BYTES = 4096
"""How much of what the CLI last said on stderr is kept."""

SETTLE_SECONDS = 2.0
"""After the CLI has exited, for its last words."""

NOISE_LINES = 20
"""Lines that mean nothing, before no more of them are told: anybody inside can write them."""


class CliEnded(Exception):
    """The CLI's process ended, or its container, before the turn did."""


class Conversation:
    """Reads a CLI for as long as `pump` runs; one turn at a time."""

    def __init__(self, process: Process, record: Record) -> None:
        self._process = process
        self._record = record
        self._parser = claude.Parser()
        self._turns: asyncio.Queue[TurnEnded | None] = asyncio.Queue()
        self._requests = itertools.count(1)
        self._writing = anyio.Lock()
        self._noise = 0
        self.last_text = ""
        """What the agent said last."""
        self.ready = Ready()
        self.at_work = asyncio.Event()
        """The CLI has begun a turn: from now on there is something to interrupt."""
        self.denied: list[str] = []
        self.stderr = b""

    async def say(self, text: str) -> None:
        """One more user message; it begins a turn."""
        await self._write(claude.user_message(text))

    async def interrupt(self) -> None:
        """Stop the turn that is under way; it ends as interrupted."""
        await self._write(claude.interrupt(f"stop-{next(self._requests)}"))

    async def _write(self, line: bytes) -> None:
        try:
            async with self._writing:  # whole lines: the nudge may come while a long one is sent
                await self._process.stdin.write(line)
        except (OSError, WireLost) as exc:
            raise CliEnded from exc

    async def turn(self) -> TurnEnded:
        """Wait for the turn's verdict; CliEnded when there will be none."""
        ended = await self._turns.get()
        if ended is None:
            self._turns.put_nowait(None)  # for whoever asks again
            raise CliEnded
        return ended

    async def pump(self) -> None:
        """Read everything the CLI says until it says no more. Raises nothing."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_stdout)
            tasks.start_soon(self._read_stderr)
            with suppress(WireLost):
                await self._process.wait()
            # What it left behind may hold its output open; nobody waits for that.
            tasks.cancel_scope.deadline = anyio.current_time() + SETTLE_SECONDS
        self._turns.put_nowait(None)

    async def _read_stdout(self) -> None:
        with suppress(OSError, WireLost):  # whoever waits for a turn is told at the end of it all
            while data := await self._process.stdout.read(READ_BYTES):
                self._hear(self._parser.feed(data))
                await anyio.lowlevel.checkpoint()  # a flood must not keep others from their turn
            self._hear(self._parser.finish())

    async def _read_stderr(self) -> None:
        try:
            while data := await self._process.stderr.read():
                self.stderr = (self.stderr + data)[-STDERR_BYTES:]
        except (OSError, WireLost):
            pass

    def _hear(self, signs: list[Sign]) -> None:
        for sign in signs:
            if isinstance(sign, TurnEnded):
                self.denied += [tool for tool in sign.denied_tools if tool not in self.denied]
                self._turns.put_nowait(sign)
            elif isinstance(sign, Ready):
                self._on_ready(sign)
            elif isinstance(sign, Said):
                self.last_text = sign.text
                self._record.note("text", sign.text)
            elif isinstance(sign, ToolCalled):
                line = f"{sign.tool} {_one_line(sign.input)}"
                self._record.note("tool_call", line, id=sign.id, tool=sign.tool, input=sign.input)
            elif isinstance(sign, ToolReturned):
                kind: EventKind = "tool_result"
                self._record.note(kind, sign.text, id=sign.id, is_error=sign.is_error)
            elif isinstance(sign, Retrying):
                self._record.note("api_retry", sign.error, attempt=sign.attempt, status=sign.status)
            elif isinstance(sign, Noise) and sign.text:
                self._noise += 1
                if self._noise <= NOISE_LINES:
                    self._record.note("warning", f"not understood: {sign.text}")

    def _on_ready(self, sign: Ready) -> None:
        first = not self.ready.session_id
        self.at_work.set()
        self.ready = sign
        if not first:
            return
        self._record.note(
            "ready",
            f"{sign.model}, tools: {', '.join(sign.tools) or 'none'}",
            session_id=sign.session_id,
            model=sign.model,
            tools=sign.tools,
            mcp_servers=sign.mcp_servers,
        )
        for name, status in self.failed_servers.items():
            self._record.note(
                "mcp_failed", f"MCP server {name}: {status}", name=name, status=status
            )

    @property
    def failed_servers(self) -> dict[str, str]:
        return {n: s for n, s in self.ready.mcp_servers.items() if s != "connected"}


def _one_line(value: dict[str, object]) -> str:
    """The most telling part of a tool's input."""
    for key in ("command", "file_path", "pattern", "url", "path"):
        if key in value:
            return " ".join(str(value[key]).split())
    return " ".join(str(value).split())
