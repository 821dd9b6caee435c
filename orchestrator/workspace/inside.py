"""Runs in the container, as the agent's user: unpack a tree, compare it, hand over what changed.

Standard library only, and no import of ours: its text is given to `python3 -I -S -c`. A record is
four bytes of length and a JSON list, [kind, path, ...]; contents follow as they are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")
CHUNK = 256 * 1024

MAX_PATH = 4000
"""Bytes; beyond it the kernel takes no path anyway."""

MAX_SKIPPED = 100
"""So many things that are left out are named."""

MARKER = ".orchestrator-copy"
"""At the top: which copy this is. Not part of what is compared."""

FULL = 28
"""Exit code: the disk is full."""

Record = list[Any]


class TooMany(Exception):
    """More has changed than the host asked for."""


def read_record(source: BinaryIO) -> Record:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError("the records broke off")
    record: Record = json.loads(source.read(LENGTH.unpack(head)[0]))
    return record


def records(source: BinaryIO) -> Iterator[Record]:
    while (record := read_record(source))[0] != "end":
        yield record


def write_record(out: BinaryIO, *record: object) -> None:
    text = json.dumps(record).encode()
    out.write(LENGTH.pack(len(text)) + text)


def unpack(root: str, source: BinaryIO) -> None:
    """Fill an emptied directory with records of (kind, path, mode, size, mtime_ns, target)."""
    for name in os.listdir(root):
        remove(f"{root}/{name}")
    folders: list[tuple[str, int]] = []
    for kind, path, mode, size, mtime_ns, target in records(source):
        full = f"{root}/{path}"
        if kind == "dir":
            os.mkdir(full, 0o700)
            folders.append((full, mode))
        elif kind == "symlink":
            os.symlink(target, full)
        else:
            write_file(full, source, mode, size, mtime_ns)
    for full, mode in reversed(folders):  # last: a directory may forbid writing
        os.chmod(full, mode)


def change(root: str, source: BinaryIO) -> None:
    """The same records against a directory that is filled: what each names is replaced, but for
    directories; "absent" is removed, and of "mode" only that changes.
    """
    folders: list[tuple[str, int]] = []
    for kind, path, mode, size, _, target in records(source):
        full = f"{root}/{path}"
        there = os.path.lexists(full)
        if kind == "mode":
            os.chmod(full, mode)
            continue
        if kind == "dir":
            if not there:
                os.mkdir(full)
            os.chmod(full, 0o700)
            folders.append((full, mode))
            continue
        if there:
            remove(full)
        if kind == "symlink":
            os.symlink(target, full)
        elif kind == "file":
            write_file(full, source, mode, size)
    for full, mode in reversed(folders):
        os.chmod(full, mode)


def write_file(
    full: str, source: BinaryIO, mode: int, size: int, mtime_ns: int | None = None
) -> None:
    fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = size
        while left:
            data = source.read(min(left, CHUNK))
            if not data:
                raise EOFError("a file broke off")
            left -= len(data)
            while data:
                data = data[os.write(fd, data) :]
        os.fchmod(fd, mode)
        if mtime_ns is not None:
            os.utime(fd, ns=(mtime_ns, mtime_ns))
    finally:
        os.close(fd)


def remove(full: str) -> None:
    if stat.S_ISDIR(os.lstat(full).st_mode):
        os.chmod(full, 0o700)
        for name in os.listdir(full):
            remove(f"{full}/{name}")
        os.rmdir(full)
    else:
        os.unlink(full)


class Comparison:
    """A tree against the records of what was unpacked there."""

    def __init__(self, root: str, out: BinaryIO, most: int, mend: bool) -> None:
        self.root = root
        self.out = out
        self.left = most
        self.mend = mend
        """What the owner may not read is made readable; only when the agent's processes ended."""
        self.skipped = 0
        self.blind: list[str] = []
        """Directories that could not be read: nothing is known of what is below."""

    def run(self, base: dict[str, Record]) -> None:
        folders = [""]
        while folders:
            folder = folders.pop()
            full = f"{self.root}/{folder}"
            if self.mend:
                make_readable(full, stat.S_IRWXU)
            try:
                with os.scandir(full) as rows:
                    for row in rows:
                        path = f"{folder}/{row.name}" if folder else row.name
                        if self.look(row, path, base):
                            folders.append(path)
            except OSError:
                self.blind.append(folder + "/" if folder else "")
                self.skip(folder, "unreadable")
        for path in base:
            if not any(path.startswith(prefix) for prefix in self.blind):
                write_record(self.out, "deleted", path)

    def look(self, row: os.DirEntry[str], path: str, base: dict[str, Record]) -> bool:
        """Tell what is new of one entry; True for a directory to look into."""
        if path == MARKER:
            return False
        if row.name.lower() == ".git":
            self.skip(path, "git")
            return False
        if not encodable(path):
            self.skip(path, "name")
            return False
        if len(path.encode()) > MAX_PATH:
            self.skip(path, "long")
            return False
        try:
            status = row.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        old = base.pop(path, None)
        kind, mode = stat.S_IFMT(status.st_mode), status.st_mode & 0o777
        if kind == stat.S_IFDIR:
            if old is None or old[0] != "dir" or old[2] != mode:
                self.say("dir", path, mode)
            return True
        if kind == stat.S_IFLNK:
            target = os.readlink(row.path)
            if not encodable(target):
                self.skip(path, "name")
            elif old is None or old[0] != "symlink" or old[5] != target:
                self.say("symlink", path, target)
        elif kind == stat.S_IFREG:
            self.look_at_file(row.path, path, mode, status.st_size, old)
        else:
            self.skip(path, "special")
        return False

    def look_at_file(self, full: str, path: str, mode: int, size: int, old: Record | None) -> None:
        if old is not None and old[0] == "file" and old[3] == size:
            if self.mend and not mode & stat.S_IRUSR:
                make_readable(full, stat.S_IRUSR)
            try:
                same = digest(full) == old[4]
            except OSError:
                self.skip(path, "unreadable")
                return
            if same:
                if old[2] != mode:
                    self.say("mode", path, mode)
                return
        self.say("file", path, mode, size)

    def say(self, *record: object) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooMany
        write_record(self.out, *record)

    def skip(self, path: str, why: str) -> None:
        self.skipped += 1
        if self.skipped <= MAX_SKIPPED:
            shown = path.encode("utf-8", "backslashreplace").decode()
            write_record(self.out, "skip", shown[:MAX_PATH], why)


