"""What no agent may change by way of a copy: the orchestrator's own files, and what git's own
configuration names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from orchestrator.domain.tool_server import SERVER_NAME, SERVERS
from orchestrator.workspace.changes.collected import Change, Changes
from orchestrator.workspace.git.named import named_by_git
from orchestrator.workspace.ours import AGENT_NAME, is_ours
from orchestrator.workspace.paths import FILE, Root, parents, plain_parts
from orchestrator.workspace.reading.pack import shown
from orchestrator.workspace.survey import agent_above, describes_agent

PERSONA_BYTES = 1024 * 1024
"""Of a YAML file that is searched: a longer one is no agent."""


def barred(
    changes: Changes,
    tree: Root,
    own: Sequence[Path] = (),
    home: Path | None = None,
    configs: Sequence[Path] = (),
) -> list[str]:
    """What may not be applied to this directory, and why; a sentence for each. Blocks."""
    if (agent := agent_above(tree.path)) is not None:
        return [f"{tree.path} is in the folder of an agent, {agent}, which no agent may write"]
    found = dict(_of_git(changes, tree, home, configs))
    found |= dict(_ours(changes, tree))
    found |= dict(_owned(changes, tree.path, own))
    yourself = f"take what you want of it from `orchestrator show {changes.run_id} --patch`"
    return [f"{shown(path)} {why}; {yourself} yourself" for path, why in found.items()]


def _owned(changes: Changes, root: Path, own: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Who could write these files could give himself anything."""
    top = plain_parts(root)
    places = [(place, plain_parts(place)) for place in own]
    for change in changes.changes:
        for place, parts in places:
            if _overlap(top + plain_parts(change.path), parts):
                yield (
                    change.path,
                    f"belongs to the orchestrator's own {place}, which no agent may write",
                )


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether one of two paths is, or is in, the other."""
    return all(a == b for a, b in zip(one, other, strict=False))


def _ours(changes: Changes, tree: Root) -> Iterator[tuple[str, str]]:
    """The same of any other project in the directory."""

    @cache
    def is_home(folder: str) -> bool:
        names = plain_parts(folder)
        if len(names) > 1 and names[-2] == SERVERS and _is_there(tree, f"{folder}/{SERVER_NAME}"):
            return True
        return _is_agent_here(tree, f"{folder}/{AGENT_NAME}" if folder else AGENT_NAME)

    @cache
    def holds_agents(folder: str) -> bool:
        return any(is_home(f"{folder}/{name}".lstrip("/")) for name in _names(tree, folder))

    for change in changes.changes:
        homes = [folder for folder in ("", *parents(change.path)) if is_home(folder)]
        if is_ours(change.path, homes):
            if (
                not homes
                and plain_parts(change.path)[-1] == AGENT_NAME
                and not _agent(changes, change)
            ):
                continue  # a page of documentation that is called so
            yield change.path, "is a file of an orchestrator's, which no agent may write"
            continue
        folder = change.path.rpartition("/")[0]
        if change.new.kind == "symlink" and holds_agents(folder):
            yield change.path, "is a link among agents, where no agent may add one"
        elif _is_other_agent(changes, change, tree):
            # An agents directory of another name is known by the agents that are in it.
            usual = [each for each in parents(change.path) if plain_parts(each)[-1] == "agents"]
            if any(map(holds_agents, (folder, *usual))):
                yield change.path, "is an agent, among others, which no agent may write"


def _is_other_agent(changes: Changes, change: Change, tree: Root) -> bool:
    """Whether an agent file of another program, which is read among agents, is made or changed."""
    name = plain_parts(change.path)[-1]
    if name.endswith(".md"):
        return _agent(changes, change) or _is_agent_here(tree, change.path)
    return name.endswith(".yaml") and (
        _is_persona(lambda: os.open(changes.object_path(change.new.sha256), FILE))
        or _is_persona(lambda: tree.open_file(change.path))
    )


def _is_persona(opener: Callable[[], int]) -> bool:
    try:
        with open(opener(), "rb") as file:
            return b"persona" in file.read(PERSONA_BYTES)
    except OSError:
        return False


def _agent(changes: Changes, change: Change) -> bool:
    if change.new.kind != "file":
        return change.new.kind == "symlink"
    return describes_agent(lambda: os.open(changes.object_path(change.new.sha256), FILE))


def _is_agent_here(tree: Root, path: str) -> bool:
    return describes_agent(lambda: tree.open_file(path))


def _names(tree: Root, folder: str) -> list[str]:
    try:
        with tree.parent(f"{folder}/x" if folder else "x") as (fd, _):
            return os.listdir(fd)
    except OSError:
        return []


def _is_there(tree: Root, path: str) -> bool:
    try:
        with tree.parent(path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True


def _of_git(
    changes: Changes, tree: Root, home: Path | None, configs: Sequence[Path]
) -> Iterator[tuple[str, str]]:
    root = tree.path
    above = {folder for change in changes.changes for folder in parents(change.path)}
    tops = [root / folder for folder in sorted(above) if os.path.lexists(root / folder / ".git")]
    named = [
        (plain_parts(each.path.relative_to(root)), each.setting)
        for each in named_by_git(root, tops, home, configs)
    ]
    for change in changes.changes if named else ():
        parts = plain_parts(change.path)
        for place, setting in named:
            on_the_way = parts == place[: len(parts)] and change.new.kind != "dir"
            if parts[: len(place)] == place or on_the_way:
                yield change.path, f"is what git's {setting} names, and git would run or obey it"
