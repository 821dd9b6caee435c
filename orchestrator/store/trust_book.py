"""Which projects a person has trusted, and with what: a file for each, in the state directory.

A file and not a table: it is read before each run of an agent that wants something, and a person
can read it, and remove it, without us.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from orchestrator.domain import Frozen
from orchestrator.errors import OperatorError
from orchestrator.trust import Extent, TrustedProject

TRUST_FILE_BYTES = 4 * 1024 * 1024
"""The longest file that is read."""

GET_GENERATION = 0x80007601 | struct.calcsize("l") << 16
"""FS_IOC_GETVERSION. A filesystem gives the number of a directory that was removed to the next one
that is made (ext4 to the very next), and counts how often."""


class TrustBook:
    """What has been trusted. `folder` is only ours: no link in it is followed. Blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, agents_dir: Path) -> TrustedProject | None:
        """What the agents in this directory, a real path, are trusted with; None if nobody has
        trusted them, or if another project has been put in that one's place.
        """
        found = _read(self._file(agents_dir))
        if found is None or not which_project(agents_dir).is_the_one(found):
            return None
        return found

    def all(self) -> tuple[TrustedProject, ...]:
        try:
            files = sorted(self._folder.glob("*.json"))
        except OSError:
            return ()
        found = [project for file in files if (project := _read(file)) is not None]
        return tuple(sorted(found, key=lambda project: project.agents_dir))

    def keep(self, project: TrustedProject) -> None:
        """Trust a project with this, and with nothing else; all of it is written, or nothing."""
        path = self._file(project.agents_dir)
        text = project.model_dump_json(indent=2) + "\n"
        if len(text.encode()) > TRUST_FILE_BYTES:
            raise OperatorError(
                f"the agents in {project.agents_dir} want more than can be written down; let them "
                "name less"
            )
        mine = path.with_name(f".{secrets.token_hex(8)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
            mine.replace(path)
        except OSError as exc:
            mine.unlink(missing_ok=True)
            raise OperatorError(f"{path} cannot be written: {exc.strerror}") from exc

    def forget(self, agents_dir: Path) -> bool:
        """Trust it no more; False if nobody did."""
        try:
            self._file(agents_dir).unlink()
        except FileNotFoundError:
            return False
        except OSError as exc:
            path = self._file(agents_dir)
            raise OperatorError(f"{path} cannot be removed: {exc.strerror}") from exc
        return True

    def _file(self, agents_dir: Path) -> Path:
        return self._folder / f"{hashlib.sha256(os.fsencode(agents_dir)).hexdigest()[:32]}.json"


class WhichProject(Frozen):
    """What tells a project from another one at the same path. Not its device, whose number may
    change when the machine starts.
    """

    agents_dir: Path
    inode: int
    made: str
    own: str
    """Of agents_dir itself."""
    alone: bool
    """Nothing but another project makes agents_dir anew: it is a repository, or in none."""

    def trusted_with(
        self, agents: Mapping[str, Extent], read: Mapping[str, str] | None = None
    ) -> TrustedProject:
        return TrustedProject(
            agents_dir=self.agents_dir,
            inode=self.inode,
            made=self.made,
            own=self.own if self.alone else "",
            at=time.time(),
            agents=dict(agents),
            read=dict(read or {}),
        )

    def is_the_one(self, trusted: TrustedProject) -> bool:
        """Whether this is the project that was trusted."""
        holder = (trusted.agents_dir, trusted.inode) == (self.agents_dir, self.inode)
        if not holder or trusted.made not in ("", self.made):
            return False
        return trusted.own == self.own or not (trusted.own or self.alone)


def which_project(agents_dir: Path) -> WhichProject:
    """The project that has its agents in this directory, a real path, now. As a rule it is known by
    the directory that holds them, since a checkout of another branch may make agents/ anew.
    """
    inode, made = _which(agents_dir.parent)
    in_another = any(os.path.lexists(folder / ".git") for folder in agents_dir.parents)
    return WhichProject(
        agents_dir=agents_dir,
        inode=inode,
        made=made,
        own="{}:{}".format(*_which(agents_dir)),
        alone=os.path.lexists(agents_dir / ".git") or not in_another,
    )


def _which(folder: Path) -> tuple[int, str]:
    """Number of a directory, and which of those it is that had this number."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return 0, ""
    try:
        found = os.fstat(fd)
        born = getattr(found, "st_birthtime", None)  # macOS has it
        return found.st_ino, str(born) if born is not None else _generation(fd)
    finally:
        os.close(fd)


def _generation(fd: int) -> str:
    size = struct.calcsize("l")
    try:
        answer = fcntl.ioctl(fd, GET_GENERATION, bytes(size))
    except OSError:
        return ""  # such as tmpfs, which gives no number twice
    return str(int.from_bytes(answer[:4], "little"))


def _read(path: Path) -> TrustedProject | None:
    """What a file says, if there is one; OperatorError if that is nothing that we wrote."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        folder = os.open(path.parent, flags | os.O_DIRECTORY)
        try:
            fd = os.open(path.name, flags, dir_fd=folder)
        finally:
            os.close(folder)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _unusable(path, exc.strerror or type(exc).__name__) from exc
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise _unusable(path, "it is not a regular file")
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise _unusable(path, "another user can write to it")
        data = file.read(TRUST_FILE_BYTES + 1)
    try:
        return TrustedProject.model_validate_json(data[:TRUST_FILE_BYTES])
    except ValidationError as exc:
        raise _unusable(path, "it is not what an orchestrator of this version writes") from exc


def _unusable(path: Path, why: str) -> OperatorError:
    return OperatorError(
        f"{path}, which says what a project is trusted with, cannot be used: {why}; remove it, "
        "then trust the project again with `orchestrator trust`"
    )
