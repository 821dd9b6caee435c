"""Which of the changes act on this machine when a person or a tool uses the directory."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import MountRefused
from orchestrator.workspace.acts import NPM, npm_part, why_it_acts
from orchestrator.workspace.changes.collected import Change, Changes
from orchestrator.workspace.changes.patch import open_new
from orchestrator.workspace.linked import LinkedNames
from orchestrator.workspace.paths import Root
from orchestrator.workspace.reading.tree import Snapshot
from orchestrator.workspace.survey import survey

MAX_NPM_BYTES = 1024 * 1024
"""A longer package.json counts as a whole."""


def with_acting(changes: Changes, snapshot: Snapshot, *, at_work: bool = False) -> Changes:
    """The changes, with those told apart that act, also by way of links. Blocks.

    Links that are not copied (git ignores them) count as well, unless the agent is `at_work`: then
    it is only what is saved meanwhile.
    """
    if not changes.changes:
        return changes
    links = {} if at_work else _links_there(changes.root)
    links |= {path: e.target for path, e in snapshot.entries.items() if e.kind == "symlink"}
    for change in changes.changes:
        if change.new.kind == "symlink":
            links[change.path] = change.new.target
        else:
            links.pop(change.path, None)
    names = LinkedNames(links, changes.root)
    led = {
        change.path: names.why_it_acts(change.path, is_link=change.new.kind == "symlink")
        for change in changes.changes
    }
    found = changes.model_copy(update={"acting": {path: why for path, why in led.items() if why}})
    try:
        with Root(changes.root) as tree:
            return found.model_copy(update={"acting": acting_files(found, tree)})
    except OSError:
        return found.model_copy(update={"acting": acting_files(found, None)})


def _links_there(root: Path) -> dict[str, str]:
    try:
        return survey(root).links
    except (MountRefused, OSError):
        return {}  # too large to be looked through


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
