"""One process at a time: a lock on a file, which the kernel lets go when its holder ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import OperatorError

LOOK_SECONDS = 0.2
"""How often a lock that somebody else holds is tried again."""


@contextmanager
def file_lock(path: Path, seconds: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at path, or say after so many seconds that it stays taken.

    `waiting` is called once, if there is anybody to wait for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + seconds
        told = False
        while not _taken(descriptor):
            if time.monotonic() > end:
                raise OperatorError(
                    f"{path} has been locked by another process for {seconds:.0f} s; "
                    "wait for it, or end it"
                )
            if not told:
                waiting()
                told = True
            time.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
