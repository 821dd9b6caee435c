"""Text or bytes that may hold a secret -> the same without it. Pure.

A secret is seldom shown as it is: a URL percent-encodes it, JSON escapes it, and a header such as
"Basic dXNlcjp0b2tlbg==" holds it in base64, at whatever offset the user's name left. What somebody
hides on purpose in a way of their own is not found: what keeps a secret from an agent is that the
agent never has it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

MIN_SECRET = 8
"""Shorter values are not looked for: they would be found everywhere."""

PIECE = 128
"""Longer secrets are looked for piece by piece, so that what is held back of a stream is little."""

MARK = "[secret]"

JSON_ESCAPES = {char: f"\\{letter}" for char, letter in zip('"/\b\f\n\r\t', '"/bfnrt', strict=True)}
"""How JSON writes what it need not write in hex."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

Unit = tuple[bytes, ...]
"""A character of a secret, or a digit of its encoding: each way in which it may be written."""

Shape = tuple[Unit, ...]
"""One way in which a secret may be written, from its first character to its last."""


class Redactor:
    """Knows some secrets, and finds them however they are written."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: set[str] = set()
        self._shapes: tuple[Shape, ...] = ()
        self._pattern: re.Pattern[bytes] | None = None
        self._longest = 0
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """From now on, these are found as well, in streams under way too."""
        new = {secret for secret in secrets if len(secret) >= MIN_SECRET} - self._secrets
        if not new:
            return
        self._secrets |= new
        pieces = {piece for secret in self._secrets for piece in _pieces(secret)}
        longest_first = sorted(pieces, key=lambda piece: (-len(piece), piece))
        self._shapes = tuple(shape for piece in longest_first for shape in _shapes(piece))
        self._pattern = re.compile(b"|".join(map(_expression, self._shapes)), re.DOTALL)
        self._longest = max(sum(max(map(len, unit)) for unit in shape) for shape in self._shapes)

    def text(self, text: str) -> str:
        """The text, with a mark in the place of each secret."""
        if self._pattern is None:
            return text
        data = text.encode("utf-8", "surrogatepass")
        clean, count = self._pattern.subn(MARK.encode(), data)
        return clean.decode("utf-8", "replace") if count else text

    def value(self, value: object) -> object:
        """The same for a JSON value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def stream(self, mask: bytes = b"*") -> StreamRedactor:
        """For bytes that come piece by piece and may not change their number."""
        return StreamRedactor(self, mask)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"

    # Called by the stream

    def masked(self, data: bytes, mask: bytes, *, last: bool) -> tuple[bytes, bytes]:
        """What is decided of the data, masked; and the rest, which may begin a secret."""
        if self._pattern is None:
            return data, b""
        limit = len(data) if last else self._undecided(data)
        clean, at = [], 0
        for found in self._pattern.finditer(data):
            if found.start() >= limit:
                break
            clean += [data[at : found.start()], mask * (found.end() - found.start())]
            at = found.end()
        limit = max(limit, at)
        return b"".join((*clean, data[at:limit])), data[limit:]

    def _undecided(self, data: bytes) -> int:
        """From where on the data may be the beginning of a secret whose end is still to come."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            tail = data[start:]
            if any(_may_begin(shape, tail) for shape in self._shapes):
                return start
        return len(data)


class StreamRedactor:
    """Masks secrets in a stream of bytes, wherever it is cut; as many come out as went in."""

    keeps_length = True

    def __init__(self, redactor: Redactor, mask: bytes = b"*") -> None:
        if len(mask) != 1:
            raise ValueError("a mask is one byte, since lengths must stay as they are")
        self._redactor = redactor
        self._mask = mask
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown by now; the rest, if it may begin a secret, with what comes next."""
        clean, self._held = self._redactor.masked(self._held + data, self._mask, last=False)
        return clean

    def finish(self) -> bytes:
        """What was still held back: nothing more comes."""
        clean, self._held = self._redactor.masked(self._held, self._mask, last=True)
        return clean


