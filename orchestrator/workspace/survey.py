"""One walk through a directory that an agent may write: what in it is git's, ours, or acts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from orchestrator.errors import MountRefused
from orchestrator.workspace.acts import (
    ACTING_FOLDERS,
    INSTALLED_FOLDERS,
    NPM,
    acts_by_name,
    npm_part,
)
from orchestrator.workspace.ours import (
    AGENT_HEAD_BYTES,
    AGENT_NAME,
    OUR_NAMES,
    PROJECT_NAME,
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
    links: list[str] = field(default_factory=list)
    """Symbolic links."""

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
    found, folders, count = Survey(root), [("", "")], 0
    while folders:
        folder, inside = folders.pop()
        count += 1
        if count > MAX_FOLDERS or folder.count("/") > SURVEY_DEPTH:
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
            folders += _look(found, fd, folder, inside)
        finally:
            os.close(fd)
    return found


def _look(found: Survey, fd: int, folder: str, inside: str) -> list[tuple[str, str]]:
    """Note what is in one directory; the directories in it are returned, with what they are in."""
    names, below = [], []
    last = plain_name(folder.rpartition("/")[2])
    with os.scandir(fd) as rows:
        for row in rows:
            names.append(row.name)
            path = f"{folder}/{row.name}" if folder else row.name
            plain = plain_name(row.name)
            if plain in GIT_NAMES:
                found.git[path] = _identity(fd, row.name)
                continue
            if row.is_dir(follow_symlinks=False):
                below.append((path, inside or _kind(last, plain)))
                continue
            if row.is_symlink():
                found.links.append(path)
            if plain in OUR_NAMES and is_our_name(path):
                if plain == PROJECT_NAME:
                    found.ours[path] = _mark(fd, row.name)
                elif plain != AGENT_NAME or _is_agent(fd, row):
                    found.homes.add(folder)
            if inside == SKIPPED_INSIDE:
                continue
            why = inside or _kind(last, plain) or acts_by_name(plain)
            if why and why != SKIPPED_INSIDE:
                found.acting[path] = _mark(fd, row.name, parts=why == NPM)
    if is_repository(names):
        found.git[folder or TOP] = _identity(fd, ".")
    if folder in found.homes:
        for name in names:
            path = f"{folder}/{name}" if folder else name
            found.ours[path] = _mark(fd, name)
    return below


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
