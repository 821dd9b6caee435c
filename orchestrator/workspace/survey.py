"""One walk through a directory that an agent may write: what in it is git's, ours, or acts."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

from orchestrator.errors import MountRefused
from orchestrator.workspace.acts import (
    ACTING_FOLDERS,
    INSTALLED_FOLDERS,
    NPM,
    acts_by_name,
    npm_part,
)
from orchestrator.workspace.linked import LinkedNames
from orchestrator.workspace.ours import (
    AGENT_HEAD_BYTES,
    AGENT_NAME,
    OUR_NAMES,
    PROJECT_NAMES,
    is_agent,
    is_our_name,
)
from orchestrator.workspace.paths import FILE, FOLDER, GIT_NAMES, in_git, is_repository, plain_name

MAX_FOLDERS = 20_000
"""Directories that are looked through."""

SURVEY_DEPTH = 128
"""Directories in directories."""

TOP = "."
"""The workspace itself, where it is a repository without a .git."""

MAX_COMPARED_BYTES = 256 * 1024
"""Of a package.json whose parts are compared."""

SKIPPED_INSIDE = "installed"
"""What a directory is in where nothing acts."""

Identity = tuple[int, int]
"""Device and inode."""

InFolder = tuple[str, str]
"""A directory below the root, and what it is in."""

Look = Callable[[int, str, str], list[InFolder]]
"""Looks into an open directory; the directories in it that are to be looked into."""


@dataclass
class Survey:
    """What was found, by its path below the root."""

    root: Path
    git: dict[str, Identity] = field(default_factory=dict)
    """Every .git, and whatever else is a repository to git."""
    homes: set[str] = field(default_factory=set)
    """Folders that hold an agent.md, or a server.yaml where servers are."""
    ours: dict[str, str] = field(default_factory=dict)
    """Files that decide what an orchestrator does, and how each is known to have changed."""
    acting: dict[str, str] = field(default_factory=dict)
    """Files that act on this machine, in the same way."""
    led: dict[str, str] = field(default_factory=dict)
    """Those of them that act only because a link leads to them, or through them, and how."""
    links: dict[str, str] = field(default_factory=dict)
    """Symbolic links, and what is written in them."""

    @property
    def working_trees(self) -> list[Path]:
        """Where git is used; a repository without a .git is its own."""
        places = [self.root / path for path in self.git]
        return [it.parent if in_git(it.name) else it for it in places]

    @cached_property
    def folders_of_agents(self) -> set[str]:
        """Directories whose folders are agents or servers; "" is the root."""
        return {home.rpartition("/")[0] for home in self.homes if home}


def survey(root: Path) -> Survey:
    """Look through a directory, no link followed; MountRefused if there is too much. Blocks."""
    found = Survey(root)
    _walk(root, [("", "")], partial(_look, found))
    if found.links:
        names = LinkedNames(found.links, root)
        folders = _look_at_places(found, names)
        _walk(root, [(folder, "") for folder in folders], partial(_look_linked, found, names))
    return found


def _walk(root: Path, folders: list[InFolder], look: Look) -> None:
    """Look into directories, and into those that are returned of each."""
    for count, (folder, inside) in enumerate(folders):  # which grows meanwhile
        if count >= MAX_FOLDERS or folder.count("/") > SURVEY_DEPTH:
            raise MountRefused(
                f"{root} holds more than {MAX_FOLDERS:,} directories, or more than {SURVEY_DEPTH} "
                "one in another, too many to look for git repositories in; name a smaller one, or "
                "use `workspace: copy`"
            )
        try:
            fd = os.open(root / folder, FOLDER)
        except OSError:
            continue  # an agent has no more rights there than we, or it is gone
        try:
            folders += look(fd, folder, inside)
        finally:
            os.close(fd)


def _look(found: Survey, fd: int, folder: str, inside: str) -> list[tuple[str, str]]:
    """Note what is in one directory; the directories in it are returned, with what they are in."""
    names, below = [], []
    last = plain_name(folder.rpartition("/")[2])
    with os.scandir(fd) as rows:
        for row in rows:
            names.append(row.name)
            path, plain = _joined(folder, row.name), plain_name(row.name)
            if plain in GIT_NAMES:
                found.git[path] = _identity(fd, row.name)
                continue
            if row.is_dir(follow_symlinks=False):
                below.append((path, inside or _kind(last, plain)))
                continue
            if row.is_symlink():
                found.links[path] = _target(fd, row.name)
            if plain in OUR_NAMES and is_our_name(path):
                if plain in PROJECT_NAMES:
                    found.ours[path] = _mark(fd, row.name)
                elif plain != AGENT_NAME or _is_agent(fd, row):
                    found.homes.add(folder)
            if inside == SKIPPED_INSIDE:
                continue
            why = inside or _kind(last, plain) or acts_by_name(plain, last)
            if why and why != SKIPPED_INSIDE:
                found.acting[path] = _mark(fd, row.name, parts=why == NPM)
    if is_repository(names):
        found.git[folder or TOP] = _identity(fd, ".")
    if folder in found.homes:
        for name in names:
            found.ours[_joined(folder, name)] = _mark(fd, name)
    return below


def _look_at_places(found: Survey, names: LinkedNames) -> list[str]:
    """Note files to which links lead, and links on their way; directories are returned."""
    folders: list[str] = []

    @cache
    def listed(folder: str) -> dict[str, list[str]]:
        rows: dict[str, list[str]] = {}
        with suppress(OSError):
            for name in os.listdir(found.root / folder):
                rows.setdefault(plain_name(name), []).append(_joined(folder, name))
        return rows

    for place in sorted(names.places):
        paths = [""]
        for name in place.split("/") if place else ():
            paths = [path for folder in paths for path in listed(folder).get(name, ())]
        for path in paths:
            if any(not folder or path.startswith(f"{folder}/") for folder in folders):
                continue  # it will be seen there
            if _is_folder(found.root / path):
                folders.append(path)
            else:
                _note_linked(found, names, path)
    return folders


def _look_linked(
    found: Survey, names: LinkedNames, fd: int, folder: str, inside: str
) -> list[InFolder]:
    """Note what in one directory acts because links lead there; the directories are returned."""
    below: list[InFolder] = []
    with os.scandir(fd) as rows:
        for row in rows:
            plain, path = plain_name(row.name), _joined(folder, row.name)
            if plain in GIT_NAMES or plain in INSTALLED_FOLDERS:
                continue
            if row.is_dir(follow_symlinks=False):
                below.append((path, inside))
            else:
                _note_linked(found, names, path)
    return below


def _note_linked(found: Survey, names: LinkedNames, path: str) -> None:
    if path in found.acting:
        return
    why = names.why_it_acts(path, is_link=path in found.links)
    if not why:
        return
    folder, _, name = path.rpartition("/")
    with suppress(OSError):  # gone since it was listed
        fd = os.open(found.root / folder, FOLDER)
        try:
            found.acting[path], found.led[path] = _mark(fd, name, parts=why == NPM), why
        finally:
            os.close(fd)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _target(fd: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=fd)
    except OSError:
        return ""  # gone since it was listed


def _kind(last: str, plain: str) -> str:
    """Whether all in a folder acts, or nothing."""
    if plain in INSTALLED_FOLDERS:
        return SKIPPED_INSIDE
    return ACTING_FOLDERS.get(plain) or ACTING_FOLDERS.get(f"{last}/{plain}") or ""


def _is_agent(fd: int, row: os.DirEntry[str]) -> bool:
    """Also where only the filesystem takes one name for the other; a link counts in any case."""
    try:
        os.stat(AGENT_NAME, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return describes_agent(lambda: os.open(row.name, FILE, dir_fd=fd))


def _mark(fd: int, name: str, *, parts: bool = False) -> str:
    """Another text, if the file is changed: the kernel's clock counts, which no agent sets back."""
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if parts and status.st_size <= MAX_COMPARED_BYTES:
            with open(os.open(name, FILE, dir_fd=fd), "rb") as file:
                part = npm_part(file.read(MAX_COMPARED_BYTES))
            if part is not None:
                return hashlib.sha256(part.encode()).hexdigest()
    except OSError:
        return "unreadable"
    times = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_mode, *times)))


def _identity(folder: int, name: str) -> Identity:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return 0, 0  # gone since it was listed; mounting it will fail and say so
    return status.st_dev, status.st_ino


def agent_above(root: Path) -> Path | None:
    """The agent's folder that a directory is in, if it is in one: all of that is the agent's."""
    for folder in root.parents:
        if describes_agent(partial(os.open, folder / AGENT_NAME, FILE)):
            return folder
    return None


def describes_agent(opener: Callable[[], int]) -> bool:
    """Whether a file that is called agent.md is one; a link counts, and so does a file that we
    cannot read.
    """
    try:
        fd = opener()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        return is_agent(os.read(fd, AGENT_HEAD_BYTES))
    except IsADirectoryError:
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def changed_since(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Paths that are new, different or gone."""
    paths = sorted({*before, *after})
    return [path for path in paths if before.get(path) != after.get(path)]
