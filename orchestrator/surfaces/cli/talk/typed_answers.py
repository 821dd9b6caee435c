"""What the run of this command asks, answered by what the operator types at the terminal.

What is shown comes from a stranger, and a word typed before it was shown counts for nothing.
"""

from __future__ import annotations

import os
import sys
import termios
from typing import TYPE_CHECKING

import anyio

from orchestrator.surfaces.cli.talk.asked import input_line
from orchestrator.surfaces.text import command, named, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.domain.events import Event
    from orchestrator.engine.tasks.task_book import TaskBook

TYPED_BYTES = 64 * 1024
"""Of an answer that is typed."""

TYPED_SECONDS = 0.3
"""How often a question is looked at while nothing is typed: it may be answered elsewhere."""

YES = ("y", "yes")
NO = ("n", "no")


class TypedAnswers:
    """The questions of one run, put to the operator, if our terminal is one that types to us."""

    def __init__(self, book: TaskBook, run_id: str, say: Callable[[str], None]) -> None:
        self._book = book
        self._run_id = run_id
        self._say = say
        self._open: dict[str, Event] = {}
        """What waits, by its id, in the order it was asked."""
        self._asked = anyio.Event()
        self._terminal = sys.stdin.isatty() and sys.stderr.isatty()

    def _can_type(self) -> bool:
        """Whether the terminal types to us: it would stop a job in the background for reading."""
        try:
            return self._terminal and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
        except OSError:  # a terminal that is not ours to be stopped by
            return self._terminal

    def hear(self, event: Event) -> None:
        """Take note of an event, and say what can be done about it."""
        which = str(event.data.get("message_id") or event.data.get("call_id") or "")
        if event.kind in ("answered", "approval_decided"):
            self._open.pop(which, None)
        elif event.kind in ("asked", "approval_asked"):
            self._open[which] = event
            if len(self._open) == 1 or not self._can_type():
                self._put(which, event)
            self._asked.set()
            self._asked = anyio.Event()

    async def read(self) -> None:
        """Answer with what is typed, one after the other, for ever; nothing without a terminal."""
        while self._terminal:
            asked = self._asked
            if not self._open:
                await asked.wait()
                continue
            which, event = next(iter(self._open.items()))
            line = await self._typed(which)
            if line is not None:
                await self._answer(which, event, line.strip())
            if which not in self._open and self._open:
                self._put(*next(iter(self._open.items())))

    def _put(self, which: str, event: Event) -> None:
        """Say what is to be answered now, and how."""
        if self._can_type():
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed was not meant for this
        if event.kind == "asked":
            default = str(event.data.get("default_answer", ""))
            self._say(f"without an answer, it goes by this: {one_line(default)}")
            here = f"type the answer to {which} here, or " * self._can_type()
            self._say(f"{here}`{command('reply', self._run_id, which, 'ANSWER')}`")
        else:
            here = f"y or n to {named(which)}, or " * self._can_type()
            self._say(input_line(event.data.get("input"), event.data.get("input_chars")))
            self._say(f"{here}`{command('approve', self._run_id, which)}`, or reject")

    async def _typed(self, which: str) -> str | None:
        """A line, or None if it came too late or will not come."""
        while which in self._open:
            if not self._can_type():
                await anyio.sleep(TYPED_SECONDS)
                continue
            with anyio.move_on_after(TYPED_SECONDS):
                await anyio.wait_readable(sys.stdin)
                if not self._can_type():
                    continue
                data = os.read(sys.stdin.fileno(), TYPED_BYTES)
                self._terminal = bool(data)
                return data.decode(errors="replace") if data else None
        return None

    async def _answer(self, which: str, event: Event, line: str) -> None:
        from orchestrator.errors import RunRefused

        try:
            if event.kind == "asked" and not line:
                self._say("type an answer and press Enter")
                return
            if event.kind == "asked":
                await self._book.reply(self._run_id, which, line, None)
            elif line.lower() in YES:
                await self._book.decide(self._run_id, None, approve=[which])
            elif line.lower() in NO:
                await self._book.decide(self._run_id, None, reject=[which])
            else:
                self._say("y or n")
                return
        except RunRefused as exc:
            self._say(str(exc))
        self._open.pop(which, None)
