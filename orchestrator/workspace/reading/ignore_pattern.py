"""One line of a .gitignore -> what it matches, as git (2.39, wildmatch.c) reads it. Pure.

Each segment becomes a regular expression that never goes back: `*` takes as little as it can and
keeps it. One that does go back, as pathspec 1.1 makes it of `a*a*a*a*a*a*b`, was seen to hold the
whole process for 10 s over one name of 120 letters. decisions/0020 says why pathspec with RE2 does
not replace this.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from orchestrator.workspace.paths import MAX_NAME_BYTES

Segment = Callable[[bytes], object] | None
"""Whether a name fits; None stands for `**`, any number of names."""

Token = bytes | frozenset[int] | None
"""A byte as it is, one of several, or `*`."""

_ANY = frozenset(range(256))

_GLUED = re.compile(rb"[^*?[\\]*[^*?[\\/](?=\*\*+(?:/|\\/|\Z))")
"""In `a**/b`, the `a`. Git compares what stands before the first wildcard by itself, and sees only
the rest, where `**` is then alone: `aa/b`, `a/x/b` and even `ab` fit.
"""

_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": " \t\n\v\f\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


class IgnorePattern(NamedTuple):
    negated: bool
    folders_only: bool
    anchored: bool
    """It is about the whole path, not about its last name alone."""
    prefix: bytes
    """What the path has to begin with; the segments are about the rest."""
    segments: tuple[Segment, ...]

    def matches(self, names: Sequence[bytes], *, folder: bool) -> bool:
        """Whether it is about a path, given as its names; not about what is below that."""
        if self.folders_only and not folder:
            return False
        if self.prefix:
            path = b"/".join(names)
            rest = path.removeprefix(self.prefix)
            return rest != path and _fits(self.segments, rest.split(b"/"))
        return _fits(self.segments, names if self.anchored else names[-1:])


def read_pattern(line: str) -> IgnorePattern | None:
    """None for an empty line, a comment, and what can match nothing."""
    text = _trimmed(line).encode(errors="replace")
    if not text or text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    text = text.removeprefix(b"!")
    folders_only = text.endswith(b"/")
    text = text.removesuffix(b"/")
    anchored = b"/" in text
    text = text.removeprefix(b"/")
    glued = _GLUED.match(text) if anchored else None
    prefix = glued[0] if glued else b""
    try:
        segments = tuple(_segments(text.removeprefix(prefix)))
    except _Never:
        return None
    return IgnorePattern(negated, folders_only, anchored, prefix, segments)


def _trimmed(line: str) -> str:
    """Without the spaces at its end, unless there is a backslash before them."""
    kept = line.rstrip(" ")
    slashes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if slashes % 2 and len(kept) < len(line) else kept


def _fits(segments: Sequence[Segment], names: Sequence[bytes]) -> bool:
    """As `*` in a name, only with names: the last `**` takes one more whenever the rest does not
    fit.
    """
    at = name = taken = 0
    last = -1
    while name < len(names):
        segment = segments[at] if at < len(segments) else _nothing
        if segment is None:
            if at == len(segments) - 1:
                return True
            last, taken, at = at, name, at + 1
        elif segment(names[name]):
            at, name = at + 1, name + 1
        elif last >= 0:
            taken += 1
            at, name = last + 1, taken
        else:
            return False
    return at == len(segments)


def _nothing(_: bytes) -> bool:
    return False


def _anything(_: bytes) -> bool:
    return True


class _Never(Exception):
    """A pattern that matches nothing."""


def _segments(text: bytes) -> Iterable[Segment]:
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if len(tokens) > 2 * MAX_NAME_BYTES + 1:  # with a `*` between all of them: no such names
            raise _Never
        char, start = text[at : at + 1], at
        at += 1
        if char == b"/":
            yield _segment(tokens)
            tokens = []
        elif char == b"*":
            while text[at : at + 1] == b"*":
                at += 1
            if at - start > 1 and _alone(text, start, at):
                if text[at : at + 1] == b"\\":
                    yield _anything  # before a slash that is written so, git wants one name
                    at += 1
                yield None
                at += 1
                if at > len(text):
                    return
            else:
                tokens.append(None)
        elif char == b"?":
            tokens.append(_ANY)
        elif char == b"[":
            members, at = _class(text, at)
            tokens.append(members)
        elif char == b"\\":
            if at == len(text):
                raise _Never
            if text[at : at + 1] == b"/":
                continue
            tokens.append(text[at : at + 1])
            at += 1
        else:
            tokens.append(char)
    yield _segment(tokens)


def _alone(text: bytes, start: int, end: int) -> bool:
    before, after = text[:start], text[end:]
    return (not before or before.endswith(b"/")) and (not after or after.startswith((b"/", b"\\/")))


def _class(text: bytes, at: int) -> tuple[frozenset[int], int]:
    """The bytes that a [...] stands for, and where it ends; `at` is after its first bracket."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    before, first = -1, True
    while first or text[at : at + 1] != b"]":
        first = False
        if at >= len(text):
            raise _Never
        if text[at] == ord("-") and before >= 0 and text[at + 1 : at + 2] not in (b"", b"]"):
            high, at = _literal(text, at + 1)
            members.update(range(before, high + 1))
            before = -1
        elif text.startswith(b"[:", at) and (named := _named_class(text, at)) is not None:
            inside, at = named
            members |= inside
            before = -1
        else:
            before, at = _literal(text, at)
            members.add(before)
    return (_ANY - members if negated else frozenset(members)), at + 1


def _literal(text: bytes, at: int) -> tuple[int, int]:
    at += text[at] == ord("\\")
    if at >= len(text):
        raise _Never
    return text[at], at + 1


def _named_class(text: bytes, at: int) -> tuple[frozenset[int], int] | None:
    """[:alpha:] and the like; None if it is a bracket like any other."""
    end = text.find(b"]", at + 2)
    if end < 0:
        raise _Never
    if end - at < 3 or text[end - 1 : end] != b":":
        return None
    members = _CLASSES.get(text[at + 2 : end - 1].decode(errors="replace"))
    if members is None:
        raise _Never
    return frozenset(members.encode()), end + 1


def _segment(tokens: Sequence[Token]) -> Segment:
    if sum(token is not None for token in tokens) > MAX_NAME_BYTES:
        raise _Never  # there are no such names
    literal = b"".join(token for token in tokens if isinstance(token, bytes))
    if len(literal) == len(tokens):
        return literal.__eq__
    chunks: list[bytes] = [b""]
    for token in tokens:
        if token is None:
            chunks.append(b"")
        else:
            chunks[-1] += re.escape(token) if isinstance(token, bytes) else _one_of(token)
    first, *middle = chunks
    last = b".*" + middle.pop() if middle else b""
    lazy = b"".join(b"(?>.*?%s)" % chunk for chunk in middle if chunk)
    return re.compile(first + lazy + last, re.DOTALL).fullmatch


def _one_of(members: frozenset[int]) -> bytes:
    if members == _ANY:
        return b"."
    return b"[%s]" % b"".join(b"\\x%02x" % each for each in sorted(members)) if members else b"(?!)"
