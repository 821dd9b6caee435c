"""One CLI process and what is said to and by it: bytes in, turns out."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

import anyio
import anyio.lowlevel

from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import MIB, Launch
from orchestrator.domain.events import EventKind
from orchestrator.engine.record import Record
from orchestrator.engine.unfinished import UnfinishedText
from orchestrator.errors import WireLost
from orchestrator.runners.contract import MAX_UNANSWERED, Runner
from orchestrator.runners.signs import (
    UNKNOWN,
    CannotBegin,
    Listening,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)
from orchestrator.wire.host import Process

log = logging.getLogger(__name__)

READY_SECONDS = 120.0
"""For a CLI to start, on a machine under load."""

STDOUT_CHUNK_BYTES = 16 * 1024
"""What is read at once."""

STDOUT_LINES = 32
"""What is parsed before other tasks get the event loop."""

HEARING_SECONDS = 0.002
"""What to understand some output usually takes less than; it may take an agent's whole time to
write lines that take us long, and all runs wait for that."""

HEARING_SHARE = 0.2
"""The part of the event loop's time that the output of one CLI may take, if it takes longer."""

CLI_STDERR_BYTES = 16 * 1024
"""How much of the end of the CLI's stderr is kept."""

LAST_WORDS = 500
"""How many characters of it an error message shows."""

LAST_WORDS_SECONDS = 2.0
"""After the CLI has exited, for the rest of its output to arrive."""

NOISE_LINES = 20
"""Unparseable output lines noted per run; any process in the container can print more."""

OUTPUT_BYTES = 256 * MIB
"""What a CLI may write before a run is bound to it; then agent.md decides."""

MAX_UNREAD_TURNS = 16
"""Verdicts that no run has waited for yet; any process in the container can make them up."""

MAX_DENIED = 100
"""Names of denied tools that are kept; any process in the container can make them up."""

NOBODY_ALLOWS = "no rule allows this call, and it cannot be approved; do without it"

TOO_LARGE = "the input of this call is too large to be looked at; ask for less at once"

TOO_MANY_ASKED = "too many calls wait for approval already; do without this one"

TOO_LATE = "no approval came while the turn lasted"


class CliEnded(Exception):
    """The CLI's process ended, or its container, before the turn did."""


class Approver(Protocol):
    """Decides tool calls that agent.md says to ask about, for one run."""

    @property
    def agent(self) -> AgentSpec:
        """Whose rules say what may run, and what has to be asked about."""
        ...

    def ask(self, asked: PermissionAsked) -> None:
        """A call waits: have `answer_permission` called for it, at some time."""
        ...

    def withdraw(self, asked: PermissionAsked) -> None:
        """The call does not wait any more, though it was not answered."""
        ...


@asynccontextmanager
async def open_cli(
    container: Container,
    launch: Launch,
    runner: Runner,
    *,
    ready: bool = False,
    rehearse: bool = False,
) -> AsyncIterator[Conversation]:
    """Start the CLI in a container and read it; leaving the block ends the CLI.

    With `ready`, wait until it can take messages, and with `rehearse` have it do a turn that comes
    to nothing, if it has that ability; WireLost if it does not get that far.
    """
    async with container.spawn(launch) as process:
        conversation = Conversation(process, runner, launch)
        pump = asyncio.create_task(conversation.pump())
        try:
            if ready:
                await _get_ready(container, conversation, rehearse)
            yield conversation
        finally:
            pump.cancel()
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
                await pump


async def _get_ready(container: Container, conversation: Conversation, rehearse: bool) -> None:
    try:
        with anyio.fail_after(READY_SECONDS):
            await conversation.initialize()
            if rehearse:
                await conversation.rehearse()
    except (TimeoutError, CliEnded) as exc:
        said = conversation.last_words() or "no last words"
        raise WireLost(f"the CLI in {container.name} did not get ready: {said}") from exc


