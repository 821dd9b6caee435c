"""Workspaces that callers have sent: a folder for each caller of a project, a tree for each upload.

An upload is called after the sha256 of its archive, so the same one again is the same tree. It is
written beside its place and renamed: what is there is whole. All of it blocks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from pydantic import ValidationError

from orchestrator.domain import Frozen
from orchestrator.domain.container import MIB
from orchestrator.errors import CopyRefused, MountRefused
from orchestrator.workspace.archives.tar_reader import ENTRY_BYTES, TarLimits, unfolded
from orchestrator.workspace.archives.unpacking import unpack_tree
from orchestrator.workspace.reading.pack import MAX_ENTRIES

UPLOADS = "uploads"
"""The folder, in the state directory."""

UPLOAD_ID = re.compile(r"w[0-9a-f]{64}")

UPLOAD_SECONDS = 3600.0
"""After which an upload that nobody asks for is removed."""

MOST_UPLOADS = 20
"""Of one caller at once."""

MOST_TIMES = 4
"""How many of the largest uploads one caller may have in all."""

TREE = "tree"
UPLOAD_ABOUT = "upload.json"
INCOMING = "incoming-"


class Upload(Frozen):
    """A workspace that was sent."""

    workspace: str
    """Its id."""
    files: int
    bytes: int
    expires: float = 0.0
    """When it is removed, if nobody asks for it before."""

    @property
    def taken(self) -> int:
        """What it takes of the disk."""
        return self.bytes + self.files * ENTRY_BYTES


class Uploads:
    """One caller's never reach another's."""

    def __init__(self, folder: Path, limit_bytes: int, now: Callable[[], float] = time.time):
        self._folder = folder
        self._limit = limit_bytes
        self._now = now

    def add(
        self,
        owner: str,
        pieces: Iterable[bytes],
        *,
        gzipped: bool,
        in_use: Callable[[], Collection[Path]] = tuple,
    ) -> Upload:
        """Unpack an archive for an owner; CopyRefused, and nothing of it stays, if that cannot be.
        Those of the owner's make room for it that are not in use when it has come.
        """
        if not self._limit:
            raise CopyRefused("this server takes no workspaces (ORCHESTRATOR_UPLOAD_MB is 0)")
        home = self._home(owner)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = home / f"{INCOMING}{token_hex(8)}"
        scratch.mkdir(mode=0o700)
        try:
            digest = hashlib.sha256()
            tar = _hashed(unfolded(pieces, gzipped=gzipped), digest.update)
            limits = TarLimits(bytes=self._limit, entries=MAX_ENTRIES)
            found = unpack_tree(tar, scratch / TREE, limits)
            upload = Upload(
                workspace=f"w{digest.hexdigest()}", files=found.files, bytes=found.bytes
            )
            (scratch / UPLOAD_ABOUT).write_text(upload.model_dump_json())
            self._make_room(home, upload, in_use())
            with suppress(OSError):  # the same tree has just been sent, or was there before
                scratch.rename(home / upload.workspace)
        finally:
            _remove(scratch)
        kept = self.find(owner, upload.workspace)
        if kept is None:
            raise CopyRefused("the upload cannot be kept; try again")
        return kept

    def find(self, owner: str, workspace: str) -> Upload | None:
        """An upload of an owner's, which is then kept for another while; None if there is none."""
        place = self._place(owner, workspace)
        if place is None:
            return None
        try:
            upload = Upload.model_validate_json((place / UPLOAD_ABOUT).read_text())
            now = self._now()
            os.utime(place / UPLOAD_ABOUT, (now, now))
        except (OSError, ValidationError):
            return None
        return upload.model_copy(update={"expires": now + UPLOAD_SECONDS})

    def tree(self, owner: str, workspace: str) -> Path:
        """Where it is; MountRefused if it is not the owner's, or not there."""
        if self.find(owner, workspace) is None:
            raise MountRefused(
                f"there is no upload {workspace[:70]!r} of yours, or not any more; send the "
                "workspace again"
            )
        return self._home(owner) / workspace / TREE

    def holds(self, path: Path) -> bool:
        """Whether a path is a workspace that was sent, or could be."""
        return path.is_relative_to(self._folder)

    def is_of(self, owner: str, path: Path) -> bool:
        """Whether it is the tree of an upload of this owner's."""
        named = bool(UPLOAD_ID.fullmatch(path.parent.name))
        return named and path.name == TREE and path.parent.parent == self._home(owner)

    def remove(self, owner: str, workspace: str) -> bool:
        """False if there is none."""
        place = self._place(owner, workspace)
        if place is None:
            return False
        _remove(place)
        return True

    def tidy(self, in_use: Collection[Path]) -> None:
        """Remove what nobody has asked for in a while, and what a crash left."""
        for home in _folders(self._folder):
            for place in _folders(home):
                if self._age(place) > UPLOAD_SECONDS and place / TREE not in in_use:
                    _remove(place)
            with suppress(OSError):  # something is in it
                home.rmdir()

    def _make_room(self, home: Path, upload: Upload, in_use: Collection[Path]) -> None:
        """Remove what was not asked for longest, until the new one fits."""
        others = [each for each in _folders(home) if not each.name.startswith(INCOMING)]
        others = sorted((each for each in others if each.name != upload.workspace), key=self._age)
        count, total = 1, upload.taken
        for place in others:
            size = _taken(place)
            count, total = count + 1, total + size
            if count <= MOST_UPLOADS and total <= MOST_TIMES * self._limit:
                continue
            if place / TREE in in_use:
                raise CopyRefused(
                    f"you have sent {count - 1} workspaces that runs are to work on, and more than "
                    f"{MOST_UPLOADS}, or {MOST_TIMES * self._limit // MIB} MiB, are not kept; wait "
                    "for some of these runs to end"
                )
            _remove(place)
            count, total = count - 1, total - size

    def _age(self, place: Path) -> float:
        for path in (place / UPLOAD_ABOUT, place):
            with suppress(OSError):
                return self._now() - path.stat().st_mtime
        return 0.0

    def _home(self, owner: str) -> Path:
        return self._folder / hashlib.sha256(owner.encode()).hexdigest()[:32]

    def _place(self, owner: str, workspace: str) -> Path | None:
        """Where an upload would be; None for what is no id: it becomes a path."""
        if not UPLOAD_ID.fullmatch(workspace):
            return None
        place = self._home(owner) / workspace
        return place if place.is_dir() and not place.is_symlink() else None


def _hashed(pieces: Iterable[bytes], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in pieces:
        update(piece)
        yield piece


def _taken(place: Path) -> int:
    try:
        return Upload.model_validate_json((place / UPLOAD_ABOUT).read_text()).taken
    except (OSError, ValidationError):
        return 0


def _folders(folder: Path) -> list[Path]:
    try:
        return [each for each in folder.iterdir() if each.is_dir() and not each.is_symlink()]
    except OSError:
        return []


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
