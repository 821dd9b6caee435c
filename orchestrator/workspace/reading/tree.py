"""A host directory -> a Snapshot, and the records that make a copy of it. No link is followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import CopyRefused
from orchestrator.workspace.git.directory import Allowed, pack_git, tracked_below
from orchestrator.workspace.paths import (
    FOLDER,
    MARKER,
    STAGE,
    Root,
    in_git,
    parents,
    path_problem,
)
from orchestrator.workspace.reading.ignore import Ignore
from orchestrator.workspace.reading.pack import Packer, TreeEntry, record

TREE_DEPTH = 128
"""Directories in directories."""


LEFT_BY_APPLY = "since `orchestrator apply` keeps there what it replaces, or did when it was killed"


@dataclass(frozen=True)
class Snapshot:
    """A workspace as it was when it was copied."""

    root: Path
    """Symbolic links resolved."""
    entries: dict[str, TreeEntry]
    """By their paths below the root; git's own files are copied, and not among them."""
    git_places: frozenset[str]
    """Where a .git is."""
    ignore: Ignore | None
    """What .gitignore files said when it was copied; None of an older one that did not ask."""
    total_bytes: int
    total_count: int
    """Of all that was copied, git's files included."""
    warnings: tuple[str, ...] = ()
    marker: bytes = b""
    """What the copy holds to be known by; empty if `is_there` will not be asked."""
    applied_at: float = 0.0
    """Of its changes, those up to then have been applied; what they made is in the entries."""
    applied: dict[str, float] = field(default_factory=dict)
    """When each path was last made different by what was applied."""
    untracked: frozenset[str] = frozenset()
    """Files and links that git does not track, where it is known what it does."""

    def records(self) -> Iterator[bytes]:
        """What the program inside compares the copy with."""
        for path, entry in self.entries.items():
            yield record(entry.kind, path, entry.mode, entry.size, entry.sha256, entry.target)
        yield record("end", "")


def nowhere(_: Path) -> bool:
    """Nothing outside the workspace may be read for it."""
    return False


class TreeCopy:
    """Walks a directory once: yields the records of a copy, and knows afterwards what it was."""

    def __init__(
        self,
        root: Path,
        *,
        identity: str = "",
        gitignore: bool,
        limit_bytes: int,
        allowed: Allowed = nowhere,
        marker: bytes = b"",
    ) -> None:
        self.root = root
        self._identity = identity
        self._allowed = allowed
        self._ignore = Ignore()
        self._leave_out = gitignore
        self._packer = Packer(self.root, limit_bytes)
        self._git_places: set[str] = set()
        self._marker = marker

    def chunks(self) -> Generator[bytes, None, None]:
        """All records. CopyRefused if there is too much, or nothing there."""
        try:
            opened = Root(self.root, self._identity)
        except OSError as exc:
            raise CopyRefused(
                f"{self.root} cannot be copied: {exc.strerror}; name a directory that can be read"
            ) from exc
        if self._marker:
            self._packer.folder(MARKER, 0o755, track=False)
            self._packer.text(f"{MARKER}/.gitignore", self._marker)
        try:
            with opened:
                yield from self._folder(opened, opened.fd, "", 0)
        except OSError as exc:
            raise CopyRefused(
                f"{self.root} changed while it was copied, or cannot be read: {exc.strerror} "
                f"({exc.filename}); try again"
            ) from exc
        yield self._packer.end()

    def snapshot(self) -> Snapshot:
        packer = self._packer
        return Snapshot(
            root=self.root,
            entries=packer.entries,
            git_places=frozenset(self._git_places),
            ignore=self._ignore,
            total_bytes=packer.bytes,
            total_count=packer.count,
            warnings=packer.left_out.sentences("the copy"),
            marker=self._marker,
            untracked=self._untracked(),
        )

    def _untracked(self) -> frozenset[str]:
        if not self._ignore.rules:
            return frozenset()  # it decides only about what is ignored
        try:
            with Root(self.root, self._identity) as top:
                repositories = {
                    place.rpartition("/")[0]: tracked_below(top, place, self._allowed)
                    for place in self._git_places
                }
        except OSError:  # it has just been moved
            return frozenset()
        known = {folder for folder, tracked in repositories.items() if tracked is not None}
        files = {path for path, entry in self._packer.entries.items() if entry.kind != "dir"}
        if known != {""} or len(repositories) > 1:
            files = {path for path in files if _innermost(path, repositories) in known}
        return frozenset(files.difference(*(each for each in repositories.values() if each)))

    def _folder(self, top: Root, fd: int, folder: str, depth: int) -> Iterator[bytes]:
        packer = self._packer
        self._ignore.enter(folder, fd)
        with os.scandir(fd) as rows:
            entries = sorted(rows, key=lambda row: row.name)
        for row in entries:
            path = f"{folder}/{row.name}" if folder else row.name
            if problem := path_problem(path):
                packer.left_out.add(f"since its name cannot be kept: {problem}", path)
                continue
            try:
                status = row.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # gone since it was listed
            if path == MARKER:
                packer.left_out.add("since copies are marked with that name", path)
            elif row.name.startswith(STAGE):
                packer.left_out.add(LEFT_BY_APPLY, path)
            elif in_git(path):
                yield from self._git(top, path, row.name, status.st_mode)
            elif not self._leave_out or not self._ignore.ignored(
                path, folder=stat.S_ISDIR(status.st_mode)
            ):
                yield from self._entry(top, fd, path, status.st_mode, depth)
            if packer.full:
                yield packer.take()

    def _git(self, top: Root, path: str, name: str, mode: int) -> Iterator[bytes]:
        self._git_places.add(path)
        if name == ".git" and not stat.S_ISLNK(mode):
            yield from pack_git(self._packer, top, path, self._allowed)
        else:
            self._packer.left_out.add("since git may take it for its own", path)

    def _entry(self, top: Root, fd: int, path: str, mode: int, depth: int) -> Iterator[bytes]:
        packer, kind, name = self._packer, stat.S_IFMT(mode), path.rpartition("/")[2]
        if kind == stat.S_IFREG:
            yield from packer.file(path, name, fd, track=True)
        elif kind == stat.S_IFLNK:
            target = os.readlink(name, dir_fd=fd)
            if path_problem(target.replace("/", "")[:200] or "x"):
                packer.left_out.add("since its target is not UTF-8", path)
            else:
                packer.link(path, target, track=True)
        elif kind != stat.S_IFDIR:
            packer.left_out.add("special files", path)
        elif depth >= TREE_DEPTH:
            packer.left_out.add("since it is too deep", path)
        else:
            try:
                below = os.open(name, FOLDER, dir_fd=fd)
            except OSError as exc:
                packer.left_out.add(f"could not be read ({exc.strerror})", path)
                return
            try:
                packer.folder(path, mode, track=True)
                yield from self._folder(top, below, path, depth + 1)
            finally:
                os.close(below)


def _innermost(path: str, folders: Collection[str]) -> str | None:
    """The innermost of these folders that a path is in; None if it is in none of them."""
    return next((each for each in reversed(("", *parents(path))) if each in folders), None)
