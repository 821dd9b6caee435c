"""Sockets, FIFOs and devices in a directory that an agent is shown: each is a second wire.

A read-only mount does not help: connect() and writing to a FIFO do not care for one, and the agent
is the user whom they belong to. So they are found, and something empty is mounted over each.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.domain.container import Bind, Cover
from orchestrator.errors import MountRefused
from orchestrator.workspace.paths import FOLDER, Root, path_problem
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_words, shown
from orchestrator.workspace.reading.tree import TREE_DEPTH

MAX_SEARCHED_FOLDERS = 100_000
"""Directories that are looked through for them."""

MAX_COVERS = 64

INSTEAD = "name a smaller one, or use `workspace: copy`, which leaves such files out"

KINDS = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "FIFO",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


AT_SYMLINK_NOFOLLOW, STATX_BTIME, STATX_BTIME_AT, STATX_BYTES = 0x100, 0x800, 0x50, 256
"""Of statx(2), which alone tells when a file was made."""


def covers(binds: Sequence[Bind]) -> tuple[Cover, ...]:
    """What must be mounted over the special files of the directories that are shown. Blocks.

    MountRefused if that cannot be done for all of them: there are too many, or a directory cannot
    be looked through.
    """
    found: dict[str, Cover] = {}
    taken = {bind.target for bind in binds}
    for bind in binds:
        if _is_in_another(bind, binds):
            continue
        for path, over, kind in _special_files(bind):
            target = f"{bind.target}/{path}" if path else bind.target
            if path_problem(path) or target in taken:
                raise MountRefused(
                    f"{shown(f'{bind.source}/{path}')} is a {kind}, which an agent could talk "
                    f"to, and it cannot be covered under that name; remove it, or {INSTEAD}"
                )
            found[target] = Cover(target=target, over=over, what=kind)
            if len(found) > MAX_COVERS:
                raise MountRefused(
                    f"{binds[0].source} holds more than {MAX_COVERS} sockets, FIFOs and devices, "
                    f"too many to keep each from an agent; {INSTEAD}"
                )
    return tuple(found.values())


def _is_in_another(bind: Bind, binds: Sequence[Bind]) -> bool:
    """Whether it is mounted over itself, so that looking through the other one is enough."""
    return any(
        bind.source.removeprefix(other.source) == bind.target.removeprefix(other.target)
        for other in binds
        if bind.source.startswith(f"{other.source}/") and bind.target.startswith(f"{other.target}/")
    )


def in_a_sentence(found: Sequence[Cover]) -> str:
    """They are named for people, as the agent sees them."""
    return in_words([f"{shown(cover.target)} ({cover.what})" for cover in found], NAMED_PATHS)


def _special_files(bind: Bind) -> Iterator[tuple[str, str, str]]:
    """The path of each, which one it is, and what."""
    try:
        with Root(Path(bind.source), bind.identity) as opened:
            yield from _Search(opened, read_only=bind.read_only).below(opened.fd, "", 0)
    except OSError as exc:
        alone = Path(bind.source)
        if isinstance(exc, NotADirectoryError) and alone.is_file() and not alone.is_symlink():
            return
        raise MountRefused(
            f"{bind.source} cannot be looked through for sockets: {exc.strerror}; try again"
        ) from exc


class _Search:
    """A walk through one directory; no link is followed, and no name is looked up twice."""

    def __init__(self, root: Root, *, read_only: bool) -> None:
        self._root = root
        self._read_only = read_only
        self._agent = os.fstat(root.fd).st_uid
        self._count = 0

    def below(self, fd: int, folder: str, depth: int) -> Iterator[tuple[str, str, str]]:
        self._count += 1
        if self._count > MAX_SEARCHED_FOLDERS or depth > TREE_DEPTH:
            raise MountRefused(
                f"{self._root.path} holds more than {MAX_SEARCHED_FOLDERS:,} directories, or more "
                f"than {TREE_DEPTH} one in another, too many to look for sockets in; "
                f"{INSTEAD}"
            )
        folders = []
        with os.scandir(fd) as rows:
            for row in rows:
                if row.is_file(follow_symlinks=False):
                    continue  # nearly all of them
                path = f"{folder}/{row.name}" if folder else row.name
                if row.is_dir(follow_symlinks=False):
                    folders.append((row.name, path))
                elif not row.is_symlink():
                    yield from _special_file(fd, row.name, path)
        for name, path in folders:
            if (deeper := self._opened(fd, name, path)) is None:
                continue
            try:
                yield from self.below(deeper, path, depth + 1)
            finally:
                os.close(deeper)

    def _opened(self, above: int, name: str, path: str) -> int | None:
        """None if it is gone, or if an agent could not look into it either."""
        try:
            return os.open(name, FOLDER, dir_fd=above)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ELOOP or not self._agent_could(exc, above, name):
                return None  # it has become a link, or is closed to an agent as well
            raise MountRefused(
                f"{shown(f'{self._root.path}/{path}')} cannot be looked through for sockets "
                f"({exc.strerror}), and an agent could get into it; let the orchestrator's user "
                "read it, or use `workspace: copy`"
            ) from exc

    def _agent_could(self, exc: OSError, above: int, name: str) -> bool:
        """Whether an agent could look into a directory that we cannot: it is the user whom the
        workspace belongs to, and may change the mode of what is that user's.
        """
        if exc.errno != errno.EACCES or self._agent != os.geteuid():
            return True
        try:
            owner = os.stat(name, dir_fd=above, follow_symlinks=False).st_uid
        except OSError:
            return True
        return owner == self._agent and not self._read_only


def _special_file(folder: int, name: str, path: str) -> Iterator[tuple[str, str, str]]:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return  # gone since it was listed
    kind = KINDS.get(stat.S_IFMT(status.st_mode))
    if kind is None or (stat.S_ISCHR(status.st_mode) and status.st_rdev == 0):
        return  # a plain file by now; or an overlay's whiteout, which nobody can open
    # Inode numbers are used again at once: what was made anew is told apart by when it was made.
    yield path, f"{status.st_dev}:{status.st_ino}:{_born(folder, name, status)}", kind


def _born(folder: int, name: str, status: os.stat_result) -> str:
    """When it was made. Where the system does not say: of a socket, when it last changed; nothing
    of a FIFO, whose time is that of its last use.
    """
    told = ctypes.create_string_buffer(STATX_BYTES)
    statx = getattr(ctypes.CDLL(None), "statx", None)  # Python has it from 3.15 on
    if statx is not None and not statx(
        folder, os.fsencode(name), AT_SYMLINK_NOFOLLOW, STATX_BTIME, told
    ):
        (mask,) = struct.unpack_from("=I", told)
        if mask & STATX_BTIME:
            seconds, nanoseconds = struct.unpack_from("=qI", told, STATX_BTIME_AT)
            return f"{seconds}.{nanoseconds:09}"
    return "" if stat.S_ISFIFO(status.st_mode) else str(status.st_ctime_ns)
