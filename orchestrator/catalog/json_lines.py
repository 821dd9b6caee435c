"""JSON text that is known to be JSON -> the line of each value, and keys that come twice. Pure.

The library keeps the last of two keys without a word, and says of no value where it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from orchestrator.plain_yaml import Loc

_WORD = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++')


class JsonLines(NamedTuple):
    """Where things stand in a text."""

    lines: dict[Loc, int]
    """Of a key's value, the line of the key."""
    twice: list[tuple[Loc, int, int]]
    """Keys that are given again: on which line, and on which first."""


class _JsonWord(NamedTuple):
    """A sign, a text or a number, and its line."""

    text: str
    line: int


def lines_of(text: str) -> JsonLines:
    """Where each value stands in a text that json.loads takes."""
    found = JsonLines({}, [])
    words = _words(text)
    _read(next(words), words, (), found)
    return found


def _words(text: str) -> Iterator[_JsonWord]:
    line, at = 1, 0
    for match in _WORD.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        yield _JsonWord(match.group(), line)


def _read(first: _JsonWord, words: Iterator[_JsonWord], loc: Loc, found: JsonLines) -> None:
    """Read the value that begins with this word."""
    found.lines.setdefault(loc, first.line)
    if first.text == "[":
        at = 0
        while (word := next(words)).text != "]":
            if word.text != ",":
                _read(word, words, (*loc, at), found)
                at += 1
    elif first.text == "{":
        while (word := next(words)).text != "}":
            if word.text != ",":
                inner = (*loc, str(json.loads(word.text)))
                if inner in found.lines:
                    found.twice.append((inner, word.line, found.lines[inner]))
                found.lines.setdefault(inner, word.line)
                next(words)  # the colon
                _read(next(words), words, inner, found)
