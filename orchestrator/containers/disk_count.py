"""Runs inside a container, as an errand: counts the bytes that directories take up.

One file, standard library only; exhaustion.py hands its text to the container's python3. It answers
with one JSON object. Files that were removed and are still open count too: they take up room.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path

BLOCK = 512

LEAST = 4096
"""What a file counts for at least: an empty one takes an inode, of which there are not so many."""


def count(roots: list[str], limit: int) -> dict[str, int]:
    """Bytes on the file systems of `roots`; no more is looked at once they are over the limit."""
    devices = {os.lstat(root).st_dev: root for root in roots}
    seen: set[tuple[int, int]] = set()
    used = hidden = 0
    for found in chain(*(_below(root) for root in roots), _removed(devices)):
        if found is None:
            hidden += 1
        elif found.st_nlink == 1 or (found.st_dev, found.st_ino) not in seen:
            used += max(found.st_blocks * BLOCK, LEAST)
            if found.st_nlink != 1:  # it may be met again, by another name
                seen.add((found.st_dev, found.st_ino))
        if used > limit:
            break
    spaces = [os.statvfs(root) for root in devices.values()]
    free = sum(space.f_bavail * space.f_frsize for space in spaces)
    return {"used": used, "hidden": hidden, "free": free}


def _below(root: str) -> Iterator[os.stat_result | None]:
    """What is in a directory; None for each one that cannot be looked into."""
    device = os.lstat(root).st_dev
    folders = [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if found.st_dev != device:
                        continue
                    yield found
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except FileNotFoundError:
            pass  # gone in between
        except OSError:
            yield None


def _removed(devices: Collection[int]) -> Iterator[os.stat_result]:
    """Files without a name that some process has open."""
    for process in Path("/proc").iterdir():
        try:
            for opened in (process / "fd").iterdir():
                found = opened.stat()
                if found.st_dev in devices and found.st_nlink == 0:
                    yield found
        except OSError:
            pass  # gone in between, no process, or the warden


if __name__ == "__main__":
    os.setresuid(-1, -1, os.getuid())  # out of reach of the agent's signals
    print(json.dumps(count(sys.argv[2:], int(sys.argv[1]))))
