"""Which projects a person has trusted, and with what: a file for each, in the state directory.

A file and not a table: it is read before each run of an agent that wants something, and a person
can read it, and remove it, without us.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path

from pydantic import ValidationError

from orchestrator.errors import OperatorError
from orchestrator.trust import TrustedProject

TRUST_FILE_BYTES = 4 * 1024 * 1024
"""The longest file that is read."""


class TrustBook:
    """What has been trusted. `folder` is only ours: no link in it is followed. Blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, agents_dir: Path) -> TrustedProject | None:
        """What the agents in this directory, a real path, are trusted with; None if nobody has
        trusted them, or if another project has been put in that one's place.
        """
        found = _read(self._file(agents_dir))
        if found is None or found.agents_dir != agents_dir or found.inode != inode(agents_dir):
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


def inode(agents_dir: Path) -> int:
    """Which project it is: of the directory that holds the agents, since a checkout of another
    branch may make agents/ anew. Not its device, whose number may change when the machine starts.
    """
    try:
        return agents_dir.parent.stat().st_ino
    except OSError:
        return 0


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
