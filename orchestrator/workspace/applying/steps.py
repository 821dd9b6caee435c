"""The steps that change a directory, each with a way back.

New contents are written into a folder of their own in the directory, and what they replace is
moved there: whatever can fail for want of space has failed before anything is touched. Only a
machine that stops in between leaves a tree half changed, and that folder with what was there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from orchestrator.errors import ApplyRefused, CopyFailed
from orchestrator.workspace.applying.states import HASH_READ_BYTES, state_of
from orchestrator.workspace.changes.collected import Change, Changes, State
from orchestrator.workspace.paths import FILE, FOLDER, STAGE, Root
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_words, shown

Stamp = tuple[int, int, int]
"""Size, and when content and inode were changed last: the same only if no program wrote."""

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


class _Moved(Exception):
    """Another program has changed this path."""


class Work:
    """All of the changes, or none. What another program saves in the meantime is not lost."""

    def __init__(self, tree: Root, changes: Changes, kept: frozenset[str]) -> None:
        self._tree = tree
        self._changes = changes
        self._kept = kept
        """Directories that stay, since something else is in them."""
        self._stage = STAGE + secrets.token_hex(8)
        self._stage_fd = -1
        self._aside: list[tuple[Change, str, Stamp]] = []
        """What was replaced, its name in the stage, and when it was written last."""
        self._undo: list[Callable[[], None]] = []
        """Ways back. Each is noted before its step, which may be broken off at any point; so may
        the way back, and then it is repeated.
        """
        self._remade: set[str] = set()
        """Directories that are ours to give back their modes."""
        self._saved: dict[str, str] = {}
        """Path -> name in the stage, of what could not be moved back: another program had saved a
        file in its place.
        """

    def run(self) -> None:
        """CopyFailed if a step fails, ApplyRefused if another program writes what is to be
        replaced; then everything is as it was before, but for what that program has saved.
        """
        try:
            self._open_stage()
            self._all_steps()
            self._check_aside()
        except _Moved as exc:
            self._take_back()
            raise ApplyRefused(
                f"{shown(str(exc))} was changed by another program while the changes were applied, "
                f"so none was: {self._outcome()}; look at that file, then apply again"
            ) from exc
        except OSError as exc:
            self._take_back()
            raise CopyFailed(
                f"the changes were not applied to {self._tree.path} ({exc.strerror or exc}): "
                f"{self._outcome()}"
            ) from exc
        except BaseException as exc:
            self._take_back()
            if self._saved:
                raise self._broken_off() from exc
            raise
        finally:
            if self._stage_fd >= 0:
                os.close(self._stage_fd)
        self._clear()

    def _open_stage(self) -> None:
        try:
            os.mkdir(self._stage, 0o700, dir_fd=self._tree.fd)
            self._stage_fd = os.open(self._stage, FOLDER, dir_fd=self._tree.fd)
        except OSError as exc:
            raise CopyFailed(f"{self._tree.path} cannot be written: {exc.strerror}") from exc

    def _take_back(self) -> None:
        """Go all ways back. Asked to stop, it goes on from where it was, and stops at the end."""
        interrupt: KeyboardInterrupt | None = None
        while self._undo:
            try:
                while self._undo:
                    self._undo[-1]()
                    self._undo.pop()
            except KeyboardInterrupt as exc:
                interrupt = exc
            except OSError as exc:
                raise CopyFailed(
                    f"a step failed, and so did taking the steps before it back ({exc.strerror}): "
                    f"what {self._tree.path} held before is in {self._tree.path / self._stage}"
                ) from exc
        if not self._saved:
            self._clear()
        elif interrupt is not None:
            raise self._broken_off() from interrupt
        if interrupt is not None:
            raise interrupt

    def _broken_off(self) -> CopyFailed:
        return CopyFailed(
            f"applying the changes to {self._tree.path} was broken off: {self._outcome()}"
        )

    def _outcome(self) -> str:
        """What the directory is like when all has been taken back."""
        if not self._saved:
            return f"{self._tree.path} is as it was before"
        named = in_words(
            [f"{shown(path)} ({name})" for path, name in self._saved.items()], NAMED_PATHS
        )
        return (
            f"another program saved {named} meanwhile, which was left, and what was "
            f"there before is in {self._tree.path / self._stage} under the name in parentheses; "
            "all else is as it was before"
        )

    def _clear(self) -> None:
        """Remove the stage, also if it is asked to stop in the middle of that."""
        remove = partial(shutil.rmtree, self._stage, dir_fd=self._tree.fd, ignore_errors=True)
        try:
            remove()
        except KeyboardInterrupt:
            remove()
            raise

    def _all_steps(self) -> None:
        steps = list(enumerate(self._changes.changes))
        for number, change in steps:
            if brings_content(change) or change.new.kind == "symlink":
                self._write(change, f"new-{number}")
        for number, change in steps:
            if change.old.kind in ("file", "symlink") and not only_mode(change):
                self._set_aside(change, number)
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
            elif change.new.kind != "absent" and not _replaces(change):
                with self._tree.parent(change.path) as (folder, name):
                    self._give(f"new-{number}", *_owner(folder))
                    self._put(change, number, folder, name)
        for change in reversed(modes):
            self._set_mode(change)

    def _write(self, change: Change, name: str) -> None:
        if change.new.kind == "symlink":
            os.symlink(change.new.target, name, dir_fd=self._stage_fd)
            return
        source = os.open(self._changes.object_path(change.new.sha256), FILE)
        try:
            with open(os.open(name, WRITE, 0o600, dir_fd=self._stage_fd), "wb") as file:
                while data := os.read(source, HASH_READ_BYTES):
                    file.write(data)
                file.flush()
                os.fchmod(file.fileno(), change.new.mode)
        finally:
            os.close(source)

    def _set_aside(self, change: Change, number: int) -> None:
        """Move away what is there, put what replaces it in its place, and then look at it.

        Looked at before, it could still change; and it must not be missing while it is read.
        """
        name = f"old-{number}"
        with self._tree.parent(change.path) as (folder, there):
            try:
                status = os.stat(there, dir_fd=folder, follow_symlinks=False)
                if _replaces(change):
                    self._give(f"new-{number}", status.st_uid, status.st_gid)
                self._undo.append(partial(self._restore, change.path, name))
                os.rename(there, name, src_dir_fd=folder, dst_dir_fd=self._stage_fd)
            except FileNotFoundError as exc:
                raise _Moved(change.path) from exc
            if _replaces(change):
                self._put(change, number, folder, there)
        stamp = _stamp(self._stage_fd, name)
        if state_of(self._stage_fd, name) != change.old:
            raise _Moved(change.path)
        self._aside.append((change, name, stamp))

    def _check_aside(self) -> None:
        """A program that had a file open before it was moved away can still write to it."""
        for change, name, stamp in self._aside:
            if _stamp(self._stage_fd, name) == stamp:
                continue
            # Of two hard links to one file, what is done to the second shows in the first.
            if not _same_content(state_of(self._stage_fd, name), change.old):
                raise _Moved(change.path)

    def _restore(self, path: str, name: str) -> None:
        if not _is_there(self._stage_fd, name):
            return  # it never came to that
        with self._tree.parent(path) as (folder, there):
            try:
                _place(name, self._stage_fd, there, folder)
            except FileExistsError:
                if not _is_same(folder, there, self._stage_fd, name):
                    self._saved[path] = name

    def _put(self, change: Change, number: int, folder: int, name: str) -> None:
        self._undo.append(partial(self._unput, change))
        try:
            _place(f"new-{number}", self._stage_fd, name, folder)
        except FileExistsError as exc:
            raise _Moved(change.path) from exc

    def _unput(self, change: Change) -> None:
        with self._tree.parent(change.path) as (folder, name), suppress(FileNotFoundError):
            if _same_content(state_of(folder, name), change.new):
                os.unlink(name, dir_fd=folder)  # otherwise another program has replaced it

    def _give(self, name: str, uid: int, gid: int) -> None:
        _give(name, self._stage_fd, uid, gid)

    def _remove_folder(self, path: str) -> None:
        if path in self._kept:
            return
        with self._tree.parent(path) as (folder, name):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            self._undo.append(partial(self._remake_folder, path, status))
            os.rmdir(name, dir_fd=folder)

    def _remake_folder(self, path: str, status: os.stat_result) -> None:
        with self._tree.parent(path) as (folder, name):
            if path not in self._remade and _is_there(folder, name):
                return  # it never came to that, or another program has made one
            self._remade.add(path)
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
            _give(name, folder, status.st_uid, status.st_gid)
            os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=folder)

    def _make_folder(self, path: str) -> bool:
        """False if there is one already, which then stays as it is."""
        with self._tree.parent(path) as (folder, name):
            if _is_there(folder, name):
                os.close(os.open(name, FOLDER, dir_fd=folder))  # or it is something else
                return False
            self._undo.append(partial(self._unmake_folder, path))
            os.mkdir(name, 0o700, dir_fd=folder)
            _give(name, folder, *_owner(folder))
        return True

    def _unmake_folder(self, path: str) -> None:
        with self._tree.parent(path) as (folder, name), suppress(FileNotFoundError):
            try:
                os.rmdir(name, dir_fd=folder)
            except OSError as exc:
                if exc.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # otherwise another program has put something there

    def _set_mode(self, change: Change) -> None:
        with self._tree.parent(change.path) as (folder, name):
            flags = FOLDER if change.new.kind == "dir" else FILE
            fd = os.open(name, flags, dir_fd=folder)
            try:
                old = stat.S_IMODE(os.fstat(fd).st_mode)
                self._undo.append(partial(self._restore_mode, change.path, old))
                os.fchmod(fd, change.new.mode)
            finally:
                os.close(fd)

    def _restore_mode(self, path: str, mode: int) -> None:
        with self._tree.parent(path) as (folder, name):
            os.chmod(name, mode, dir_fd=folder)


def _replaces(change: Change) -> bool:
    """Whether something takes the place of a file in one step, so that it is hardly missing."""
    return (
        change.old.kind in ("file", "symlink")
        and change.new.kind in ("file", "symlink")
        and not only_mode(change)
    )


def _place(name: str, stage: int, place: str, folder: int) -> None:
    """Out of the stage to its place; FileExistsError if something is there by now."""
    try:
        os.link(name, place, src_dir_fd=stage, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        # Not every filesystem has such links, nor for everything, nor may every user make them.
        if _is_there(folder, place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place) from None
        os.rename(name, place, src_dir_fd=stage, dst_dir_fd=folder)
    else:
        os.unlink(name, dir_fd=stage)


def _is_there(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_same(folder: int, name: str, other_folder: int, other: str) -> bool:
    """Whether it is the same file, or one that is just like it."""
    try:
        return state_of(folder, name) == state_of(other_folder, other)
    except OSError:  # it has just gone, or is not for us to read
        return False


def _same_content(one: State, other: State) -> bool:
    """Whether two things differ in their modes at most."""
    return one.model_copy(update={"mode": other.mode}) == other


def _stamp(folder: int, name: str) -> Stamp:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _owner(folder: int) -> tuple[int, int]:
    status = os.fstat(folder)
    return status.st_uid, status.st_gid


def _give(name: str, folder: int, uid: int, gid: int) -> None:
    """To the owner of the directory; only root can, and any other user is the owner already."""
    if os.geteuid() == 0:
        os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