def make_readable(full: str, bits: int) -> None:
    try:
        mode = os.lstat(full).st_mode
        if mode & bits != bits and not stat.S_ISLNK(mode):
            os.chmod(full, stat.S_IMODE(mode) | bits)
    except OSError:
        pass  # the next read of it fails, and says so


def encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(full: str) -> str:
    sha = hashlib.sha256()
    fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        while data := os.read(fd, CHUNK):
            sha.update(data)
    finally:
        os.close(fd)
    return sha.hexdigest()


def compare(root: str, source: BinaryIO, out: BinaryIO, most: int, mend: bool) -> None:
    """Records of what was unpacked in, records of what is different out."""
    base = {record[1]: record for record in records(source)}
    try:
        Comparison(root, out, most, mend).run(base)
    except TooMany:
        write_record(out, "more", "")
    write_record(out, "end", "")


def fetch(root: str, source: BinaryIO, out: BinaryIO, mend: bool) -> None:
    """Names in; for each a record and its content, in pieces that tell their length, out."""
    for record in records(source):
        path = record[1]
        full = f"{root}/{path}"
        try:
            if mend:
                make_readable(full, stat.S_IRUSR)
            fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as exc:
            write_record(out, "skip", path, exc.strerror)
            continue
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                write_record(out, "skip", path, "not a file any more")
                continue
            write_record(out, "file", path)
            while data := os.read(fd, CHUNK):
                out.write(LENGTH.pack(len(data)) + data)
            out.write(LENGTH.pack(0))
        finally:
            os.close(fd)
    write_record(out, "end", "")


def main(verb: str, root: str, most: str = "0", mend: str = "") -> int:
    try:
        with os.fdopen(0, "rb", 4 * CHUNK) as source, os.fdopen(1, "wb", CHUNK) as out:
            if verb == "unpack":
                unpack(root, source)
            elif verb == "change":
                change(root, source)
            elif verb == "compare":
                compare(root, source, out, int(most), mend == "mend")
            else:
                fetch(root, source, out, mend == "mend")
    except OSError as exc:
        print(f"{exc.strerror}: {exc.filename or ''}", file=sys.stderr)
        return FULL if exc.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    except EOFError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.setresuid(-1, -1, os.getuid())  # out of reach of the signals of an agent that runs beside it
    sys.exit(main(*sys.argv[1:]))
