"""A repository's index -> the paths that git tracks. Pure: the host's git is never run.

What git tracks is not ignored, whatever .gitignore says. Its formats 2, 3 and 4 are read; of an
index that is split in two, or that makes no sense, nothing is known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEAD = struct.Struct(">4sII")

SPLIT_INDEX = b"link"
"""The extension that says that most entries are in another file."""

STAT_BYTES = 40
"""Of an entry, before the name of its object: times, device, owner, mode, size."""

OBJECT_BYTES = (20, 32)
"""Of an object's name, SHA-1 or SHA-256; which of them the repository's settings say."""

EXTENDED = 0x4000
"""In an entry's flags: two bytes more of them follow."""

MAX_TRACKED = 1_000_000


class NotAnIndex(ValueError):
    """Bytes that make no sense."""


def tracked_paths(data: bytes, *, sha256: bool = False) -> frozenset[str] | None:
    """All paths of an index; None if it cannot be understood."""
    try:
        magic, version, count = HEAD.unpack_from(data)
        if magic != b"DIRC" or version not in (2, 3, 4) or count > MAX_TRACKED:
            return None
        entries = list(_entries(data, version, count, OBJECT_BYTES[sha256]))
        end = entries[-1][1] if entries else HEAD.size
        if data[end : end + 4] == SPLIT_INDEX:
            return None
    except (NotAnIndex, struct.error, IndexError):
        return None
    return frozenset(name.decode(errors="surrogateescape").rstrip("/") for name, _ in entries)


def _entries(
    data: bytes, version: int, count: int, object_bytes: int
) -> Iterator[tuple[bytes, int]]:
    """Names, and where the entry of each ends."""
    at, name = HEAD.size, b""
    for _ in range(count):
        flags_at = at + STAT_BYTES + object_bytes
        flags = int.from_bytes(data[flags_at : flags_at + 2], "big")
        begin = flags_at + (4 if version > 2 and flags & EXTENDED else 2)
        if version == 4:
            dropped, begin = _varint(data, begin)
            if dropped > len(name):
                raise NotAnIndex
            stop = _end_of(data, begin)
            name = name[: len(name) - dropped] + data[begin:stop]
            at = stop + 1
        else:
            stop = _end_of(data, begin)
            name = data[begin:stop]
            at += (stop - at + 8) // 8 * 8  # with one to eight bytes of nothing
        if not name:
            raise NotAnIndex
        yield name, at


def _end_of(data: bytes, begin: int) -> int:
    stop = data.find(b"\0", begin)
    if stop < 0:
        raise NotAnIndex
    return stop


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as git writes it there, and where it ends."""
    byte = data[at]
    value, at = byte & 0x7F, at + 1
    while byte & 0x80:
        byte = data[at]
        value, at = ((value + 1) << 7) | (byte & 0x7F), at + 1
        if value > MAX_TRACKED:
            raise NotAnIndex
    return value, at
