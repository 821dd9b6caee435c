"""What is at a path of this machine -> State. No link is followed."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from orchestrator.workspace.changes.collected import State
from orchestrator.workspace.paths import FILE

HASH_READ_BYTES = 1024 * 1024


def state_of(folder: int, name: str) -> State:
    """What a name in an open directory is; FileNotFoundError if it is nothing."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    kind, mode = stat.S_IFMT(status.st_mode), status.st_mode & 0o777
    if kind == stat.S_IFDIR:
        return State(kind="dir", mode=mode)
    if kind == stat.S_IFLNK:
        target = os.readlink(name, dir_fd=folder).encode(errors="replace").decode()
        return State(kind="symlink", mode=0o777, target=target)
    if kind != stat.S_IFREG:
        return State(kind="file", target="special")  # like nothing that is ever copied
    fd = os.open(name, FILE, dir_fd=folder)
    try:
        return State(kind="file", mode=mode, size=status.st_size, sha256=digest(fd))
    finally:
        os.close(fd)


def digest(fd: int) -> str:
    """The hash of what is left to be read."""
    sha = hashlib.sha256()
    while data := os.read(fd, HASH_READ_BYTES):
        sha.update(data)
    return sha.hexdigest()


def current_umask() -> int:
    """The bits that this process leaves out of the modes of new files."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    umask = os.umask(0o077)  # there is no other way to ask; for a moment, files are ours alone
    os.umask(umask)
    return umask
