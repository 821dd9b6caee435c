"""Which .git a directory holds, and how it is shown to an agent that may write there.

Host git runs what a .git says (hooks, core.fsmonitor, filters), so none may be written by an
agent; nor may a directory of any name that holds what a .git does, which git takes for one.
Mounting parts of it read-only was seen not to help: `mv .git .git2` goes around. The whole .git is
mounted over itself, and a mount point can be neither moved nor removed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from orchestrator.domain.container import WORKSPACE, Bind
from orchestrator.errors import MountRefused
from orchestrator.workspace.git.directory import Allowed, GitDir, find_git_dir
from orchestrator.workspace.paths import Root
from orchestrator.workspace.reading.tree import nowhere
from orchestrator.workspace.survey import TOP, Identity, survey

MAX_MOUNTS = 64


def git_mounts(
    workspace: Path,
    mode: Literal["ro", "rw"],
    allowed: Allowed = nowhere,
    places: Mapping[str, Identity] | None = None,
) -> tuple[Bind, ...]:
    """Mounts beside the workspace's own, all of them read-only. Blocks.

    For an agent that may write, every .git over itself; MountRefused if that cannot be done for
    all of them. For a linked worktree, or a submodule alone, also the git directory outside, where
    its .git says it is, if `allowed` says so and that place is free inside. `places` are those of
    `git_places`, if they are known.
    """
    root = workspace.resolve()
    mounts = [*_outside(root, allowed)]
    if mode == "rw":
        known = git_places(root) if places is None else places
        for path, (device, inode) in known.items():
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
    return survey(workspace.resolve()).git


def new_git_dirs(before: Mapping[str, Identity], after: Mapping[str, Identity]) -> tuple[str, ...]:
    """What of `git_places` was not there before, or is another one: git would run what it says."""
    return tuple(path for path, which in after.items() if before.get(path) != which)


def _outside(root: Path, allowed: Allowed) -> Iterator[Bind]:
    place = root / ".git"
    try:
        if not stat.S_ISREG(place.lstat().st_mode):
            return
    except OSError:
        return
    try:
        with Root(root) as top:
            found = find_git_dir(top, ".git", allowed)
    except OSError:
        return
    if isinstance(found, GitDir) and not found.shared.is_relative_to(root):
        if found.shared.is_relative_to(WORKSPACE):
            return  # the engine would make directories for it in the workspace itself
        try:
            with Root(found.shared) as opened:
                which = opened.identity
            yield Bind(source=str(found.shared), target=str(found.shared), identity=which)
        except (ValidationError, OSError):
            return  # the container has something of its own there: git will not work inside
