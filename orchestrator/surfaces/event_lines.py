"""Events -> lines for people: in colour on a terminal, plain anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, TextIO

from orchestrator.surfaces.text import one_line, shortened, write

LABELS = {
    "text": ("says", ""),
    "saying": ("says …", "dim"),
    "tool_call": ("uses", "cyan"),
    "tool_result": ("result", "dim"),
    "mcp_failed": ("no server", "red"),
    "server_call": ("calls", "dim"),
    "server_denied": ("refused", "bold yellow"),
    "model_request": ("model", "dim"),
    "api_retry": ("retrying", "yellow"),
    "schema_failed": ("sent back", "bold yellow"),
    "fallback": ("goes on", "bold yellow"),
    "nudged": ("hurry", "yellow"),
    "interrupted": ("stopped", "yellow"),
    "asked": ("asks", "bold cyan"),
    "answered": ("is told", "cyan"),
    "approval_asked": ("approve?", "bold yellow"),
    "approval_decided": ("decided", "yellow"),
    "egress_denied": ("blocked", "bold yellow"),
    "secret_used": ("secret", "dim"),
    "warning": ("warning", "yellow"),
    "ended": ("ended", "bold"),
}
"""What a kind of event is called, and how it looks; others keep their name, and are dim."""

LABEL_WIDTH = 10
"""Room for the longest label, and for the kinds that keep their name."""

Show = Callable[[float, str, str], None]
"""Called with seconds since the beginning, the kind of an event and its text."""


class EventLine(NamedTuple):
    """One event, ready to be written."""

    label: str
    text: str
    style: str


def event_line(kind: str, text: str) -> EventLine:
    """One line, whatever the text holds: an agent wrote it, and a terminal would obey it."""
    label, style = LABELS.get(kind, (kind, "dim"))
    if kind == "ended":
        style = "bold green" if text == "completed" else "bold red"
    lines = [one_line(line) for line in text.splitlines()]
    return EventLine(label, " ⏎ ".join(line for line in lines if line), style)


def kind_of(label: str) -> str:
    """The kind of event that is called so; another word stays what it is."""
    return next((kind for kind, (name, _) in LABELS.items() if name == label), label)


def plain_line(seconds: float, kind: str, text: str) -> str:
    line = event_line(kind, text)
    return f"{seconds:6.1f} s  {line.label:<{LABEL_WIDTH}}  {shortened(line.text)}".rstrip()


@contextmanager
def shown_events(stream: TextIO | None = None, *, waiting: str = "") -> Iterator[Show]:
    """Yields what to call with each event; on a terminal, `waiting` is said beside a spinner."""
    out = stream or sys.stderr
    if not out.isatty():
        yield partial(_write_line, out)
        return
    # Here, since a program that reads us needs no colours, and rich takes a tenth of a second.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=out, highlight=False)
    spinner = console.status(Text(waiting, "dim")) if waiting else None
    open_ones = 0

    def mind_the_spinner(kind: str) -> None:
        """It stands still while the operator may be typing."""
        nonlocal open_ones
        open_ones += (kind in _ASKS) - (kind in _ANSWERS)
        if spinner is not None and kind in _ASKS:
            spinner.stop()
        elif spinner is not None and kind in _ANSWERS and not open_ones:
            spinner.start()

    def show(seconds: float, kind: str, text: str) -> None:
        if kind == "saying":  # all of it follows
            return
        line = event_line(kind, text)
        row = Text()
        row.append(f"{seconds:6.1f} s  ", "dim")
        row.append(f"{line.label:<{LABEL_WIDTH}}  ", line.style)
        row.append(line.text, line.style if kind in _LOUD else "")
        if kind in _WHOLE:
            console.print(row)
        else:
            console.print(row, no_wrap=True, overflow="ellipsis")
        mind_the_spinner(kind)

    with spinner or nullcontext():
        yield show


def _write_line(out: TextIO, seconds: float, kind: str, text: str) -> None:
    if kind != "saying":
        write(plain_line(seconds, kind, text), out)


_ASKS = ("asked", "approval_asked")
_ANSWERS = ("answered", "approval_decided")

_WHOLE = (*_ASKS, "")
"""Kinds that a terminal does not cut: the operator should allow nothing unseen."""

_LOUD = ("schema_failed", "mcp_failed", "ended", "tool_result", "model_request")
"""Kinds whose text looks like their name."""
