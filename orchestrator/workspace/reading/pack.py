"""Files of the host -> records for the program inside, in bounded memory, counted as they go."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.domain.container import MIB
from orchestrator.errors import CopyRefused
from orchestrator.workspace.paths import FILE

BATCH = 256 * 1024
"""What is handed to the wire at once."""

MAX_ENTRIES = 200_000
"""Files, links and directories in one copy."""

NAMED_LEFT_OUT = 3
"""So many of the things that were left out are named, for each reason; the others are counted."""

NAMED_PATHS = 10
"""So many paths a refusal or a warning names; the others are counted."""

SHOWN_PATH_CHARS = 240
"""Characters of a path in a sentence."""

LENGTH = struct.Struct(">I")

EntryKind = Literal["file", "symlink", "dir"]


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One thing in a tree, as it was copied."""

    kind: EntryKind
    mode: int
    """Read, write and execute bits; nothing else is copied."""
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""
    target: str = ""
    """Where a symbolic link points."""


def record(*fields: object) -> bytes:
    """A record as the program inside reads and writes them."""
    text = json.dumps(fields).encode()
    return LENGTH.pack(len(text)) + text


class Packer:
    """Collects records; the code that feeds it yields `take()` when it is `full`."""

    def __init__(self, root: Path, limit_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self.entries: dict[str, TreeEntry] = {}
        """What will be compared in the end: all but git's own files."""
        self.left_out = LeftOut()
        """Why -> what."""
        self.bytes = 0
        self.count = 0
        self._root = root
        self._limit = limit_bytes
        self._max_entries = max_entries
        self._buffer = bytearray()

    @property
    def full(self) -> bool:
        return len(self._buffer) >= BATCH

    def take(self) -> bytes:
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def end(self) -> bytes:
        """What is left, and the end of it."""
        self._buffer += record("end", "", 0, 0, 0, "")
        return self.take()

    def folder(self, path: str, mode: int, *, track: bool) -> None:
        self._add(path, TreeEntry("dir", mode & 0o777), track)

    def link(self, path: str, target: str, *, track: bool) -> None:
        self._add(path, TreeEntry("symlink", 0o777, target=target), track)

    def text(self, path: str, data: bytes) -> None:
        """A file that we write ourselves."""
        self._add(path, TreeEntry("file", 0o644, size=len(data)), track=False)
        self._buffer += data

    def file(self, path: str, name: str, folder: int, *, track: bool) -> Iterator[bytes]:
        """A file of the host, if it is one and can be read."""
        try:
            fd = os.open(name, FILE, dir_fd=folder)
        except OSError as exc:
            self.left_out.add(f"could not be read ({exc.strerror})", path)
            return
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                self.left_out.add("special files", path)
                return
            size, mode = status.st_size, status.st_mode & 0o777
            if size > BATCH:
                yield from self._large(path, fd, status, track)
                return
            data = _read(fd, size)
            if len(data) < size:
                raise self._moved(path)
            sha = hashlib.sha256(data).hexdigest() if track else ""
            self._add(path, TreeEntry("file", mode, size, status.st_mtime_ns, sha), track)
            self._buffer += data
        finally:
            os.close(fd)

    def _large(self, path: str, fd: int, status: os.stat_result, track: bool) -> Iterator[bytes]:
        entry = TreeEntry("file", status.st_mode & 0o777, status.st_size, status.st_mtime_ns)
        self._add(path, entry, track=False)
        sha, left = hashlib.sha256(), entry.size
        while left:
            data = os.read(fd, min(left, BATCH))
            if not data:
                raise self._moved(path)
            left -= len(data)
            if track:
                sha.update(data)
            self._buffer += data
            if self.full:
                yield self.take()
        if track:
            self.entries[path] = TreeEntry(
                "file", entry.mode, entry.size, entry.mtime_ns, sha.hexdigest()
            )

    def _add(self, path: str, entry: TreeEntry, track: bool) -> None:
        self.count += 1
        self.bytes += entry.size
        if self.count > self._max_entries:
            raise CopyRefused(
                f"{self._root} holds more than {self._max_entries:,} files and directories, too "
                "many to copy; name a smaller directory, or leave out what .gitignore names with "
                "`workspace: {mode: copy, gitignore: true}`"
            )
        if self.bytes > self._limit:
            raise CopyRefused(
                f"{self._root} holds more than the {self._limit // MIB} MiB that a copy may take; "
                "raise resources.disk_mb, name a smaller directory, or leave out what .gitignore "
                "names with `workspace: {mode: copy, gitignore: true}`"
            )
        if track:
            self.entries[path] = entry
        self._buffer += record(
            entry.kind, path, entry.mode, entry.size, entry.mtime_ns, entry.target
        )

    def _moved(self, path: str) -> CopyRefused:
        return CopyRefused(f"{self._root}/{path} was cut short while it was copied; try again")


class LeftOut:
    """What was left out and why: the first few paths of each reason, and how many there are."""

    def __init__(self) -> None:
        self._first: defaultdict[str, list[str]] = defaultdict(list)
        self._counts: Counter[str] = Counter()

    def add(self, why: str, path: str) -> None:
        self._counts[why] += 1
        if len(self._first[why]) < NAMED_LEFT_OUT:
            self._first[why].append(shown(path))

    def sentences(self, where: str) -> tuple[str, ...]:
        """One line for each reason."""
        return tuple(
            f"left out of {where}, {why}: {in_words(self._first[why], NAMED_LEFT_OUT, count)}"
            for why, count in sorted(self._counts.items())
        )


def in_words(texts: Sequence[str], most: int, count: int | None = None) -> str:
    """The first of them on one line, and how many more there are; `count` if not all are given."""
    left = (len(texts) if count is None else count) - most
    more = f" and {left} more" if left > 0 else ""
    return ", ".join(texts[:most]) + more


def in_lines(texts: Sequence[str], most: int) -> str:
    """The same, each on a line of its own, the first one too."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return "".join(f"\n  {text}" for text in (*texts[:most], *more))


def shown(path: str) -> str:
    """A path for people: on one line and not too long, whatever is in it."""
    text = path.encode("utf-8", "backslashreplace").decode()
    if len(text) > SHOWN_PATH_CHARS:
        text = f"{text[: SHOWN_PATH_CHARS // 2]}...{text[-SHOWN_PATH_CHARS // 2 :]}"
    return text if text.isprintable() else ascii(text)


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data
