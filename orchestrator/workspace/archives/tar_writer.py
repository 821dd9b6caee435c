"""The records of a copy, as `reading` packs them -> a tar of the same tree."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterable, Iterator

from orchestrator.workspace.archives.tar_reader import BLOCK
from orchestrator.workspace.reading.pack import LENGTH

NANOSECONDS = 1_000_000_000

TAR_END = bytes(2 * BLOCK)

_TAR_TYPES = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}


def tar_of(chunks: Iterable[bytes], comment: str = "") -> Iterator[bytes]:
    """The same tree always makes the same bytes; `comment` is in them, and means nothing."""
    source = _Records(chunks)
    if comment:
        yield tarfile.TarInfo.create_pax_global_header({"comment": comment})
    while True:
        kind, path, mode, size, mtime_ns, target = source.record()
        if kind == "end":
            yield TAR_END
            return
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.linkname = _TAR_TYPES[kind], mode, target
        info.size, info.mtime = size, mtime_ns // NANOSECONDS
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        yield from source.content(size)
        yield bytes(-size % BLOCK)


def tar_header(path: str, size: int) -> bytes:
    """What goes before the content of a plain file."""
    info = tarfile.TarInfo(path)
    info.mode, info.size = 0o600, size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


class _Records:
    """Records of our own making, which come in pieces of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._buffer = memoryview(b"")

    def record(self) -> tuple[str, str, int, int, int, str]:
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        kind, path, mode, size, mtime_ns, target = json.loads(self._exactly(length))
        return kind, path, mode, size, mtime_ns, target

    def content(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._some(size)
            size -= len(piece)
            yield piece

    def _exactly(self, size: int) -> bytes:
        return b"".join(self.content(size))

    def _some(self, at_most: int) -> bytes:
        while not self._buffer:
            self._buffer = memoryview(next(self._chunks))
        piece, self._buffer = self._buffer[:at_most], self._buffer[at_most:]
        return bytes(piece)
