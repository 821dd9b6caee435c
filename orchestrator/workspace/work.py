"""The steps that change a directory, each with a way back.

New contents are written into a folder of their own in the directory, and what they replace is
moved there: whatever can fail for want of space has failed before anything is touched. Only a
machine that stops in between leaves a tree half changed, and that folder with what was there.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable
from functools import partial

from orchestrator.errors import CopyFailed
from orchestrator.workspace.changes import Change, Changes
from orchestrator.workspace.paths import FILE, FOLDER, Root

READ_BYTES = 1024 * 1024

STAGE = ".orchestrator-apply-"

WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def brings_content(change: Change) -> bool:
    """Whether there is a new content for it, not only a mode."""
    return change.new.kind == "file" and (
        change.old.kind != "file" or change.old.sha256 != change.new.sha256
    )


def only_mode(change: Change) -> bool:
    return (
        change.old.kind == change.new.kind
        and change.new.kind in ("file", "dir")
        and not brings_content(change)
    )


class Work:
    """All of the changes, or none."""

    def __init__(self, tree: Root, changes: Changes, kept: frozenset[str]) -> None:
        self._tree = tree
        self._changes = changes
        self._kept = kept
        """Directories that stay, since something else is in them."""
        self._stage = STAGE + secrets.token_hex(8)
        self._stage_fd = -1
        self._owners: dict[str, tuple[int, int]] = {}
        """Whose the replaced files were."""
        self._undo: list[Callable[[], None]] = []

    def run(self) -> None:
        """CopyFailed if a step fails; then everything is as it was before."""
        try:
            os.mkdir(self._stage, 0o700, dir_fd=self._tree.fd)
            self._stage_fd = os.open(self._stage, FOLDER, dir_fd=self._tree.fd)
        except OSError as exc:
            raise CopyFailed(f"{self._tree.path} cannot be written: {exc.strerror}") from exc
        try:
            self._all_steps()
        except OSError as exc:
            self._take_back()
            raise CopyFailed(
                f"the changes were not applied to {self._tree.path}, and it is as it was before: "
                f"{exc.strerror or exc}"
            ) from exc
        except BaseException:
            self._take_back()
            raise
        finally:
            os.close(self._stage_fd)
        shutil.rmtree(self._stage, dir_fd=self._tree.fd, ignore_errors=True)

    def _take_back(self) -> None:
        try:
            while self._undo:
                self._undo.pop()()
        except OSError as exc:
            raise CopyFailed(
                f"a step failed, and so did taking the steps before it back ({exc.strerror}): "
                f"what {self._tree.path} held before is in {self._tree.path / self._stage}"
            ) from exc
        shutil.rmtree(self._stage, dir_fd=self._tree.fd, ignore_errors=True)

    def _all_steps(self) -> None:
        steps = list(enumerate(self._changes.changes))
        for number, change in steps:
            if brings_content(change) or change.new.kind == "symlink":
                self._write(change, f"new-{number}")
        for number, change in steps:
            if change.old.kind in ("file", "symlink") and not only_mode(change):
                self._set_aside(change, f"old-{number}")
        for _, change in reversed(steps):  # what is in a directory goes before it
            if change.old.kind == "dir" and change.new.kind != "dir":
                self._remove_folder(change.path)
        modes: list[Change] = []
        for number, change in steps:
            if only_mode(change):
                modes.append(change)
            elif change.new.kind == "dir":
                if self._make_folder(change.path):
                    modes.append(change)
            elif change.new.kind != "absent":
                self._put(change.path, f"new-{number}")
        for change in reversed(modes):
            self._set_mode(change)

    def _write(self, change: Change, name: str) -> None:
        if change.new.kind == "symlink":
            os.symlink(change.new.target, name, dir_fd=self._stage_fd)
            return
        source = os.open(self._changes.object_path(change.new.sha256), FILE)
        try:
            with open(os.open(name, WRITE, 0o600, dir_fd=self._stage_fd), "wb") as file:
                while data := os.read(source, READ_BYTES):
                    file.write(data)
                file.flush()
                os.fchmod(file.fileno(), change.new.mode)
        finally:
            os.close(source)

    def _set_aside(self, change: Change, name: str) -> None:
        """Keep what is there; where a file will replace it, it is not missing in between."""
        with self._tree.parent(change.path) as (folder, old):
            status = os.stat(old, dir_fd=folder, follow_symlinks=False)
            self._owners[change.path] = (status.st_uid, status.st_gid)
            linked = False
            if change.new.kind == "file":
                try:
                    os.link(
                        old, name, src_dir_fd=folder, dst_dir_fd=self._stage_fd,
                        follow_symlinks=False,
                    )  # fmt: skip
                    linked = True
                except OSError:
                    pass  # not every filesystem has such links, nor may everybody make them
            if not linked:
                os.rename(old, name, src_dir_fd=folder, dst_dir_fd=self._stage_fd)
        self._undo.append(partial(self._restore, change.path, name))

    def _restore(self, path: str, name: str) -> None:
        with self._tree.parent(path) as (folder, old):
            os.rename(name, old, src_dir_fd=self._stage_fd, dst_dir_fd=folder)

    def _put(self, path: str, name: str) -> None:
        with self._tree.parent(path) as (folder, new):
            uid, gid = self._owners.get(path) or _owner(folder)
            _give(name, self._stage_fd, uid, gid)
            os.rename(name, new, src_dir_fd=self._stage_fd, dst_dir_fd=folder)
        self._undo.append(partial(self._unlink, path))

    def _unlink(self, path: str) -> None:
        with self._tree.parent(path) as (folder, name):
            os.unlink(name, dir_fd=folder)

    def _remove_folder(self, path: str) -> None:
        if path in self._kept:
            return
        with self._tree.parent(path) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            os.rmdir(name, dir_fd=folder)
        self._undo.append(partial(self._remake_folder, path, status))

    def _remake_folder(self, path: str, status: os.stat_result) -> None:
        with self._tree.parent(path) as (folder, name):
            os.mkdir(name, 0o700, dir_fd=folder)
            _give(name, folder, status.st_uid, status.st_gid)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=folder)

    def _make_folder(self, path: str) -> bool:
        """False if there is one already, which then stays as it is."""
        with self._tree.parent(path) as (folder, name):
            try:
                os.mkdir(name, 0o700, dir_fd=folder)
            except FileExistsError:
                os.close(os.open(name, FOLDER, dir_fd=folder))  # or it is something else
                return False
            self._undo.append(partial(self._unmake_folder, path))
            _give(name, folder, *_owner(folder))
        return True

    def _unmake_folder(self, path: str) -> None:
        with self._tree.parent(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)

    def _set_mode(self, change: Change) -> None:
        with self._tree.parent(change.path) as (folder, name):
            flags = FOLDER if change.new.kind == "dir" else FILE
            fd = os.open(name, flags, dir_fd=folder)
            try:
                old = stat.S_IMODE(os.fstat(fd).st_mode)
                os.fchmod(fd, change.new.mode)
            finally:
                os.close(fd)
        self._undo.append(partial(self._restore_mode, change.path, old))

    def _restore_mode(self, path: str, mode: int) -> None:
        with self._tree.parent(path) as (folder, name):
            os.chmod(name, mode, dir_fd=folder)


def _owner(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_uid, status.st_gid


def _give(name: str, folder: int, uid: int, gid: int) -> None:
    """To whoever owns the place; only root can, and anybody else is the owner already."""
    if os.geteuid() == 0:
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
