"""The bytes of a stranger's tar -> what is in it, one piece after the other, in bounded memory.

`tarfile` reads an extended header of any size at once, and makes files by rules that differ between
releases of Python. Here only its parser of one block is used.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.domain.container import MIB
from orchestrator.errors import CopyRefused

BLOCK = 512

EXTENDED_BYTES = 64 * 1024
"""Of one header that belongs to another: a long path or link, and some times."""

UNFOLDED_BYTES = MIB
"""That gzip may make of its input at once."""

EXTENDED_IN_A_ROW = 4
"""Headers that belong to one entry: of the whole archive, of it, a long path, a long link."""

ENTRY_BYTES = 4096
"""That each file, link and directory takes of a disk, besides its content."""

SPARE_BLOCKS = 4
"""For each entry, besides its content: its header, and those that go before it."""

AFTER_END_BYTES = MIB
"""Padding after the end of an archive; programs write 10 KiB."""

TAR_KINDS: dict[bytes, Literal["file", "dir", "symlink"]] = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "dir",
    tarfile.SYMTYPE: "symlink",
}
ODD_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a FIFO",
}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One thing in an archive; its path is as it was written, and not judged yet."""

    kind: Literal["file", "dir", "symlink"]
    path: str
    mode: int
    size: int
    mtime: int
    target: str = ""


@dataclass(frozen=True, slots=True)
class TarLimits:
    """How much an archive may hold."""

    bytes: int
    entries: int


def unfolded(pieces: Iterable[bytes], *, gzipped: bool) -> Iterator[bytes]:
    """The archive itself, a bounded piece at a time, whatever gzip makes of how little."""
    if not gzipped:
        yield from pieces
        return
    unzip = zlib.decompressobj(wbits=31)
    try:
        for piece in pieces:
            left = piece
            while left:
                if unzip.eof:
                    raise CopyRefused("something follows the end of the gzip file; send one alone")
                yield unzip.decompress(left, UNFOLDED_BYTES)
                left = unzip.unconsumed_tail or unzip.unused_data
    except zlib.error as exc:
        raise CopyRefused(f"this is no gzip file: {exc}") from exc
    if not unzip.eof:
        raise CopyRefused("the gzip file ends in the middle; send it again")


def too_much(limits: TarLimits) -> CopyRefused:
    """For an archive that holds more than it may."""
    return CopyRefused(
        f"the archive holds more than {limits.entries:,} files and directories, or more than "
        f"{limits.bytes // MIB} MiB, each of them counted as {ENTRY_BYTES // 1024} KiB besides its "
        "content; send a smaller directory"
    )


def tar_entries(
    pieces: Iterable[bytes], limits: TarLimits
) -> Iterator[tuple[TarEntry, Iterator[bytes]]]:
    """The entries and their contents, which are to be read before the next entry is asked for, and
    are read over otherwise. CopyRefused for what no workspace holds, or too much.
    """
    source = _Source(pieces, limits.bytes + limits.entries * SPARE_BLOCKS * BLOCK)
    extended: dict[str, str] = {}
    count = total = in_a_row = 0
    while (header := source.block()).strip(b"\0"):
        info = _parsed(header)
        if info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, *_LONG):
            in_a_row += 1
            if in_a_row > EXTENDED_IN_A_ROW:
                raise CopyRefused("the archive has too many headers in a row; send it again")
            said = source.small(info.size)
            if info.type == tarfile.XHDTYPE:
                extended |= _pax(said)
            elif info.type in _LONG:
                extended[_LONG[info.type]] = _text(said.rstrip(b"\0"))
            continue
        entry = _entry(info, extended)
        extended, in_a_row = {}, 0
        count, total = count + 1, total + entry.size
        if count > limits.entries or total > limits.bytes:
            raise too_much(limits)
        content = source.content(entry.size)
        yield entry, content
        for _ in content:
            pass
    source.drain()


_LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}


class _Source:
    """The archive, read in order, and never more of it than allowed."""

    def __init__(self, pieces: Iterable[bytes], limit_bytes: int) -> None:
        self._pieces = iter(pieces)
        self._left = limit_bytes
        self._buffer = b""

    def block(self) -> bytes:
        return self._exactly(BLOCK)

    def small(self, size: int) -> bytes:
        """A header that belongs to another, without its padding."""
        if not 0 <= size <= EXTENDED_BYTES:
            raise CopyRefused("a header of the archive is too long, so it was not read")
        return self._exactly(_padded(size))[:size]

    def content(self, size: int) -> Iterator[bytes]:
        """So many bytes, piece by piece; then its padding is gone too."""
        left = size
        while left:
            piece = self._some(left)
            left -= len(piece)
            yield piece
        self._exactly(_padded(size) - size)

    def drain(self) -> None:
        """Read to the end: what follows an archive is padding."""
        self._left = min(self._left, AFTER_END_BYTES)
        while self._fill():
            if self._buffer.strip(b"\0"):
                raise CopyRefused("something follows the end of the archive; send one alone")
            self._buffer = b""

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._some(size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _some(self, at_most: int) -> bytes:
        if not self._buffer and not self._fill():
            raise CopyRefused("the archive ends in the middle; send it again")
        part, self._buffer = self._buffer[:at_most], self._buffer[at_most:]
        return part

    def _fill(self) -> bool:
        """Whether there is more."""
        for piece in self._pieces:
            self._left -= len(piece)
            if self._left < 0:
                raise CopyRefused("the archive is larger than what it may hold; send a smaller one")
            if piece:
                self._buffer = piece
                return True
        return bool(self._buffer)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _parsed(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as exc:
        raise CopyRefused(f"this is no tar archive, or not all of it is: {exc}") from exc


def _entry(info: tarfile.TarInfo, extended: dict[str, str]) -> TarEntry:
    path = extended.get("path", info.name)
    if info.type not in TAR_KINDS:
        what = ODD_KINDS.get(info.type, f"an entry of type {info.type!r}")
        raise CopyRefused(
            f"{path[:200]!r} in the archive is {what}; files, directories and symbolic links are "
            "taken"
        )
    kind = TAR_KINDS[info.type]
    size = _number(extended["size"]) if "size" in extended else info.size
    if size < 0 or (size and kind != "file"):
        raise CopyRefused(f"{path[:200]!r} in the archive has a size that cannot be")
    mtime = min(max(int(info.mtime), 0), 2**33)
    target = extended.get("linkpath", info.linkname) if kind == "symlink" else ""
    # A file whose name ends with a slash is a directory to old programs: not here.
    path = path.removesuffix("/") if kind == "dir" else path
    return TarEntry(kind, path.removeprefix("./"), info.mode & 0o777, size, mtime, target)


def _pax(data: bytes) -> dict[str, str]:
    """`LENGTH KEYWORD=VALUE\\n`, again and again; CopyRefused for anything else."""
    found: dict[str, str] = {}
    at = 0
    while at < len(data):
        length, blank, _ = data[at : at + 20].partition(b" ")
        size = _number(_text(length)) if blank else 0
        line = data[at : at + size]
        at += size
        keyword, equals, value = line[len(length) + 1 : -1].partition(b"=")
        if size <= len(length) + 1 or not (equals and line.endswith(b"\n")) or len(line) < size:
            raise CopyRefused("a header of the archive makes no sense; send it again")
        if keyword in (b"path", b"linkpath", b"size"):
            found[keyword.decode()] = _text(value)
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise CopyRefused("a number in a header of the archive is none; send it again")
    return int(text)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise CopyRefused("a name in the archive is not UTF-8; rename that file") from exc
