"""Who is alive? A file lock in the state directory: the kernel lets go of it however we die."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.containers.file_lock import FileLock
from orchestrator.errors import NameTaken, OperatorError


class Owner:
    """One orchestrator process, as others of the same state directory see it."""

    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir
        self.id = secrets.token_hex(8)
        self.state = ""
        """The same for all orchestrators that share the state directory."""
        self._lock = FileLock(self._owner_path(self.id))

    def __enter__(self) -> Self:
        make_state_dir(self._dir)
        try:
            self.state = _state_id(self._dir / "id")
            self._lock.acquire()
        except OSError as exc:
            raise unusable_state_dir(self._dir, exc) from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._lock.release()

    def alive(self, owner: str) -> bool:
        """Whether an orchestrator of this state directory still lives."""
        if owner == self.id:
            return True
        path = self._owner_path(owner)
        if not path.exists():
            return False
        lock = FileLock(path)
        if not lock.acquire():
            return True
        lock.release()  # which also clears away what the dead one left
        return False

    def hold(self, name: str) -> FileLock:
        """Take a kept container for this process; NameTaken if another one has it."""
        lock = FileLock(self._dir / "kept" / f"{name}.lock")
        if not lock.acquire():
            raise NameTaken(f"{name} is in use by another run; try again when it has ended")
        return lock

    def held(self, name: str) -> bool:
        lock = FileLock(self._dir / "kept" / f"{name}.lock")
        if not lock.acquire():
            return True
        lock.release()
        return False

    def file_of(self, text: str) -> Path:
        """A file of the state directory with this text in it, and nothing else."""
        path = self._text_path(text)
        try:
            if not path.exists():
                path.parent.mkdir(exist_ok=True, mode=0o700)
                mine = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
                mine.write_text(text)
                mine.rename(path)
        except OSError as exc:
            raise unusable_state_dir(self._dir, exc) from exc
        return path.absolute()

    def has(self, text: str) -> bool:
        """Whether an orchestrator of this state directory has written this text there."""
        return self._text_path(text).exists()

    def _text_path(self, text: str) -> Path:
        return self._dir / "texts" / hashlib.sha256(text.encode()).hexdigest()

    def _owner_path(self, owner: str) -> Path:
        safe = "".join(c for c in owner if c.isalnum())  # it comes from a label
        return self._dir / "owners" / f"{safe or 'nobody'}.lock"


def make_state_dir(folder: Path) -> None:
    """Have the state directory; OperatorError if it cannot be, or is not ours alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise unusable_state_dir(folder, exc) from exc
    check_state_dir(folder)


def unusable_state_dir(folder: Path, exc: OSError) -> OperatorError:
    """What an operator is told of a state directory that cannot be used."""
    why = exc.strerror or type(exc).__name__
    if isinstance(exc, FileExistsError | NotADirectoryError):
        why = (
            "it is not a directory" if folder.exists() else "a file is where a directory should be"
        )
    return OperatorError(
        f"the state directory {folder} cannot be used: {why}. Check free space and permissions, or "
        "name another one in ORCHESTRATOR_STATE_DIR"
    )


def check_state_dir(folder: Path) -> None:
    """OperatorError if another user could have put something into the state directory, whose
    records decide what is removed; or if it is no directory.
    """
    try:
        found = folder.stat()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise unusable_state_dir(folder, exc) from exc
    if not stat.S_ISDIR(found.st_mode):
        raise unusable_state_dir(folder, NotADirectoryError())
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise OperatorError(
            f"the state directory {folder} can be written by another user; make it yours alone "
            f"(chmod 700), or name another one in ORCHESTRATOR_STATE_DIR"
        )


def _state_id(path: Path) -> str:
    """Written whole or not at all, by the process that comes first."""
    if path.is_symlink():
        raise OperatorError(f"{path} is a link, which no orchestrator makes; remove it")
    if not path.exists():
        mine = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
        mine.write_text(secrets.token_hex(8))
        try:
            with suppress(FileExistsError):
                path.hardlink_to(mine)
        finally:
            mine.unlink()
    text = path.read_text().strip()
    if not text:
        raise OperatorError(f"{path} is empty; remove it, when no orchestrator runs")
    return text
