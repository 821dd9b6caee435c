"""One CLI process and what is said to and by it: bytes in, turns out."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio
import anyio.lowlevel

from orchestrator.domain.container import MIB
from orchestrator.domain.events import EventKind
from orchestrator.engine.record import Record
from orchestrator.errors import WireLost
from orchestrator.runners.claude import input as claude_input
from orchestrator.runners.claude.output import Parser
from orchestrator.runners.claude.permissions import is_asked_about
from orchestrator.runners.signs import (
    ControlAnswered,
    ControlAsked,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Sign,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)
from orchestrator.wire.host import Process

log = logging.getLogger(__name__)

READ_BYTES = 16 * 1024
"""What is understood at one go."""

STDERR_BYTES = 16 * 1024
"""How much of what the CLI last said on stderr is kept."""

LAST_WORDS = 500
"""How much of it is shown."""

SETTLE_SECONDS = 2.0
"""After the CLI has exited, for its last words."""

NOISE_LINES = 20
"""Lines that mean nothing, before no more of them are told: anybody inside can write them."""

OUTPUT_BYTES = 256 * MIB
"""What a CLI may write in all, unless somebody says otherwise."""

MAX_TURNS = 16
"""Verdicts that nobody has waited for yet: anybody inside can write them, too."""

MAX_DENIED = 100
"""Names of tools that were denied; they can be made up as well."""

TOOL_CHARS = 200
"""Of such a name. A longer one is made up; cut, it might show a part of a secret."""

MAX_ASKED = 64
"""Calls that wait for permission at the same time, and refusals that wait to be sent."""

NOBODY_ALLOWS = "no rule allows this call, and nobody may approve it; do without it"

ONE_BY_ONE = (
    "this has several parts, and not all of them may run; make each a call of its own, to see which"
)

TOO_LARGE = "the input of this call is too large to be shown to whoever would approve it"

TOO_MANY_ASKED = "too many calls wait for approval already; do without this one"

TOO_LATE = "nobody approved this call while its turn lasted"


class CliEnded(Exception):
    """The CLI's process ended, or its container, before the turn did."""


