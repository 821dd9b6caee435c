"""Paths in a tree that strangers write to: which names are taken, and how they are opened."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import TracebackType
from typing import Self

MAX_PATH_BYTES = 4000
MAX_NAME_BYTES = 255

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory is opened: never through a symbolic link."""

FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened: never through a symbolic link, and a FIFO does not keep us waiting."""

PASSAGE = FOLDER | getattr(os, "O_PATH", 0)
"""How a directory is opened on the way to another: where there is O_PATH, it need not be read."""

MARKER = ".orchestrator-copy"
"""A directory at the top of a copy that tells which copy it is; never part of the changes."""

STAGE = ".orchestrator-apply-"
"""How directories begin in which `apply` keeps what it replaces; one stays if it is killed."""

GIT_NAMES = (".git", "git~1")
"""What git on any system takes for its own, in the plain form of a name."""

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
    return plain_name(name) in GIT_NAMES


def plain_name(name: str) -> str:
    """A name as the most forgiving filesystem takes it."""
    if name.isascii():  # nearly all names
        return name.lower().split(":")[0].rstrip(" .")
    return name.translate(_UNSEEN).casefold().split(":")[0].rstrip(" .")


def plain_parts(path: str | PurePath) -> tuple[str, ...]:
    """The names of a path, to be compared where the most forgiving filesystem may be."""
    return tuple(plain_name(name) for name in PurePath(path).parts)


def git_mark(name: str) -> str:
    """Which of the things this is that make a directory a repository; empty if none of them."""
    if name[:1] not in "cChHoOrR" and name.isascii():
        return ""  # nearly all names
    plain = plain_name(name)
    return plain if plain in ("head", "objects", "refs", "commondir") else ""


def is_repository(names: Iterable[str]) -> bool:
    """Whether git takes a directory that holds these for a repository, whatever it is called.

    `git status` (2.39) in a plain directory with HEAD, objects, refs and a config was seen to run
    the config's core.fsmonitor. With a commondir, objects and refs may be elsewhere.
    """
    marks = {*map(git_mark, names)}
    return "head" in marks and ("commondir" in marks or {"objects", "refs"} <= marks)


def repositories(paths: Iterable[str]) -> set[str]:
    """The directories that are repositories, if this is all there is; "" is the top."""
    marked: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        folder, _, name = path.rpartition("/")
        if mark := git_mark(name):
            marked[folder].add(mark)
    return {folder for folder, marks in marked.items() if is_repository(marks)}


def parents(path: str) -> list[str]:
    """The directories that a path is in, from below the top down."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def leads_out(path: str, target: str) -> bool:
    """Whether a symbolic link at this path could lead out of the tree, or to what is git's in it.

    ".." is taken only at the front, where it counts from a real directory: after a name, it could
    be the parent of whatever another link points to.
    """
    names = [name for name in target.split("/") if name not in ("", ".")]
    up = 0
    while up < len(names) and names[up] == "..":
        up += 1
    outside = target.startswith("/") or up > path.count("/") or ".." in names[up:]
    return outside or in_git(target)


def open_real(path: Path, flags: int = FOLDER) -> int:
    """Open a path that was resolved and judged before. OSError if it is not absolute, or if any
    part of it has become a symbolic link since: that could lead anywhere.
    """
    if not path.is_absolute() or ".." in path.parts:
        raise OSError(errno.EINVAL, "it is not a resolved path", str(path))
    top, *folders = path.parts
    name = folders.pop() if folders else "."
    fd = os.open(top, PASSAGE)
    try:
        for folder in folders:
            deeper = os.open(folder, PASSAGE, dir_fd=fd)
            os.close(fd)
            fd = deeper
        return os.open(name, flags, dir_fd=fd)
    finally:
        os.close(fd)


class Root:
    """An open directory; neither to it nor below it is a link followed.

    With an `identity`, device:inode, OSError if it is not the directory that was judged.
    """

    def __init__(self, path: Path, identity: str = "") -> None:
        self.path = path
        self.fd = open_real(path)
        status = os.fstat(self.fd)
        self.identity = f"{status.st_dev}:{status.st_ino}"
        if identity not in ("", self.identity):
            os.close(self.fd)
            raise OSError(errno.ESTALE, "another directory has just taken its place", str(path))

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

    def open_real(self, path: Path, flags: int = FOLDER) -> int:
        """Open a path that was resolved before: from here if it is below, whatever is at the name
        of this directory by now; else as the function of this name does.
        """
        if not path.is_relative_to(self.path) or ".." in path.parts:
            return open_real(path, flags)
        with self.parent(str(path.relative_to(self.path))) as (folder, name):
            return os.open(name, flags, dir_fd=folder)

    def open_file(self, path: str) -> int:
        with self.parent(path) as (folder, name):
            return os.open(name, FILE, dir_fd=folder)
