"""Which .git a directory holds, and how it is shown to an agent that may write there.

Host git runs what a .git says (hooks, core.fsmonitor, filters), so none may be written by an
agent; nor may a directory of any name that holds what a .git does, which git takes for one.
Mounting parts of it read-only was seen not to help: `mv .git .git2` goes around. The whole .git is
mounted over itself, and a mount point can be neither moved nor removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from orchestrator.domain.container import WORKSPACE, Bind
from orchestrator.errors import MountRefused
from orchestrator.workspace.git.directory import Allowed, GitDir, find_git_dir
from orchestrator.workspace.paths import FOLDER, Root, in_git, is_repository
from orchestrator.workspace.reading.pack import shown
from orchestrator.workspace.reading.tree import TREE_DEPTH, nowhere

MAX_FOLDERS = 20_000
"""Directories that are looked through."""

MAX_MOUNTS = 64

TOP = "."
"""The workspace itself, where it is a repository without a .git."""

Identity = tuple[int, int]
"""Device and inode."""


def git_mounts(
    workspace: Path, mode: Literal["ro", "rw"], allowed: Allowed = nowhere
) -> tuple[Bind, ...]:
    """Mounts beside the workspace's own, all of them read-only. Blocks.

    For an agent that may write, every .git over itself; MountRefused if that cannot be done for
    all of them. For a linked worktree, or a submodule alone, also the git directory outside, where
    its .git says it is, if `allowed` says so and that place is free inside.
    """
    root = workspace.resolve()
    mounts = [*_outside(root, allowed)]
    if mode == "rw":
        for path, (device, inode) in git_places(root).items():
            if path == TOP:
                raise MountRefused(
                    f"{root} is itself what git keeps a repository in, and git would run what an "
                    "agent writes there; name another directory, or use `workspace: copy`"
                )
            if (root / path).is_symlink():
                raise MountRefused(
                    f"{root / path} is a symbolic link, which an agent could replace with hooks "
                    "that git runs here; replace it with what it points to, or use "
                    "`workspace: copy`"
                )
            mounts.append(
                Bind(
                    source=str(root / path),
                    target=f"{WORKSPACE}/{path}",
                    identity=f"{device}:{inode}",
                )
            )
    if len(mounts) > MAX_MOUNTS:
        raise MountRefused(
            f"{root} holds {len(mounts)} git repositories, more than the {MAX_MOUNTS} that can be "
            "kept from an agent's writing; name one of them, or use `workspace: copy`"
        )
    return tuple(mounts)


def git_places(workspace: Path) -> dict[str, Identity]:
    """Every .git below a directory, and whatever else is one to git, and which one it is.
    MountRefused if there is too much to look through.
    """
    return dict(_places(workspace.resolve()))


def new_git_dirs(workspace: Path, before: Mapping[str, Identity]) -> tuple[str, ...]:
    """What of `git_places` was not there before, or is another one: git would run what it says."""
    try:
        after = git_places(workspace)
    except MountRefused as exc:
        return (f"unknown, since {exc}",)
    return tuple(shown(path) for path, which in after.items() if before.get(path) != which)


def _places(root: Path) -> Iterator[tuple[str, Identity]]:
    folders, count = [""], 0
    while folders:
        folder = folders.pop()
        count += 1
        if count > MAX_FOLDERS or folder.count("/") > TREE_DEPTH:
            raise MountRefused(
                f"{root} holds more than {MAX_FOLDERS:,} directories, too many to look for git "
                "repositories in; name a smaller one, or use `workspace: copy`"
            )
        try:
            fd = os.open(root / folder, FOLDER)
        except OSError:
            continue  # an agent has no more rights there than we, or it is gone
        names = []
        try:
            with os.scandir(fd) as rows:
                for row in rows:
                    names.append(row.name)
                    path = f"{folder}/{row.name}" if folder else row.name
                    if in_git(row.name):
                        yield path, _identity(fd, row.name)
                    elif row.is_dir(follow_symlinks=False):
                        folders.append(path)
            if is_repository(names):
                yield folder or TOP, _identity(fd, ".")
        finally:
            os.close(fd)


def _identity(folder: int, name: str) -> Identity:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return 0, 0  # gone since it was listed; mounting it will fail and say so
    return status.st_dev, status.st_ino


def _outside(root: Path, allowed: Allowed) -> Iterator[Bind]:
    place = root / ".git"
    try:
        if not stat.S_ISREG(place.lstat().st_mode):
            return
    except OSError:
        return
    found = find_git_dir(place, root, allowed)
    if isinstance(found, GitDir) and not found.shared.is_relative_to(root):
        if found.shared.is_relative_to(WORKSPACE):
            return  # the engine would make directories for it in the workspace itself
        try:
            with Root(found.shared) as opened:
                which = opened.identity
            yield Bind(source=str(found.shared), target=str(found.shared), identity=which)
        except (ValidationError, OSError):
            return  # the container has something of its own there: git will not work inside
