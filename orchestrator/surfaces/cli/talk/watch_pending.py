"""`orchestrator pending --watch`: what waits, one after the other, decided with a key.

What is shown comes from a stranger. A key counts for nothing that was not shown, whole, for a
moment before it was pressed: what waits can change under a finger.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import anyio.to_thread

from orchestrator.surfaces.cli.talk.asked import (
    NOTHING_WAITS,
    WhatWaits,
    indented,
    left_text,
    what_waits,
    when_it_goes_on,
)
from orchestrator.surfaces.text import named, one_line, visible, write

if TYPE_CHECKING:
    from orchestrator.domain.exchange import Approval, Question
    from orchestrator.engine.tasks.task_book import TaskBook
    from orchestrator.settings import Settings
    from orchestrator.surfaces.cli.talk.alerts import Alerts

LOOK_FOR_KEYS_SECONDS = 0.3
"""How often what waits is looked at while no key is pressed."""

SEEN_SECONDS = 0.4
"""For how long something has to be shown before a key can decide it."""

WATCHED_LINES = 14
"""Of a tool call's input at first; v shows all of it."""

KEY_BYTES = 4096
"""That are read at once; of several keys only the first one counts."""

TYPED_LINE_BYTES = 64 * 1024
"""Of a line that is typed."""

CALL_KEYS = "a approve   r reject   e edit   n next   q quit"
QUESTION_KEYS = "a answer   n next   q quit"


class WaitingItem(NamedTuple):
    """One thing that waits."""

    run_id: str
    agent: str
    approval: Approval | None = None
    question: Question | None = None

    @property
    def name(self) -> tuple[str, str]:
        """What tells it from all others."""
        if self.approval is not None:
            return self.run_id, self.approval.call_id
        return self.run_id, self.question.message_id if self.question is not None else ""

    @property
    def asked(self) -> float:
        one = self.approval or self.question
        return one.asked if one is not None else 0.0


def items_of(waiting: WhatWaits) -> list[WaitingItem]:
    """All that waits, what was asked first in front."""
    found = [
        WaitingItem(each.run_id, waiting.agents[each.run_id], question=each)
        for each in waiting.questions
    ]
    found += [
        WaitingItem(each.run_id, waiting.agents[each.run_id], approval=each)
        for each in waiting.approvals
    ]
    return sorted(found, key=lambda item: item.asked)


class ShownItem(NamedTuple):
    """What a person sees of an item."""

    lines: tuple[str, ...]
    whole: bool
    """All of what would be allowed is in it."""


def shown_item(
    item: WaitingItem,
    *,
    place: str = "",
    now: float,
    edited: dict[str, object] | None = None,
    whole: bool = False,
) -> ShownItem:
    """An item as it is put to the operator. Pure."""
    head = f"{place}{item.run_id}: {item.agent}"
    if item.question is not None:
        left = left_text(item.question.deadline, now, "answers itself")
        lines = [f"{head} asks ({left})", *indented(item.question.question)]
        if item.question.deadline:
            lines += ["  without an answer, it goes by this:"]
            lines += indented(item.question.default_answer)
        return ShownItem((*lines, f"  {QUESTION_KEYS}"), whole=True)
    if item.approval is None:
        return ShownItem((), whole=True)
    left = left_text(item.approval.deadline, now, "rejected")
    given = edited if edited is not None else item.approval.input
    text = list(indented(json.dumps(given, indent=2, ensure_ascii=False)))
    cut = len(text) - WATCHED_LINES if not whole and len(text) > WATCHED_LINES else 0
    lines = [f"{head} wants to use {named(item.approval.tool)} ({left})"]
    lines += ["  as you have edited it:"] if edited is not None else []
    lines += text[:WATCHED_LINES] if cut else text
    keys = f"v the other {cut} lines   {CALL_KEYS}" if cut else CALL_KEYS
    return ShownItem((*lines, f"  {keys}"), whole=not cut)


async def decide_with_keys(settings: Settings, *, all_: bool, alerts: Alerts) -> None:
    """Show what waits, and do what the operator says, until q, Ctrl-C or a signal."""
    from orchestrator.state import open_book

    with _keys() as keyboard:
        async with open_book(settings) as book, anyio.create_task_group() as tasks:
            watch = _Watch(book, None if all_ else settings.project, keyboard, alerts)
            tasks.start_soon(_cancel_on_signal, tasks.cancel_scope)
            await watch.run()
            tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGHUP) as signals:
        async for _ in signals:
            scope.cancel()


class _Keyboard:
    """A terminal that gives keys as they are pressed; lines when they are asked for."""

    def __init__(self, fd: int, usual: Any) -> None:
        self._fd = fd
        self._usual = usual

    def forget(self) -> None:
        """What was typed was not meant for what comes now."""
        termios.tcflush(self._fd, termios.TCIFLUSH)

    async def key(self) -> str | None:
        """The next key; "" if none came in a while, None if none will come."""
        with anyio.move_on_after(LOOK_FOR_KEYS_SECONDS):
            await anyio.wait_readable(self._fd)
            data = os.read(self._fd, KEY_BYTES)
            return data.decode(errors="replace")[:1] if data else None
        return ""

    async def line(self, prompt: str) -> str:
        """What is typed up to Enter."""
        with self.usual():
            sys.stdout.write(prompt)
            sys.stdout.flush()
            await anyio.wait_readable(self._fd)
            return os.read(self._fd, TYPED_LINE_BYTES).decode(errors="replace").strip()

    @contextmanager
    def usual(self) -> Iterator[None]:
        """The terminal as other programs want it."""
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._usual)
        try:
            yield
        finally:
            tty.setcbreak(self._fd)


