"""Which of the changes act on this machine when a person or a tool uses the directory."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from orchestrator.workspace.acts import NPM, npm_part, why_it_acts
from orchestrator.workspace.changes.collected import Change, Changes
from orchestrator.workspace.changes.patch import open_new
from orchestrator.workspace.paths import Root, parents
from orchestrator.workspace.reading.tree import Snapshot

MAX_NPM_BYTES = 1024 * 1024
"""A longer package.json counts as a whole."""

MAX_LINK_HOPS = 10
"""Links to links that are followed to where something acts."""


def with_acting(changes: Changes, snapshot: Snapshot) -> Changes:
    """The changes, with those told apart that act, also by way of a link elsewhere. Blocks."""
    links = {path: e.target for path, e in snapshot.entries.items() if e.kind == "symlink"}
    for change in changes.changes:
        if change.new.kind == "symlink":
            links[change.path] = change.new.target
        else:
            links.pop(change.path, None)
    places = _acting_places(links)
    led = {}
    for change in changes.changes if places else ():
        for path in (change.path, *parents(change.path)):
            if path in places:
                led[change.path] = places[path]
    found = changes.model_copy(update={"acting": led})
    try:
        with Root(changes.root) as tree:
            return found.model_copy(update={"acting": acting_files(found, tree)})
    except OSError:
        return found.model_copy(update={"acting": acting_files(found, None)})


def acting_files(changes: Changes, tree: Root | None) -> dict[str, str]:
    """Path -> what it does; of a package.json, only if the part of it that runs is another."""
    found: dict[str, str] = {}
    for change in changes.changes:
        if {change.old.kind, change.new.kind} <= {"absent", "dir"}:
            continue
        why = why_it_acts(change.path) or changes.acting.get(change.path, "")
        if why and not (why == NPM and _runs_the_same(changes, change, tree)):
            found[change.path] = why
    return found


def _acting_places(links: Mapping[str, str]) -> dict[str, str]:
    """Where links lead that act by their own names, and how."""
    places: dict[str, str] = {}
    for link in links:
        why, at = why_it_acts(link), link
        for _ in range(MAX_LINK_HOPS if why else 0):
            at = posixpath.normpath(posixpath.join(posixpath.dirname(at), links[at]))
            if at.startswith(("/", "../")) or at in ("..", "."):
                break
            places[at] = why
            if at not in links:
                break
    return places


def _runs_the_same(changes: Changes, change: Change, tree: Root | None) -> bool:
    if tree is None or (change.old.kind, change.new.kind) != ("file", "file"):
        return False
    try:
        before = _part(tree.open_file(change.path))
        after = _part(open_new(changes, tree, change))
    except OSError:
        return False
    return before is not None and before == after


def _part(fd: int) -> str | None:
    with open(fd, "rb") as file:
        text = file.read(MAX_NPM_BYTES + 1)
    return npm_part(text) if len(text) <= MAX_NPM_BYTES else None
