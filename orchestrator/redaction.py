"""Text or bytes that may hold a secret -> the same without it. Pure.

A secret is seldom shown as it is: a URL percent-encodes it, JSON escapes it, and a header such as
"Basic dXNlcjp0b2tlbg==" holds it in base64, at whatever offset the user's name left, and a file's
base64 is broken into lines. It is looked for twice: in every shape that one program gives it, byte
by byte; and in the text with all escapes and line breaks undone, however they are mixed. What an
agent encodes in a way of its own is not found: what keeps a secret from an agent is that the agent
never has it.
"""

from __future__ import annotations

import base64
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

MIN_SECRET = 8
"""Shorter values are not looked for: they would be found everywhere."""

PIECE = 128
"""Longer secrets are looked for piece by piece, so that what is held back of a stream is little."""

BEGINNING = 3
"""Bytes by which it is decided whether something may begin a secret, before it is looked at."""

MARK = "[secret]"

BEGINS_ESCAPE = (b"%", b"&", b"=", b"\\", b"\n", b"\r")
"""Of what secrets are found by, none of these is part: it may be gone once escapes are undone."""

JSON_ESCAPES = {char: f"\\{letter}" for char, letter in zip('"/\b\f\n\r\t', '"/bfnrt', strict=True)}
"""How JSON writes what it need not write in hex."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}")
"""A character that is written by its number, be that necessary or not."""

ENTITIES = {
    b"amp": b"&",
    b"lt": b"<",
    b"gt": b">",
    b"quot": b'"',
    b"apos": b"'",
    b"sol": b"/",
    b"plus": b"+",
    b"equals": b"=",
    b"colon": b":",
    b"num": b"#",
    b"commat": b"@",
    b"percnt": b"%",
    b"lowbar": b"_",
    b"period": b".",
    b"excl": b"!",
    b"dollar": b"$",
}
"""HTML's names of what tokens and passwords are made of."""

LOOSE = re.compile(
    rb"[%&=\\\r\n](?:(?<=%)(?:25)*(?P<percent>[0-9A-Fa-f]{2})"
    rb"|(?<=\\)\\*(?:(?:u00|x)(?P<hex>[0-7][0-9A-Fa-f])|u\{0*(?P<braced>[0-7]?[0-9A-Fa-f])\}"
    rb"|r\\+n|n)?"
    rb"|(?<=&)(?:\#(?:[xX]0*(?P<entity>[0-7]?[0-9A-Fa-f])"
    rb"|0*(?P<decimal>1[01][0-9]|12[0-7]|[1-9]?[0-9]))|(?P<name>[a-z]{2,6}));"
    rb"|(?<==)(?:3[Dd])?|(?<=[\r\n]))"
)
"""Escapes as URLs, JSON, C, HTML and mail write them, some of them twice over; and DROPPED. What
they begin with is looked for first, which is quick. Only of ASCII: what else there is, the exact
shapes find."""

LONGER_LOOSE = re.compile(
    re.sub(rb"\?P<[a-z]+>", b"?:", LOOSE.pattern)
    .replace(rb"[%&=\\\r\n](?:", rb"[%&=\\](?:")
    .replace(rb"(?<==)(?:3[Dd])?|(?<=[\r\n])", rb"(?<==)3[Dd]")
)
"""The same without groups, and without line breaks and "=" alone: there are many of those."""

DROPPED = b"\\=\r\n"
"""What is not compared: it breaks lines, or is doubled, or both."""

LOOSE_BEGUN = re.compile(
    rb"(?:%(?:25)*[0-9A-Fa-f]?"
    rb"|(?<!\\)\\+(?:x[0-7]?|u(?:0{0,2}|00[0-7]|\{0*[0-7]?[0-9A-Fa-f]?)|r\\*)?"
    rb"|&(?:\#(?:[xX]0*[0-7]?[0-9A-Fa-f]?|0*[0-9]{0,3})|[a-z]{0,6})?|=3?)\Z"
)
"""The end of a piece of a stream that may go on as one escape, or as a longer one; or may not."""

