"""Texts for people: made harmless, cut to a width, put into columns. No surface of its own."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from orchestrator.domain.result import RunResult

LINE_CHARS = 200
"""How much a plain line has room for; a terminal cuts at its own width."""

SAID_NAME_CHARS = 64
"""Of a name in a sentence of ours."""

_WORDS = re.compile(r"\s*(?:`[^`]*`|[^\s`])+\s?|\s+$")
"""A word with the spaces around it; what stands in backticks is one."""

_PLAIN_NAME = re.compile(r"[\w.:/@*+…\[\]-]+")

GAP = "  "
"""Between two columns."""


def visible(text: str) -> str:
    """The text without what a terminal would obey rather than show."""
    return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


def quoted(name: str) -> str:
    """A name on one line, which it cannot end: in quotes if it holds anything that would."""
    return name if name.isprintable() else json.dumps(name)


def named(name: str, chars: int = SAID_NAME_CHARS) -> str:
    """A name for a sentence of ours, in which it cannot say anything: in quotes if it has words."""
    short = shortened(name, chars)
    return short if _PLAIN_NAME.fullmatch(short) else visible(json.dumps(short, ensure_ascii=False))


def said_lines(text: str) -> Iterator[str]:
    """What somebody else says, among lines of ours."""
    return (f"> {line}" for line in visible(text).splitlines())


def command(*words: str) -> str:
    """A command of ours to be typed into a shell: one line, and each word one word."""
    return shlex.join(("orchestrator", *map(one_line, words)))


def shortened(text: str, width: int = LINE_CHARS) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def one_line(text: str) -> str:
    """A text of several lines, which an agent or its author wrote, as one."""
    return " ".join(visible(text).split())


def cut_json(value: object, chars: int) -> tuple[str, int]:
    """A value as JSON, its first characters only, and how many there are besides."""
    text = json.dumps(value, ensure_ascii=False)
    return text[:chars], max(0, len(text) - chars)


def costs(result: RunResult) -> str:
    """What a run cost: what is known, what is estimated, and what those cost that it had run."""
    if result.scripted:
        return "$0 (a script played the model)"
    said = f"${result.cost_usd:.4f}"
    if result.estimated_usd:
        said += f" and by estimate ${result.estimated_usd:.4f}"
    family = (result.family_usd, result.family_estimated_usd)
    if family > (result.cost_usd, result.estimated_usd):
        said += f" (${result.family_usd:.4f}"
        if result.family_estimated_usd:
            said += f" and by estimate ${result.family_estimated_usd:.4f}"
        said += " with its subagents)"
    return said


def tried(result: RunResult) -> str:
    """On which runners it began before the one that it ended on; "" if on none."""
    if not result.tried:
        return ""
    over = ", ".join(each.runner for each in result.tried if each.passed_over)
    said = ", ".join(f"{e.runner} ({e.reason})" for e in result.tried if not e.passed_over)
    then = "did" if result.status == "completed" else "was the last"
    parts = [f"{said} could not go on, {result.runner} {then}"] * bool(said)
    return "; ".join([*parts, *[f"{over} passed over"] * bool(over)])


def span(seconds: float) -> str:
    """A time, roughly."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def age(seconds: float) -> str:
    """A time in as few characters as there can be: 42s, 3m, 5h, 2d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0, seconds):.0f}s"


def table(rows: Sequence[Sequence[str]], *, width: int = 0, least: int = 0) -> Iterator[str]:
    """A line for each row, with its cells below each other.

    With a width, the last column is cut to what the others leave of it, though not below `least`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    left = max(least, width - sum(widths) - len(GAP) * len(widths))
    for *cells, last in rows:
        padded = [cell.ljust(size) for cell, size in zip(cells, widths, strict=True)]
        yield GAP.join([*padded, shortened(last, left) if width else last]).rstrip()


def write(text: str, stream: TextIO) -> None:
    """Print a line, with ? for what the stream's encoding cannot say."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


def say(text: str, stream: TextIO) -> None:
    """Print sentences of ours; at a terminal no word is broken, and no command in backticks."""
    if not stream.isatty():
        write(text, stream)
        return
    width = shutil.get_terminal_size().columns
    for line in text.splitlines():
        for piece in wrapped(line, width):
            write(piece, stream)


def wrapped(line: str, width: int) -> Iterator[str]:
    """A line in pieces of a width, but for words that are longer; from the second on, indented."""
    piece = ""
    for word in _WORDS.findall(line):
        if piece.strip() and len(piece) + len(word.rstrip()) > width:
            yield piece.rstrip()
            piece = GAP
        piece += word
    yield piece.rstrip()


def print_lines(lines: Iterable[str]) -> None:
    """Lines on stdout, made visible first: an agent may have written what is in them."""
    for line in lines:
        write(visible(line), sys.stdout)
