"""Mounts that keep an agent that may write a directory from writing what is git's or ours in it.

What is to stay as it is, is mounted over itself read-only: a mount point can be neither written
nor moved. The directories above it could be moved away, with it, and made anew, so each of them is
mounted over itself too, to be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from orchestrator.domain.container import WORKSPACE, Bind
from orchestrator.errors import MountRefused
from orchestrator.workspace.acts import why_it_acts
from orchestrator.workspace.git.mounts import new_git_dirs
from orchestrator.workspace.git.named import NamedByGit
from orchestrator.workspace.ours import AGENT_NAME, PROJECT_NAMES
from orchestrator.workspace.paths import parents, plain_parts
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_words, shown
from orchestrator.workspace.survey import Survey, agent_above, changed_since, survey

MAX_GUARDS = 128
"""Mounts for the sake of one workspace; each takes the engine a moment."""

MAX_LINKED_FOLDERS = 1000
"""Folders that are looked into where a link leads out of the workspace."""

USE_ANOTHER = "no agent may write there: name another directory"
USE_COPY = "name another directory, or use `workspace: copy`"


def guarded_mounts(
    found: Survey, named: Sequence[NamedByGit], git: Sequence[Bind]
) -> tuple[Bind, ...]:
    """The mounts for git, and those for what is ours or named by git's configuration.

    MountRefused if something cannot be kept from being written. Blocks.
    """
    root = found.root
    if (agent := agent_above(root)) is not None:
        raise MountRefused(f"{root} is in the folder of an agent, {agent}; {USE_ANOTHER}")
    if "" in found.homes or "" in found.folders_of_agents:
        raise MountRefused(f"{root} is a directory of agents, which no agent may write; {USE_COPY}")
    wanted = dict.fromkeys((*found.folders_of_agents, *_project_files(found)), "")
    wanted |= {str(each.path.relative_to(root)): each.setting for each in named}
    closed = {path: why for path, why in wanted.items() if not _any_in(parents(path), wanted)}
    for path, setting in closed.items():
        _check(root, path, setting)
    for link in _links_to_ours(found):
        if not _any_in(parents(link), closed):
            raise MountRefused(
                f"{root / link} is a symbolic link to what is the orchestrator's own, which an "
                f"agent could replace; replace it with what it points to, or {USE_COPY}"
            )
    covered = {bind.target: bind for bind in git}
    for path in sorted(closed):
        target = f"{WORKSPACE}/{path}"
        covered.setdefault(target, _over_itself(root, path))
    mounts = tuple({**_held_above(root, covered), **covered}.values())
    if len(mounts) > MAX_GUARDS:
        raise MountRefused(
            f"{root} holds more repositories, agents and files that git's configuration names "
            f"than can be kept from an agent's writing: they take {len(mounts)} mounts, and "
            f"{MAX_GUARDS} is the limit; {USE_COPY}"
        )
    return mounts


def changes_in_place(before: Survey) -> list[str]:
    """What a person should know of a directory that an agent has written to. Blocks."""
    root = before.root
    try:
        after = survey(root)
    except MountRefused as exc:
        return [f"what the agent made of git, of agents and of files that act is unknown: {exc}"]
    told = []
    if made := new_git_dirs(before.git, after.git):
        told.append(
            f"the agent made {in_words([*map(shown, made)], NAMED_PATHS)} in {root}; remove it, or "
            "look through it before you run git there: git would run what it says"
        )
    links = {*_links_to_ours(after)}.difference(_links_to_ours(before))
    if ours := [*changed_since(before.ours, after.ours), *sorted(links)]:
        told.append(
            f"{in_words([*map(shown, ours)], NAMED_PATHS)} in {root} is new or changed, and "
            "decides what an orchestrator does; remove it, or read it before you run an agent there"
        )
    if acting := changed_since(before.acting, after.acting):
        led = {**before.led, **after.led}
        whys = [f"{shown(path)} ({why_it_acts(path) or led.get(path)})" for path in acting]
        named = in_words(whys, NAMED_PATHS)
        told.append(
            f"files in {root} have changed that act on this machine when a person or a tool uses "
            f"the directory; look at them first: {named}"
        )
    return told


def _check(root: Path, path: str, setting: str) -> None:
    place = root / path
    if setting and path == ".":
        raise MountRefused(
            f"git's {setting} names {root} itself, so git would obey all that an agent writes "
            f"there; {USE_COPY}"
        )
    if place.is_symlink():
        which = f"and git's {setting} leads through it" if setting else "and the orchestrator's own"
        raise MountRefused(
            f"{place} is a symbolic link, {which}; an agent could replace it: replace it with what "
            f"it points to, or {USE_COPY}"
        )
    if setting and not place.exists():
        raise MountRefused(
            f"git's {setting} names {place}, which does not exist: an agent could make it, and git "
            f"would run or obey it; make it yourself, change that setting, or {USE_COPY}"
        )


def _project_files(found: Survey) -> list[str]:
    return [path for path in found.ours if plain_parts(path)[-1] in PROJECT_NAMES]


def _links_to_ours(found: Survey) -> Iterator[str]:
    """Links that an agent could replace by agents of its own."""
    root, looked = found.root, 0
    theirs = {str(root / path) for path in (*found.homes, *found.folders_of_agents)}
    projects = {path.rpartition("/")[0] for path in _project_files(found)}
    for link in found.links:
        folder, _, name = link.rpartition("/")
        named_so = plain_parts(name)[0] in (*PROJECT_NAMES, AGENT_NAME)
        if named_so or (theirs and os.path.realpath(root / link) in theirs):
            yield link
        elif plain_parts(name)[0] == "agents" or folder in projects:
            looked += 1
            if looked > MAX_LINKED_FOLDERS or _holds_agents(root / link):
                yield link


def _holds_agents(folder: Path) -> bool:
    try:
        with os.scandir(folder) as rows:
            names = [row.name for row, _ in zip(rows, range(MAX_LINKED_FOLDERS), strict=False)]
    except OSError:
        return False
    return any(os.path.lexists(folder / name / AGENT_NAME) for name in names)


def _held_above(root: Path, covered: dict[str, Bind]) -> dict[str, Bind]:
    """The directories above what is covered, each over itself, so that none can be moved."""
    held: dict[str, Bind] = {}
    for target in covered:
        if not target.startswith(f"{WORKSPACE}/"):
            continue
        for path in parents(target.removeprefix(f"{WORKSPACE}/")):
            above = f"{WORKSPACE}/{path}"
            if above in covered:
                break  # it cannot be written at all
            held[above] = _over_itself(root, path, read_only=False)
    return held


def _over_itself(root: Path, path: str, *, read_only: bool = True) -> Bind:
    """A mount of what is at a path now, and of nothing that takes its place before it is mounted.
    MountRefused if it is gone, or behind a link by now.
    """
    place = root / path
    try:
        if os.path.realpath(place) != str(place):
            raise MountRefused(f"{place} has just become a symbolic link; try again, or {USE_COPY}")
        found = place.lstat()
    except OSError as exc:
        raise MountRefused(f"{place} has just gone ({exc.strerror}); try again") from exc
    identity = f"{found.st_dev}:{found.st_ino}"
    return Bind(
        source=str(place), target=f"{WORKSPACE}/{path}", read_only=read_only, identity=identity
    )


def _any_in(paths: Sequence[str], places: dict[str, str]) -> bool:
    return any(path in places for path in paths)
