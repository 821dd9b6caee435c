"""Paths in a tree that strangers write to: which names are taken, and how they are opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

MAX_PATH_BYTES = 4000
MAX_NAME_BYTES = 255

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened: never through a symbolic link."""

FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened: never through a symbolic link, and a FIFO does not keep us waiting."""

_UNSEEN = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)
"""Characters that some filesystems leave out of names, so that ".g\u200cit" is ".git" there."""


def path_problem(path: str) -> str:
    """What is wrong with a path below the root of a tree; empty if it is one."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "it is not UTF-8"
    names = path.split("/")
    if size > MAX_PATH_BYTES or any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        return "it is too long"
    if "\0" in path or any(name in ("", ".", "..") for name in names):
        return "it is no plain path below the workspace"
    return ""


def in_git(path: str) -> bool:
    """Whether a path is, or is below, something that git on any system takes for its own."""
    return any(map(_is_git_name, path.split("/")))


def _is_git_name(name: str) -> bool:
    plain = name.translate(_UNSEEN).casefold().split(":")[0].rstrip(" .")
    return plain in (".git", "git~1")


def leads_out(path: str, target: str) -> bool:
    """Whether a symbolic link at this path could lead out of the tree.

    ".." is taken only at the front, where it counts from a real directory: after a name, it could
    be the parent of whatever another link points to.
    """
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    return target.startswith("/") or up > path.count("/") or ".." in names[up:]


class Root:
    """An open directory; everything below it is reached without following a link."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        os.close(self.fd)

    @contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The open directory that a path is in, and its name there."""
        *folders, name = path.split("/")
        fd = os.dup(self.fd)
        try:
            for folder in folders:
                deeper = os.open(folder, FOLDER, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd, name
        finally:
            os.close(fd)

    def open_file(self, path: str) -> int:
        with self.parent(path) as (folder, name):
            return os.open(name, FILE, dir_fd=folder)
