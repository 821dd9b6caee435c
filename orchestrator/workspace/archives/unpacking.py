"""A stranger's tar -> a new directory of ours, which holds what the archive says and nothing else.

Symbolic links are made last: until then every path leads where it says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.errors import CopyRefused
from orchestrator.workspace.archives.tar_reader import (
    ENTRY_BYTES,
    TarEntry,
    TarLimits,
    tar_entries,
    too_much,
)
from orchestrator.workspace.paths import FOLDER, MAX_PATH_BYTES, parents, path_problem
from orchestrator.workspace.reading.pack import shown
from orchestrator.workspace.reading.tree import TREE_DEPTH

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacked(Frozen):
    """How much there was."""

    files: int
    """Files, links and directories."""
    bytes: int
    """Of their contents."""


def unpack_tree(pieces: Iterable[bytes], folder: Path, limits: TarLimits) -> Unpacked:
    """Make `folder` and what the archive says in it. CopyRefused if that cannot be; what has been
    made by then is the caller's to remove. Blocks.
    """
    folder.mkdir(mode=0o700)
    fd = os.open(folder, FOLDER)
    try:
        tree = _Tree(fd, limits)
        for entry, content in tar_entries(pieces, limits):
            tree.add(entry, content)
        tree.finish()
    except OSError as exc:
        raise CopyRefused(f"the archive cannot be unpacked: {exc.strerror}; try again") from exc
    finally:
        os.close(fd)
    return Unpacked(files=len(tree.kinds), bytes=tree.bytes)


class _Tree:
    """A directory that only this process writes to, below an open one."""

    def __init__(self, fd: int, limits: TarLimits) -> None:
        self.kinds: dict[str, str] = {}
        self.bytes = 0
        self._fd = fd
        self._limits = limits
        self._links: list[TarEntry] = []
        self._folders: list[TarEntry] = []

    def add(self, entry: TarEntry, content: Iterator[bytes]) -> None:
        path = entry.path
        if entry.kind == "dir" and path in ("", "."):
            return
        self._check(entry)
        new = [each for each in (*parents(path), path) if each not in self.kinds]
        count = len(self.kinds) + len(new)
        taken = self.bytes + entry.size + count * ENTRY_BYTES
        if count > self._limits.entries or taken > self._limits.bytes:
            raise too_much(self._limits)
        for above in parents(path):
            if above not in self.kinds:
                os.mkdir(above, 0o700, dir_fd=self._fd)
            if self.kinds.setdefault(above, "dir") != "dir":
                raise CopyRefused(f"{shown(path)} in the archive is below what is no directory")
        if entry.kind == "dir":
            if path not in self.kinds:
                os.mkdir(path, 0o700, dir_fd=self._fd)
            self._folders.append(entry)
        elif entry.kind == "symlink":
            self._links.append(entry)
        else:
            self._write(entry, content)
        self.kinds[path] = entry.kind
        self.bytes += entry.size

    def finish(self) -> None:
        """What would be in the way before."""
        for entry in self._folders:
            os.chmod(entry.path, entry.mode | 0o700, dir_fd=self._fd)
        for entry in self._links:
            os.symlink(entry.target, entry.path, dir_fd=self._fd)

    def _check(self, entry: TarEntry) -> None:
        path, known = entry.path, self.kinds.get(entry.path)
        if problem := path_problem(path):
            raise CopyRefused(f"{shown(path)} in the archive cannot be taken: {problem}")
        if path.count("/") >= TREE_DEPTH:
            raise CopyRefused(f"{shown(path)} in the archive is too deep")
        if known is not None and (known, entry.kind) != ("dir", "dir"):
            raise CopyRefused(f"{shown(path)} is in the archive more than once")
        target = entry.target
        size = len(target.encode(errors="replace"))
        if entry.kind == "symlink" and (not target or "\0" in target or size > MAX_PATH_BYTES):
            raise CopyRefused(f"{shown(path)} in the archive is a link that leads nowhere")

    def _write(self, entry: TarEntry, content: Iterator[bytes]) -> None:
        fd = os.open(entry.path, NEW_FILE, entry.mode | 0o600, dir_fd=self._fd)
        with os.fdopen(fd, "wb", buffering=0) as file:
            for piece in content:
                left = memoryview(piece)
                while left:
                    left = left[file.write(left) or 0 :]
            os.fchmod(fd, entry.mode | 0o600)
            os.utime(fd, (entry.mtime, entry.mtime))