LOOSE_REPEATED = re.compile(rb"(?<=%25)(?:25)+|\\+(?=\\)|(?:(?<=\#)|(?<=\#x)|(?<=u\{))0+")
"""What the beginning of an escape may have as often as it likes."""

LOOSE_TAIL = 12 * PIECE
"""So much of a stream may be held back, however the secret is spelt."""

Unit = tuple[bytes, ...]
"""A character of a secret, or a digit of its encoding: each way in which it may be written."""

LINE_BREAKS = (b"\\r\\n", b"\\n", b"\r\n", b"\n")
"""In base64, as it is and as JSON has it: GitHub's API breaks lines after 60 digits."""

BREAK: Unit = (*LINE_BREAKS, b"")
"""Between two groups of four digits of base64 there may be one."""

Shape = tuple[Unit, ...]
"""One way in which a secret may be written, from its first character to its last."""


class Sought:
    """One secret, and how to find it; making this takes some milliseconds, using it does not."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.ways: tuple[Way, ...] = ()
        if len(secret) >= MIN_SECRET:
            self.ways = tuple(map(Way, dict.fromkeys(_pieces(secret))))

    def __repr__(self) -> str:
        return "Sought(a secret)"


class Way:
    """One piece of a secret, in all the shapes that it may have."""

    def __init__(self, piece: str) -> None:
        self.piece = piece
        shapes = tuple(_shapes(piece))
        self.pattern = re.compile(b"|".join(map(_expression, shapes)), re.DOTALL)
        self.anchors = frozenset(map(_anchor, shapes))
        self.longest = max(sum(max(map(len, unit)) for unit in shape) for shape in shapes)
        self.loose = tuple(each for each in _loose_texts(piece) if len(each) >= MIN_SECRET)
        """To be found where all escapes are undone."""
        self.beginnings: dict[bytes, list[Shape]] = {}
        for shape in shapes:
            for beginning in _beginnings(shape):
                self.beginnings.setdefault(beginning, []).append(shape)

    def __repr__(self) -> str:
        return "Way(a secret)"


def clean_json(value: object, clean: Callable[[str], str]) -> object:
    """A JSON value with all its texts cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item, clean) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item, clean) for item in value]
    return value


