"""One process at a time: a lock on a file, which the kernel lets go when its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import OperatorError

LOCK_POLL_SECONDS = 0.2
"""How often a lock that another process holds is tried again."""


class FileLock:
    """An exclusive lock that ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Take it if no process has it; OperatorError if there can be no such file."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as exc:
            raise OperatorError(
                f"{self._path} cannot be written: {exc.strerror}. Check free space and permissions"
            ) from exc
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        if not _same_file(fd, self._path):  # its last holder removed it in between
            os.close(fd)
            return self.acquire()
        self._fd = fd
        return True

    def release(self) -> None:
        if self._fd >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1


@contextmanager
def file_lock(path: Path, seconds: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at path, or say after so many seconds that it stays taken.

    `waiting` is called once, if another process has to be waited for.
    """
    lock = FileLock(path)
    end = time.monotonic() + seconds
    told = False
    while not lock.acquire():
        if time.monotonic() > end:
            raise OperatorError(
                f"{path} has been locked by another process for {seconds:.0f} s; "
                "wait for it, or end it"
            )
        if not told:
            waiting()
            told = True
        time.sleep(LOCK_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _same_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