@contextmanager
def _keys() -> Iterator[_Keyboard]:
    fd = sys.stdin.fileno()
    usual = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield _Keyboard(fd, usual)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, usual)


class _Watch:
    """What is shown at this moment, and what has been made of it."""

    def __init__(
        self, book: TaskBook, project: str | None, keyboard: _Keyboard, alerts: Alerts
    ) -> None:
        self._book = book
        self._project = project
        self._keyboard = keyboard
        self._alerts = alerts
        self._items: list[WaitingItem] = []
        self._current: WaitingItem | None = None
        self._shown = ShownItem((), whole=True)
        self._shown_at = 0.0
        self._edited: dict[str, object] | None = None
        self._known: set[tuple[str, str]] = set()
        """What has been seen to wait: of anything else a person is told."""
        self._idle = False
        """It was said that nothing waits."""

    async def run(self) -> None:
        first = True
        while True:
            await self._look(first=first)
            first = False
            key = await self._keyboard.key()
            if key is None or key in ("q", "\x04"):
                return
            if key and self._current is not None:
                await self._obey(key, self._current)

    async def _look(self, *, first: bool) -> None:
        """Find out what waits; show what is to be decided now, if that is another thing."""
        await self._book.settle_now_and_then()
        self._items = items_of(await what_waits(self._book, self._project))
        names = {item.name for item in self._items}
        new = [item for item in self._items if item.name not in self._known]
        self._known = names
        if new and not first:
            asks = "asks something" if new[0].question is not None else "waits for your approval"
            await anyio.to_thread.run_sync(self._alerts.say, f"{new[0].agent} {asks}")
        was = self._current
        if was is not None and was.name in names:
            return
        if was is not None:
            _say(f"  {was.run_id} waits no more")
        self._current = None
        if self._items:
            self._idle = False
            self._put(self._items[0])
        elif not self._idle:
            self._idle = True
            _say(f"{NOTHING_WAITS}; q quits")

    def _put(self, item: WaitingItem, *, whole: bool = False) -> None:
        """Show an item, from now on the one that keys are about."""
        if self._current is None or item.name != self._current.name:
            self._edited = None
        self._current = item
        at = [each.name for each in self._items].index(item.name) + 1
        place = f"[{at} of {len(self._items)}] " if len(self._items) > 1 else ""
        self._shown = shown_item(
            item, place=place, now=time.time(), edited=self._edited, whole=whole
        )
        self._keyboard.forget()
        for line in self._shown.lines:
            _say(line)
        self._shown_at = time.monotonic()

    async def _obey(self, key: str, item: WaitingItem) -> None:
        if key == "n":
            names = [each.name for each in self._items]
            self._put(self._items[(names.index(item.name) + 1) % len(names)])
        elif key == "v":
            self._put(item, whole=True)
        elif key in "are" and time.monotonic() - self._shown_at < SEEN_SECONDS:
            _say("  that was fast: look at it, then press the key again")
        elif key == "a" and not self._shown.whole:
            _say("  not all of it is on the screen: press v first")
        elif key in "are":
            await self._decide(key, item)

    async def _decide(self, key: str, item: WaitingItem) -> None:
        from orchestrator.errors import OrchestratorError

        try:
            if item.question is not None:
                done = await self._answer(item) if key == "a" else False
            elif key == "e":
                await self._edit(item)
                done = False
            else:
                done = await self._judge(item, allow=key == "a")
        except OrchestratorError as exc:  # it was decided elsewhere, or cannot be kept
            _say(f"  {exc}")
            done = True
        if done:
            self._current = None

    async def _answer(self, item: WaitingItem) -> bool:
        if item.question is None:
            return False
        text = await self._keyboard.line("  answer: ")
        if not text:
            self._put(item)
            return False
        await self._book.reply(item.run_id, item.question.message_id, text, None)
        _say(f"  answered: {one_line(text)}")
        await self._tell_later(item)
        return True

    async def _judge(self, item: WaitingItem, *, allow: bool) -> bool:
        if item.approval is None:
            return False
        call = item.approval.call_id
        if allow:
            inputs = {call: self._edited} if self._edited is not None else None
            await self._book.decide(item.run_id, None, approve=[call], inputs=inputs)
        else:
            why = await self._keyboard.line("  why not (Enter says nothing): ")
            await self._book.decide(item.run_id, None, reject=[call], message=why)
        _say(f"  {'approved' if allow else 'rejected'}: {named(item.approval.tool)}")
        await self._tell_later(item)
        return True

    async def _edit(self, item: WaitingItem) -> None:
        """Have the operator write what runs instead; it runs when that is approved."""
        if item.approval is None:
            return
        before = self._edited if self._edited is not None else item.approval.input
        with self._keyboard.usual():
            text = await anyio.to_thread.run_sync(_in_editor, json.dumps(before, indent=2))
        try:
            value = json.loads(text)
        except ValueError as exc:
            _say(f"  that is no JSON ({exc}); nothing is changed")
            value = before
        if not isinstance(value, dict):
            _say("  the input of a tool is a JSON object; nothing is changed")
            value = before
        self._edited = value if value != item.approval.input else None
        self._put(item)

    async def _tell_later(self, item: WaitingItem) -> None:
        if later := await when_it_goes_on(self._book, item.run_id):
            _say(f"  {later}")


def _in_editor(text: str) -> str:
    """A text, as a person has changed it in the editor of his choice; as it was, if that fails."""
    from orchestrator.settings import whole_environment

    environ = whole_environment()
    editor = environ.get("VISUAL") or environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        path = Path(folder) / "input.json"
        path.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as exc:
            _say(f"  {editor} did not work: {exc}; set EDITOR to another one")
            return text


def _say(line: str) -> None:
    write(visible(line), sys.stdout)