class Redactor:
    """Knows some secrets, and finds them however they are written."""

    def __init__(self, secrets: Iterable[str | Sought] = ()) -> None:
        self._secrets: set[str] = set()
        self._ways: dict[str, Way] = {}
        """By their pieces, the longest first."""
        self._anchors: frozenset[bytes] = frozenset()
        self._loose: frozenset[bytes] = frozenset()
        self._loose_beginnings: tuple[bytes, ...] = ()
        self._beginnings: frozenset[bytes] = frozenset()
        self._longest = 0
        self.add(secrets)

    def add(self, secrets: Iterable[str | Sought]) -> None:
        """From now on, these are found as well, in streams under way too."""
        for secret in secrets:
            text = secret.secret if isinstance(secret, Sought) else secret
            if text in self._secrets:
                continue
            sought = secret if isinstance(secret, Sought) else Sought(secret)
            if sought.ways:
                self._secrets.add(text)
                self._ways |= {way.piece: way for way in sought.ways}
        order = sorted(self._ways.values(), key=lambda way: (-len(way.piece), way.piece))
        self._ways = {way.piece: way for way in order}
        self._anchors = frozenset().union(*(way.anchors for way in order))
        self._loose = frozenset(itertools.chain(*(way.loose for way in order)))
        firsts = {text[0] for text in self._loose}
        self._loose_beginnings = tuple(itertools.chain(*map(_spellings, sorted(firsts))))
        self._beginnings = frozenset().union(*(way.beginnings for way in order))
        self._longest = max((way.longest for way in order), default=0)

    def text(self, text: str) -> str:
        """The text, with a mark in the place of each secret."""
        data = text.encode("utf-8", "surrogatepass")
        clean, at = [], 0
        for start, end in self._found(data):
            clean += [data[at:start], MARK.encode()]
            at = end
        return b"".join((*clean, data[at:])).decode("utf-8", "replace") if clean else text

    def stream(self, mask: bytes = b"*") -> StreamRedactor:
        """For bytes that come piece by piece and may not change their number."""
        return StreamRedactor(self, mask)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"

    def sure(self, data: bytes) -> int:
        """How much of data that goes on is decided: it ends neither in what may begin a secret, nor
        in one that may overlap with the next.
        """
        limit = self._decided(data)
        return next((start for start, end in self._found(data) if start < limit < end), limit)

    # Called by the stream

    def masked(
        self, data: bytes, mask: bytes, *, last: bool, known: int = 0
    ) -> tuple[bytes, bytes, int]:
        """What is decided of the data, masked; the rest, which may begin a secret; and how much of
        that is secret in any case, since it ends another one. `known` is that of the rest before.
        """
        limit = len(data) if last else self._decided(data)
        clean, at = [mask * min(known, limit)], known
        for start, end in self._found(data):
            if start >= limit:
                break
            clean += [data[at:start], mask * (min(end, limit) - max(start, at))]
            at = max(at, end)
        return b"".join((*clean, data[at:limit])), data[limit:], max(0, at - limit)

    def _decided(self, data: bytes) -> int:
        """Up to where no secret can begin whose end is still to come."""
        if not self._ways:
            return len(data)
        return min(self._undecided(data), self._undecided_loose(data))

    def _undecided(self, data: bytes) -> int:
        """From where on the data may be the beginning of a secret whose end is still to come."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            beginning = data[start : start + BEGINNING]
            if beginning not in self._beginnings:
                continue
            for way in self._ways.values():
                shapes = way.beginnings.get(beginning, ())
                if any(_may_begin(shape, data[start:]) for shape in shapes):
                    return start
        return len(data)

    def _undecided_loose(self, data: bytes) -> int:
        """The same for one that shows up once escapes are undone."""
        tail = data[-LOOSE_TAIL:]
        limit = self._begun_loose(_Undone(tail))
        begun = LOOSE_BEGUN.search(tail)
        if begun:
            # It may go on, or stay what it is by now: either may be part of a secret.
            limit = min(limit, self._begun_loose(_Undone(tail[: begun.start()])))
            if self._may_spell(begun[0]):
                limit = min(limit, begun.start())
        return len(data) - len(tail) + limit

    def _begun_loose(self, undone: _Undone) -> int:
        """From where on the end of the data begins a secret."""
        held = 0
        for text in self._loose:
            end = text.rfind(undone.text[-1:], 0, len(text) - 1) if undone.text else -1
            while end >= held:
                if undone.text.endswith(text[: end + 1]):
                    held = end + 1
                    break
                end = text.rfind(undone.text[-1:], 0, end)
        return undone.start(len(undone.text) - held) if held else LOOSE_TAIL

    def _may_spell(self, begun: bytes) -> bool:
        """Whether an escape with this beginning may be the first character of a secret."""
        once = LOOSE_REPEATED.sub(b"", begun.lower())
        return any(each.startswith(once) for each in self._loose_beginnings)

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets begin and end, in order; those that overlap are one."""
        if not self._ways:
            return
        undone = _Undone(data)
        patterns = (
            found.span()
            for way, start, end in self._near(undone)
            for found in way.pattern.finditer(data, start, end)
        )
        spans = sorted(itertools.chain(patterns, self._found_loose(undone)))
        at = 0
        for number, (start, end) in enumerate(spans):
            if number and start < spans[at][1]:
                spans[at] = (spans[at][0], max(end, spans[at][1]))
            elif number:
                at += 1
                spans[at] = (start, end)
        yield from spans[: at + 1]

    def _found_loose(self, undone: _Undone) -> Iterator[tuple[int, int]]:
        for way in self._ways.values():
            if undone.shown.isdisjoint(way.anchors):
                continue
            for text in way.loose:
                if undone.has_hidden(text):
                    spans = ((at, at + len(text)) for at in _every(text, undone.text))
                    yield from ((undone.start(first), undone.end(last)) for first, last in spans)

    def _near(self, undone: _Undone) -> Iterator[tuple[Way, int, int]]:
        """The parts of the data in which a secret can be: around what each of them must have.

        The pattern alone would do, at some MB a second; to look for plain bytes is quick. A secret
        that is escaped or broken into lines shows up when that is undone.
        """
        data, spots = undone.data, set[int]()
        for anchor in self._anchors:
            if not anchor or anchor in undone.text:
                undone.shown.add(anchor)
            if anchor:
                spots.update(_every(anchor, data))
            if anchor in undone.shown and anchor and undone.has_hidden(anchor):
                spots.update(undone.start(at) for at in _every(anchor, undone.text))
        parts: list[tuple[int, int]] = []
        for spot in sorted(spots):
            start, end = max(0, spot - self._longest), spot + self._longest
            if parts and start <= parts[-1][1]:
                parts[-1] = (parts[-1][0], end)
            else:
                parts.append((start, end))
        for way in self._ways.values():
            # One may have nothing that it must have.
            where = parts if b"" not in way.anchors else [(0, len(data))]
            yield from ((way, start, end) for start, end in where)