def _pieces(secret: str) -> Iterator[str]:
    """The secret in parts of about the same length, none of them so short that it is everywhere."""
    count = -(-len(secret) // PIECE)
    ends = [len(secret) * number // count for number in range(count + 1)]
    return (secret[start:end] for start, end in itertools.pairwise(ends))


def _shapes(piece: str) -> Iterator[Shape]:
    yield tuple(_written(run) for run in re.findall(r"\\+|[^\\]", piece))
    data = _bytes(piece)
    yield tuple(_either(digit, digit.upper()) for digit in data.hex())
    for offset in range(3):
        yield _base64(data, offset)


def _written(run: str) -> Unit:
    """A character, or some backslashes, as it is, percent-encoded and as JSON has it.

    Backslashes come as one: when each may be one or two, there are too many ways to try.
    """
    data = _bytes(run)
    units = run.encode("utf-16-be", "surrogatepass")
    coded = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    percent = "".join(f"%{byte:02x}" for byte in data)
    return _either(
        run.encode("utf-8", "surrogatepass"),
        data,
        "+" if run == " " else percent,
        percent,
        re.sub("%..", lambda found: found[0].upper(), percent),
        coded,
        re.sub("u....", lambda found: "u" + found[0][1:].upper(), coded),
        run * 2 if run[0] == "\\" else JSON_ESCAPES.get(run, run),
    )


def _base64(data: bytes, offset: int) -> Shape:
    """The secret in base64, with so many bytes before it in its group of three.

    The characters at its ends hold bits of its neighbours too: there, several will do.
    """
    bits = "".join(f"{byte:08b}" for byte in data)
    ahead = -8 * offset % 6  # of the secret's bits, in a character that begins with others
    middle = [bits[at : at + 6] for at in range(ahead, len(bits), 6)]
    rest = middle.pop() if len(middle[-1]) < 6 else ""
    units = [_digit(int(six, 2)) for six in middle]
    if ahead:
        known = int(bits[:ahead], 2)
        first = [_digit(number) for number in range(known, 64, 1 << ahead)]
        units.insert(0, _either(*itertools.chain(*first), b""))
    if rest:
        known = int(rest.ljust(6, "0"), 2)
        last = [_digit(number) for number in range(known, known + (1 << (6 - len(rest))))]
        units.append(_either(*itertools.chain(*last), b""))
    return tuple(units)


def _digit(number: int) -> Unit:
    """One digit of base64, in both of its alphabets, and as URLs and JSON write it."""
    if number == 62:
        return (b"+", b"-", b"%2B", b"%2b")
    if number == 63:
        return (b"/", b"_", b"%2F", b"%2f", b"\\/")
    return (ALPHABET[number].encode(),)


def _either(*ways: str | bytes) -> Unit:
    return tuple(dict.fromkeys(way.encode() if isinstance(way, str) else way for way in ways))


def _bytes(text: str) -> bytes:
    """As an environment variable holds it, whose bytes need not be text."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _expression(shape: Shape) -> bytes:
    return b"".join(_choice(unit) for unit in shape)


def _choice(unit: Unit) -> bytes:
    single = [re.escape(way) for way in unit if len(way) == 1]
    longer = [re.escape(way) for way in unit if len(way) > 1]
    if len(single) > 1:
        single = [b"[" + b"".join(single) + b"]"]
    ways = [*longer, *single]
    choice = ways[0] if len(ways) == 1 else b"(?:" + b"|".join(ways) + b")"
    return b"(?:" + choice + b")?" if b"" in unit else choice


def _may_begin(shape: Shape, tail: bytes) -> bool:
    """Whether the shape can go on after this tail: it matches so far, and does not end with it."""
    reached = {0}
    for unit in shape:
        if len(tail) in reached:
            return True
        following = set()
        for at in reached:
            for way in unit:
                if tail.startswith(way, at):
                    following.add(at + len(way))
                elif way.startswith(tail[at:]):
                    return True
        if not following:
            return False
        reached = following
    return False