class Conversation:
    """Reads a CLI for as long as `pump` runs; one turn at a time, of one run after another.

    What it says is noted in the record of the run that it is bound to; before that, nowhere.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._output_left = OUTPUT_BYTES
        self._record: Record | None = None
        self._controls: dict[str, asyncio.Event] = {}
        self._parser = Parser()
        self._turns: asyncio.Queue[TurnEnded | None] = asyncio.Queue()
        self._open_turns = 0
        self._exited = False
        """Its last words may still come; nobody can speak to it any more."""
        self._ended = False
        self._requests = itertools.count(1)
        self._writing = anyio.Lock()
        self._noise = 0
        self._asked: dict[str, PermissionAsked] = {}
        self._refusals: asyncio.Queue[bytes] = asyncio.Queue(MAX_ASKED)
        self.on_permission: Callable[[PermissionAsked], object] | None = None
        """Told of a call that waits for `answer_permission`, because a rule says to ask about it.
        What no rule covers is refused at once, and all of it while there is nobody to be told. Set
        it after `bind`, which takes it away."""
        self.allow_rules: tuple[str, ...] = ()
        self.ask_rules: tuple[str, ...] = ()
        """What the author wrote, to tell the one from the other. Set them after `bind`, too."""
        self.on_withdrawn: Callable[[PermissionAsked], object] | None = None
        """Told that a call does not wait any more, though it was not answered."""
        self.last_text = ""
        """What the agent said last."""
        self.ready = Ready()
        self.at_work = asyncio.Event()
        """The CLI has begun a turn: from now on there is something to interrupt."""
        self.denied: dict[str, None] = {}
        """Tools that were refused to the agent, each once, in order."""
        self.tools_failed = False
        """A tool returned an error."""
        self._stderr = b""
        self.wrote_too_much = False
        """It was not listened to any longer."""

    def bind(self, record: Record, output_bytes: int = OUTPUT_BYTES) -> None:
        """From now on it is this run's."""
        self._give_up_asked()
        self.on_permission = self.on_withdrawn = None
        self.allow_rules = self.ask_rules = ()
        self._record = record
        self._output_left = output_bytes
        self._noise = 0
        self.last_text = ""
        self.at_work = asyncio.Event()
        self.denied = {}
        self.tools_failed = False
        self.ready = Ready()

    async def initialize(self) -> None:
        """The first thing to say; returns when the CLI can take messages. CliEnded if it cannot."""
        request = f"begin-{next(self._requests)}"
        done = self._controls[request] = asyncio.Event()
        await self._write(claude_input.initialize(request))
        await done.wait()
        if self._ended:
            raise CliEnded

    async def rehearse(self) -> None:
        """Have the CLI do a turn that comes to nothing. CliEnded if it does not live through it."""
        self._open_turns += 1
        await self._write(claude_input.rehearsal())
        await self.turn()

    @property
    def at_rest(self) -> bool:
        """The CLI lives, and no turn is under way: it can be spoken to by another run."""
        return (
            not self._exited and not self._ended and self._open_turns == 0 and self._turns.empty()
        )

    @property
    def in_turn(self) -> bool:
        """Something was said that has no verdict yet."""
        return self._open_turns > 0

    async def say(self, text: str) -> None:
        """One more user message; it begins a turn."""
        self._open_turns += 1
        await self._write(claude_input.user_message(text))

    async def interrupt(self) -> None:
        """Stop the turn that is under way; it ends as interrupted."""
        await self._write(claude_input.interrupt(f"stop-{next(self._requests)}"))

    async def answer_permission(
        self,
        request_id: str,
        allow: bool,
        input: Mapping[str, object] | None = None,  # noqa: A002 as everybody calls it
        message: str = "",
    ) -> bool:
        """Let a call run, with its own input or another, or refuse it with a message to the agent.

        False if the call does not wait, or has its answer; CliEnded if nobody is there to hear it.
        """
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return False
        if allow:
            line = claude_input.allow(request_id, asked.input if input is None else input)
        else:
            line = claude_input.deny(request_id, message or NOBODY_ALLOWS)
        await self._write(line)
        return True

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
        """Read everything the CLI says until it says no more. Raises nothing.

        However that ends, whoever waits for the CLI is told.
        """
        try:
            async with anyio.create_task_group() as answering:
                answering.start_soon(self._send_refusals)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_stdout, tasks.cancel_scope)
                    tasks.start_soon(self._read_stderr, tasks.cancel_scope)
                    with suppress(WireLost):
                        await self._process.wait()
                    self._exited = True
                    # What it left behind may hold its output open; nobody waits for that.
                    tasks.cancel_scope.deadline = anyio.current_time() + SETTLE_SECONDS
                answering.cancel_scope.cancel()
        except Exception:
            log.exception("a CLI is not listened to any more")
        finally:
            self._ended = True
            self._turns.put_nowait(None)
            for waited_for in self._controls.values():
                waited_for.set()
            with suppress(Exception):  # whoever would be told may have gone
                self._give_up_asked()

    def _count(self, data: bytes, scope: anyio.CancelScope) -> bool:
        """Whether there is still something to say; if not, all is over."""
        self._output_left -= len(data)
        if self._output_left < 0:
            self.wrote_too_much = True
            scope.cancel()
        return not self.wrote_too_much

    async def _read_stdout(self, scope: anyio.CancelScope) -> None:
        with suppress(OSError, WireLost):  # whoever waits for a turn is told at the end of it all
            while data := await self._process.stdout.read(READ_BYTES):
                if not self._count(data, scope):
                    return
                self._hear(self._parser.feed(data))
                await anyio.lowlevel.checkpoint()  # a flood must not keep others from their turn
            self._hear(self._parser.finish())

    async def _send_refusals(self) -> None:
        # By themselves: whoever reads the CLI must not wait for it to read us.
        with suppress(CliEnded):
            while True:
                await self._write(await self._refusals.get())

    async def _read_stderr(self, scope: anyio.CancelScope) -> None:
        with suppress(OSError, WireLost):
            while data := await self._process.stderr.read():
                if not self._count(data, scope):
                    return
                self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    def last_words(self) -> str:
        """The end of what the CLI said on stderr, without secrets."""
        said = self._stderr.decode(errors="replace").strip()
        # First this, then the cut: half a secret is not recognised.
        clean = said if self._record is None else self._record.clean(said)
        return clean[-LAST_WORDS:]

    def _hear(self, signs: list[Sign]) -> None:
        for sign in signs:
            if isinstance(sign, TurnEnded):
                self._open_turns = max(0, self._open_turns - 1)
                self._give_up_asked()
                self._on_denied(sign)
                if self._turns.qsize() < MAX_TURNS:
                    self._turns.put_nowait(sign)
            elif isinstance(sign, ControlAnswered):
                if sign.request_id in self._controls:
                    self._controls.pop(sign.request_id).set()
            elif isinstance(sign, PermissionAsked):
                self._on_asked(sign)
            elif isinstance(sign, PermissionWithdrawn):
                self._withdraw(sign.request_id)
            elif isinstance(sign, ControlAsked):
                self._refuse(claude_input.refuse(sign.request_id, "not supported"))
            elif isinstance(sign, Ready):
                self._on_ready(sign)
            elif isinstance(sign, Said):
                self.last_text = sign.text
                self._note("text", sign.text)
            elif isinstance(sign, ToolCalled):
                line = f"{sign.tool} {_one_line(sign.input)}"
                self._note("tool_call", line, id=sign.id, tool=sign.tool, input=sign.input)
            elif isinstance(sign, ToolReturned):
                self.tools_failed |= sign.is_error
                self._note("tool_result", sign.text, id=sign.id, is_error=sign.is_error)
            elif isinstance(sign, Retrying):
                self._note("api_retry", sign.error, attempt=sign.attempt, status=sign.status)
            elif sign.text:
                self._noise += 1
                if self._noise <= NOISE_LINES:
                    self._note("warning", f"not understood: {sign.text}")

    def _on_denied(self, sign: TurnEnded) -> None:
        for denial in sign.denials:
            if len(self.denied) >= MAX_DENIED:
                return
            if len(denial.tool) <= TOOL_CHARS:
                self.denied[denial.tool] = None

    def _on_asked(self, sign: PermissionAsked) -> None:
        if sign.request_id in self._asked:
            return  # it has been told
        if self.on_permission is None:
            self._refuse(claude_input.deny(sign.request_id, NOBODY_ALLOWS))
        elif not is_asked_about(sign, self.allow_rules, self.ask_rules):
            why = ONE_BY_ONE if sign.why == "parts" else NOBODY_ALLOWS
            self._refuse(claude_input.deny(sign.request_id, why))
        elif not sign.is_whole:
            self._refuse(claude_input.deny(sign.request_id, TOO_LARGE))
        elif len(self._asked) >= MAX_ASKED:
            self._refuse(claude_input.deny(sign.request_id, TOO_MANY_ASKED))
        else:
            self._asked[sign.request_id] = sign
            self.on_permission(sign)

    def _withdraw(self, request_id: str) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is not None and self.on_withdrawn is not None:
            self.on_withdrawn(asked)

    def _give_up_asked(self) -> None:
        """The turn that they belong to is over. What may wait all the same is refused."""
        for request_id in list(self._asked):
            self._withdraw(request_id)
            self._refuse(claude_input.deny(request_id, TOO_LATE))

    def _refuse(self, line: bytes) -> None:
        with suppress(asyncio.QueueFull):  # only somebody who makes requests up asks for so many
            self._refusals.put_nowait(line)

    def _note(self, kind: EventKind, text: str, **data: object) -> None:
        if self._record is not None:
            self._record.note(kind, text, **data)

    def _on_ready(self, sign: Ready) -> None:
        first = not self.ready.session_id
        self.at_work.set()
        self.ready = sign
        if not first:
            return
        self._note(
            "ready",
            f"{sign.model}, tools: {', '.join(sign.tools) or 'none'}",
            session_id=sign.session_id,
            model=sign.model,
            tools=sign.tools,
            mcp_servers=sign.mcp_servers,
        )
        for name, status in self.failed_servers.items():
            self._note("mcp_failed", f"MCP server {name}: {status}", name=name, status=status)

    @property
    def failed_servers(self) -> dict[str, str]:
        return {n: s for n, s in self.ready.mcp_servers.items() if s != "connected"}


def _one_line(value: dict[str, object]) -> str:
    """The most telling part of a tool's input."""
    for key in ("command", "file_path", "pattern", "url", "path"):
        if key in value:
            return " ".join(str(value[key]).split())
    return " ".join(str(value).split())