class Conversation:
    """Reads a CLI for as long as `pump` runs; one turn at a time, of one run after another.

    What the CLI says is noted in the record of the run that it is bound to; before that, nowhere.
    """

    def __init__(self, process: Process, runner: Runner, launch: Launch) -> None:
        self.process = process
        self._runner = runner
        self._dialogue = runner.dialogue(launch)
        self._output_left = OUTPUT_BYTES
        self._record: Record | None = None
        self._approver: Approver | None = None
        self._listening = asyncio.Event()
        self._refused = ""
        """Why the CLI takes no messages."""
        self.own_id = ""
        """Of what is said, if the CLI gave it: by that it can be told to take it up again."""
        self._turns: asyncio.Queue[TurnEnded | None] = asyncio.Queue()
        self._open_turns = 0
        self._unread: set[str] = set()
        """Messages that the CLI has not taken up."""
        self._taken = 0
        """Those that it has, in this turn."""
        self.announces = False
        """The CLI tells when it takes up a message, so that one can be said in a turn, too."""
        self._exited = False
        """The process has ended. The rest of its output may still arrive; it reads no more."""
        self._ended = False
        self._writing = anyio.Lock()
        self._noise = 0
        self._asked: dict[str, PermissionAsked] = {}
        self._replies: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNANSWERED)
        self._last_said = ""
        self._unfinished = UnfinishedText()
        self.ready = Ready()
        self.at_work = asyncio.Event()
        """The CLI has begun a turn: from now on there is something to interrupt."""
        self.denied: dict[str, None] = {}
        """Tools that were refused to the agent, each once, in order."""
        self.tools_failed = False
        """A tool returned an error."""
        self._stderr = b""
        self.wrote_too_much = False
        """The CLI has used up its output; what it writes is not read any more."""

    def bind(self, record: Record, output_bytes: int = OUTPUT_BYTES) -> None:
        """Begin a run: from now on its record gets what the CLI says, which may write so much."""
        self._give_up_asked()
        self._approver = None
        self._record = record
        self._output_left = output_bytes
        self._noise = 0
        self._unread.clear()
        self._last_said = ""
        self._unfinished = UnfinishedText()
        self.at_work = asyncio.Event()
        self.denied = {}
        self.tools_failed = False
        self.ready = Ready()

    @contextmanager
    def approved_by(self, approver: Approver) -> Iterator[None]:
        """In this block, put calls that a rule says to ask about to the approver.

        What no rule covers is refused at once, and outside such a block every call that is asked
        about.
        """
        self._approver = approver
        try:
            yield
        finally:
            self._approver = None

    async def initialize(self) -> None:
        """The first thing to say; returns when the CLI can take messages. CliEnded if it cannot."""
        await self._write(self._dialogue.begin())
        await self._listening.wait()
        if self._ended or self._refused:
            raise CliEnded

    async def rehearse(self) -> None:
        """Have the CLI do a turn that comes to nothing, if it can. CliEnded if it ends by that."""
        if not self._runner.abilities.rehearses:
            return
        self._open_turns += 1
        await self._write(self._dialogue.rehearse())
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

    async def say(self, text: str, *, awaited: bool = True) -> None:
        """One more user message; it begins a turn, or is read between two steps of this one.

        If it is awaited, a turn that ends before the CLI has taken it up says so.
        """
        self._open_turns += 1
        message_id = str(uuid.uuid4()) if awaited else ""
        if awaited:
            self._unread.add(message_id)
        await self._write(self._dialogue.say(text, message_id))

    async def interrupt(self) -> None:
        """Stop the turn that is under way; it ends as interrupted."""
        await self._write(self._dialogue.interrupt())

    async def stop(self, seconds: float) -> None:
        """Stop what is under way and drop its verdict: no run waits for it any more.
        In so many seconds the CLI is at rest, or will not be. Raises nothing.
        """
        with anyio.move_on_after(seconds), suppress(CliEnded):
            if self.in_turn:
                await self.interrupt()
            while not self.at_rest:
                await self.turn()

    async def answer_permission(
        self,
        request_id: str,
        allow: bool,
        input: Mapping[str, object] | None = None,  # noqa: A002 as everybody calls it
        message: str = "",
    ) -> bool:
        """Let a call run, with its own input or another, or refuse it with a message to the agent.

        False if the call does not wait, or has its answer; CliEnded if the CLI has gone.
        """
        asked = self._asked.pop(request_id, None)
        if asked is None:
            return False
        if allow:
            line = self._dialogue.allow(asked, asked.input if input is None else input)
        else:
            line = self._refusal(asked, message or NOBODY_ALLOWS)
        await self._write(line)
        return True

    async def _write(self, line: bytes) -> None:
        try:
            async with self._writing:  # whole lines: the nudge may come while a long one is sent
                await self.process.stdin.write(line)
        except (OSError, WireLost) as exc:
            raise CliEnded from exc

    async def turn(self) -> TurnEnded:
        """Wait for the turn's verdict; CliEnded when there will be none."""
        ended = await self._turns.get()
        if ended is None:
            self._turns.put_nowait(None)  # for the next call of this
            raise CliEnded
        return ended

    async def pump(self) -> None:
        """Read everything the CLI says until it says no more. Raises nothing.

        However that ends, `turn` and `initialize` raise CliEnded from then on.
        """
        try:
            async with anyio.create_task_group() as answering:
                answering.start_soon(self._send_replies)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._read_stdout, tasks.cancel_scope)
                    tasks.start_soon(self._read_stderr, tasks.cancel_scope)
                    with suppress(WireLost):
                        await self.process.wait()
                    self._exited = True
                    # A process that it left behind may hold its output open for ever.
                    tasks.cancel_scope.deadline = anyio.current_time() + LAST_WORDS_SECONDS
                answering.cancel_scope.cancel()
        except Exception:
            log.exception("a CLI is not listened to any more")
        finally:
            self._ended = True
            self._turns.put_nowait(None)
            self._listening.set()
            with suppress(Exception):  # the approver may have gone with its run
                self._give_up_asked()

    def _count(self, data: bytes, scope: anyio.CancelScope) -> bool:
        """Count output; False, and the reading ends, once it is more than the CLI may write."""
        self._output_left -= len(data)
        if self._output_left < 0:
            self.wrote_too_much = True
            scope.cancel()
        return not self.wrote_too_much

    async def _read_stdout(self, scope: anyio.CancelScope) -> None:
        with suppress(OSError, WireLost):  # `pump` tells whoever waits for a turn
            while data := await self.process.stdout.read(STDOUT_CHUNK_BYTES):
                if not self._count(data, scope):
                    return
                for lines in _lines(data):
                    began = time.perf_counter()
                    self._hear(self._dialogue.hear(lines))
                    await _give_way(time.perf_counter() - began)
            self._hear(self._dialogue.hear_end())

    async def _send_replies(self) -> None:
        # In a task of its own: the CLI may not read its stdin before we have read its stdout.
        with suppress(CliEnded):
            while True:
                await self._write(await self._replies.get())

    async def _read_stderr(self, scope: anyio.CancelScope) -> None:
        with suppress(OSError, WireLost):
            while data := await self.process.stderr.read():
                if not self._count(data, scope):
                    return
                self._stderr = (self._stderr + data)[-CLI_STDERR_BYTES:]

    @property
    def last_text(self) -> str:
        """What the agent said last, whole or not."""
        unfinished = "" if self._record is None else self._unfinished.text(self._record)
        return unfinished or self._last_said

    def tell_unfinished(self) -> None:
        """Have the record know what the agent has said of what it is saying."""
        if self._record is not None:
            self._unfinished.tell(self._record)

    def last_words(self) -> str:
        """The end of what the CLI said on stderr, without secrets."""
        said = self._stderr.decode(errors="replace").strip()
        said = f"{said}\n{self._refused}".strip()
        # First this, then the cut: half a secret is not recognised.
        clean = said if self._record is None else self._record.clean(said)
        return clean[-LAST_WORDS:]

    def _hear(self, signs: list[Sign]) -> None:
        for sign in signs:
            if isinstance(sign, TurnEnded):
                self._on_ended(sign)
            elif isinstance(sign, TakenUp):
                if sign.message_id in self._unread:
                    self._unread.discard(sign.message_id)
                    self._taken += 1
                    self.announces = True
            elif isinstance(sign, Listening):
                self.own_id = sign.conversation
                self._listening.set()
            elif isinstance(sign, CannotBegin):
                self._refused = sign.why or "it takes no messages"
                self._listening.set()
            elif isinstance(sign, PermissionAsked):
                self._on_asked(sign)
            elif isinstance(sign, PermissionWithdrawn):
                self._withdraw(sign.request_id)
            elif isinstance(sign, Ready):
                self._on_ready(sign)
            elif isinstance(sign, Said):
                self._unfinished.end()
                self._last_said = sign.text
                self._note("text", sign.text)
            elif isinstance(sign, Saying):
                self._unfinished.hear(sign.text, begins=sign.begins)
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
        if replies := self._dialogue.replies():
            self._reply(replies)

    def _on_ended(self, sign: TurnEnded) -> None:
        # All that was taken up since the turn before was part of this one.
        self._open_turns = max(0, self._open_turns - max(1, self._taken))
        self._taken = 0
        self._give_up_asked()
        for denial in sign.denials:
            self._on_denied(denial.tool)
        if self._turns.qsize() < MAX_UNREAD_TURNS:
            more = self.announces and bool(self._unread)
            self._turns.put_nowait(sign.model_copy(update={"more": more}))

    def _on_denied(self, tool: str) -> None:
        if len(self.denied) < MAX_DENIED:
            self.denied[tool] = None

    def _on_asked(self, sign: PermissionAsked) -> None:
        if sign.request_id in self._asked:
            return  # the approver knows
        approver = self._approver
        if approver is None:
            self._reply(self._refusal(sign, NOBODY_ALLOWS))
            return
        decision = self._runner.decide(approver.agent, sign)
        if decision.verdict == "deny":
            self._reply(self._refusal(sign, decision.why or NOBODY_ALLOWS))
        elif not sign.is_whole:
            self._reply(self._refusal(sign, TOO_LARGE))
        elif decision.verdict == "allow":
            self._reply(self._dialogue.allow(sign, sign.input))
        elif len(self._asked) >= MAX_UNANSWERED:
            self._reply(self._refusal(sign, TOO_MANY_ASKED))
        else:
            self._asked[sign.request_id] = sign
            approver.ask(sign)

    def _refusal(self, asked: PermissionAsked, why: str) -> bytes:
        if not self._runner.abilities.decides_by_itself:  # else its verdict tells
            self._on_denied(asked.tool)
        return self._dialogue.deny(asked, why)

    def _withdraw(self, request_id: str) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is not None and self._approver is not None:
            self._approver.withdraw(asked)

    def _give_up_asked(self) -> None:
        """The turn that they belong to is over. What may wait all the same is refused."""
        for request_id, asked in list(self._asked.items()):
            self._withdraw(request_id)
            self._reply(self._dialogue.deny(asked, TOO_LATE))

    def _reply(self, line: bytes) -> None:
        with suppress(asyncio.QueueFull):  # the CLI does not ask so much; these are made up
            self._replies.put_nowait(line)

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
        fine = ("connected", UNKNOWN)
        return {n: s for n, s in self.ready.mcp_servers.items() if s not in fine}


async def _give_way(took: float) -> None:
    """Let other tasks have the event loop: for a moment, or for as long as is their share."""
    if took < HEARING_SECONDS:
        await anyio.lowlevel.checkpoint()
    else:
        await anyio.sleep(took * (1 / HEARING_SHARE - 1))


def _lines(data: bytes) -> Iterator[bytes]:
    """The data in parts of few lines."""
    if data.count(b"\n") <= STDOUT_LINES:
        yield data
        return
    lines = data.split(b"\n")
    for at in range(0, len(lines), STDOUT_LINES):
        some = b"\n".join(lines[at : at + STDOUT_LINES])
        yield some if at + STDOUT_LINES >= len(lines) else some + b"\n"


def _one_line(value: dict[str, object]) -> str:
    """The most telling part of a tool's input."""
    for key in ("command", "file_path", "pattern", "url", "path"):
        if key in value:
            return " ".join(str(value[key]).split())
    return json.dumps(value, ensure_ascii=False, default=str)
