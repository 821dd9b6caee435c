"""What a CLI writes that speaks JSON in lines -> events, and how it is written to. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from orchestrator.runners.json_fields import clean, has_more_parts
from orchestrator.runners.signs import Noise

OUTPUT_LINE_BYTES = 8 * 1024 * 1024
"""The longest line that is read; of a longer one nothing is kept but the news that it came."""

ASKED_CHARS = 1024 * 1024
"""Of the input of a call that the caller has to approve: no caller reads more than that."""

MAX_LINE_PARTS = 100_000
"""Texts, commas and brackets of a line, outside of texts: ten times of what is handed on of it."""

NOISE_CHARS = 500
"""How much of a line that cannot be parsed is repeated."""


class CliLine(NamedTuple):
    """One line of a CLI's."""

    event: dict[str, object] | None
    """None if it is no JSON object."""
    text: str


class CliLines:
    """Bytes in, lines out. Nothing that the CLI writes is an error."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[CliLine]:
        """The lines that these bytes complete."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            yield from self._take(piece)
            yield from self.finish()
        yield from self._take(rest)

    def finish(self) -> Iterator[CliLine]:
        """What there is of a line that was never ended."""
        text = self._line.decode(errors="replace").strip()
        self._line.clear()
        self._skipping = False
        if text:
            yield CliLine(event_of(text), text)

    def _take(self, piece: bytes) -> Iterator[CliLine]:
        if self._skipping:
            return
        if len(self._line) + len(piece) > OUTPUT_LINE_BYTES:
            self._skipping = True
            self._line.clear()
            yield CliLine(None, f"a line of more than {OUTPUT_LINE_BYTES} bytes")
        else:
            self._line += piece


def noise(text: str) -> Noise:
    """The sign of a line that means nothing to us."""
    return Noise(text=clean(text[:NOISE_CHARS]))


def line(value: Mapping[str, object]) -> bytes:
    """An object as a line; all ASCII: no character of it can end the line."""
    return json.dumps(value).encode() + b"\n"


def is_shown_whole(given: Mapping[str, object], asked: object) -> bool:
    """Whether the input of a call, as it was taken from what the CLI asked, is all of it."""
    return given == asked and len(json.dumps(given)) <= ASKED_CHARS


def event_of(text: str) -> dict[str, object] | None:
    """The JSON object that a text is; None if it is none, or one of too many parts."""
    if has_more_parts(text, MAX_LINE_PARTS):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