class _Undone:
    """Data without escapes and line breaks, which knows where each byte of it was."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.text = _undone(data)
        self.shown: set[bytes] = set()
        """What secrets are found by, as far as it is there."""

    def has_hidden(self, text: bytes) -> bool:
        """Whether it may be there otherwise than in the data as it came. How often it is in either
        tells nothing: an escape before it may swallow the beginning of one that stands there.
        """
        return len(self.text) != len(self.data) and text in self.text

    @cached_property
    def _places(self) -> tuple[list[int], list[int], list[bool]]:
        """Where each run of bytes, escaped or not, begins in the text and in the data."""
        at, origin, escaped = [0], [0], [False]
        done = size = 0
        for found in LOOSE.finditer(self.data):
            start, end = found.span()
            plain = _undo(found)
            size += start - done
            at += [size, size + len(plain)]
            origin += [start, end]
            escaped += [True, False]
            size += len(plain)
            done = end
        return at, origin, escaped

    def start(self, place: int) -> int:
        """Where the byte at that place begins in the data."""
        at, origin, escaped = self._places
        part = bisect_right(at, place) - 1
        return origin[part] + (0 if escaped[part] else place - at[part])

    def end(self, place: int) -> int:
        """Where the byte before that place ends in the data."""
        at, origin, escaped = self._places
        part = bisect_right(at, place - 1) - 1
        return origin[part + 1] if escaped[part] else self.start(place - 1) + 1


def _undo(found: re.Match[bytes]) -> bytes:
    """What an escape stands for; nothing, for a line break; itself, if that is not known."""
    kind = found.lastgroup
    if kind is None:
        return b""
    if kind == "name":
        plain = ENTITIES.get(found[kind], found[0])
    else:
        plain = bytes((int(found[kind], 10 if kind == "decimal" else 16),))
    return b"" if plain in DROPPED else plain


class _Plain(dict[bytes, bytes]):
    """What escapes stand for, as far as that was asked."""

    def __missing__(self, spelling: bytes) -> bytes:
        return self.setdefault(spelling, LOOSE.sub(_undo, spelling))


def _undone(data: bytes) -> bytes:
    """Data without escapes and line breaks: LOOSE.sub(_undo, data), but quicker.

    All in one pass: what an escape stands for is not undone again, be it part of another. What is
    dropped wherever it is can be so at the end: no escape stands for it.
    """
    plain = _Plain()
    return LONGER_LOOSE.sub(lambda found: plain[found[0]], data).translate(None, DROPPED)


def _every(text: bytes, data: bytes) -> Iterator[int]:
    at = data.find(text)
    while at >= 0:
        yield at
        at = data.find(text, at + 1)


def _loose_texts(piece: str) -> Iterator[bytes]:
    """A piece, its hex digits, and those of its base64 that hold nothing else: undone, too."""
    data = _bytes(piece)
    yield LOOSE.sub(_undo, data)
    yield data.hex().encode()
    yield data.hex().upper().encode()
    for offset in range(3):
        digits = base64.b64encode(bytes(offset) + data)
        first, last = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        yield digits[first:last]
        yield digits[first:last].translate(bytes.maketrans(b"+/", b"-_"))


def _spellings(byte: int) -> Iterator[bytes]:
    """How a first character may be escaped, for the moment when a stream is cut in it: in lower
    case, and with nothing repeated more often than tells that it may be.
    """
    yield b"%2525"
    for pattern in ("%{:02x}", "%25{:02x}", "\\u00{:02x}", "\\x{:02x}", "\\u{{{:x}}}", "&#x{:x};"):
        yield pattern.format(byte).encode()
    yield f"&#{byte};".encode()
    yield from (b"&" + name + b";" for name, plain in ENTITIES.items() if plain[0] == byte)
    yield bytes((0x5C, byte)).lower()


class StreamRedactor:
    """Masks secrets in a stream of bytes, wherever it is cut; as many come out as went in."""

    keeps_length = True

    def __init__(self, redactor: Redactor, mask: bytes = b"*") -> None:
        if len(mask) != 1:
            raise ValueError("a mask is one byte, since lengths must stay as they are")
        self._redactor = redactor
        self._mask = mask
        self._held = b""
        self._known = 0
        """So many of the first bytes that are held are the end of a secret."""

    def feed(self, data: bytes) -> bytes:
        """What may be shown by now; the rest, if it may begin a secret, with what comes next."""
        return self._clean(self._held + data, last=False)

    def finish(self) -> bytes:
        """What was still held back: nothing more comes."""
        return self._clean(self._held, last=True)

    def _clean(self, data: bytes, *, last: bool) -> bytes:
        clean, self._held, self._known = self._redactor.masked(
            data, self._mask, last=last, known=self._known
        )
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
    shape: list[Unit] = []
    for number, unit in enumerate(units, offset):
        # Not beside an end that may be nothing: a break is masked only between digits.
        if number % 4 == 0 and shape and b"" not in shape[-1] and b"" not in unit:
            shape.append(BREAK)
        shape.append(unit)
    return tuple(shape)


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


def _anchor(shape: Shape) -> bytes:
    """The longest run of bytes that are there whenever the shape is, once escapes and line breaks
    are undone. What looks like the beginning of an escape is not in it.
    """
    best = run = b""
    for unit in shape:
        if unit == BREAK:
            continue
        plain = [way for way in unit if not ESCAPE.match(way)]
        certain = len(plain) == 1 and plain[0].isascii() and plain[0] not in BEGINS_ESCAPE
        run = run + plain[0] if certain else b""
        best = max(best, run, key=len)
    return best


def _beginnings(shape: Shape) -> set[bytes]:
    """The first bytes of the shape however it is written: of each length up to BEGINNING."""
    texts = {b""}
    for unit in shape[: BEGINNING + 2]:  # the first may be nothing, and so may one break
        longer = {text + way for text in texts if len(text) < BEGINNING for way in unit}
        texts = longer | {text for text in texts if len(text) >= BEGINNING}
    return {text[:size] for text in texts for size in range(1, BEGINNING + 1)}


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
