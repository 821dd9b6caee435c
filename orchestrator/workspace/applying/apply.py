"""Changes -> the host's directory: everything is checked first, then all is done or nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.domain.result import ChangedFile
from orchestrator.errors import ApplyRefused
from orchestrator.workspace.applying.barred import barred
from orchestrator.workspace.applying.states import current_umask, digest, state_of
from orchestrator.workspace.applying.steps import Work, brings_content
from orchestrator.workspace.changes.acting import acting_files
from orchestrator.workspace.changes.collected import Change, Changes, State, taken_mode
from orchestrator.workspace.paths import (
    FILE,
    Root,
    git_mark,
    is_repository,
    leads_out,
    parents,
)
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_lines, shown

NEW_COPY = (
    "for a copy of what is there now, begin a new session (`--session new`; over MCP, `new` as its "
    "name), or remove this one with `orchestrator sessions rm`"
)
"""What helps where a session goes on with a copy that is older than what is there."""


class Applied(Frozen):
    """What was done, or would be."""

    files: tuple[ChangedFile, ...] = ()
    already: bool = False
    """The directory was like that before: nothing was done."""
    dry_run: bool = False
    kept_folders: tuple[str, ...] = ()
    """Deleted in the copy, and still here, since something is in them that was not copied."""


def apply(
    changes: Changes,
    root: Path,
    *,
    identity: str = "",
    dry_run: bool = False,
    allow_links: bool = False,
    allow_acting: bool = False,
    own: Sequence[Path] = (),
    home: Path | None = None,
    configs: Sequence[Path] = (),
    in_session: bool = False,
) -> Applied:
    """Do to `root` what the agent did to its copy. Blocks.

    `root` has no symbolic link in it; with an `identity`, device:inode, it is that directory.
    ApplyRefused, and nothing is touched, if a path that the agent touched is not what it was when
    it was copied, if a new symbolic link leads out of the directory, if git would take what
    comes of it for a repository, if something would change that is an orchestrator's (its `own`, or
    any other's) or that git's configuration names (also that in `home`, and in `configs`), or if
    something acts on this machine. What is as the agent made it already is left as it is. Of modes,
    only whether a file can be run is taken over.
    """
    if not changes.complete:
        raise ApplyRefused(
            f"the changes in {changes.folder} are not complete, so they cannot be applied: "
            f"{'; '.join(changes.warnings[-1:])}"
        )
    try:
        opened = Root(root, identity)
    except OSError as exc:
        raise ApplyRefused(f"{root} cannot be opened: {exc.strerror}") from exc
    with opened as tree:
        now = _Now(tree, changes)
        left = tuple(change for change in now.changes if not now.is_new(change))
        if not left:
            return Applied(files=changes.files, already=True, dry_run=dry_run)
        changes = changes.model_copy(update={"changes": left})
        acting = acting_files(changes, tree)
        changes = changes.model_copy(update={"acting": acting})
        moved = now.conflicts(left)
        problems = [*moved, *([] if allow_links else _links_out(changes))]
        problems += [*now.new_repositories(left), *barred(changes, tree, own, home, configs)]
        problems += _missing(changes)
        if problems:
            way_out = f"\n{NEW_COPY}" if moved and in_session else ""
            raise ApplyRefused(_refusal(root, problems) + way_out)
        if acting and not (allow_acting or dry_run):
            raise ApplyRefused(_wants_a_word(changes, root))
        kept = now.kept_folders
        if not dry_run:
            Work(tree, changes, frozenset(kept)).run()
        return Applied(files=changes.files, dry_run=dry_run, kept_folders=kept)


def _refusal(root: Path, problems: Sequence[str]) -> str:
    lines = in_lines(problems, NAMED_PATHS)
    return f"{root} was left as it is, since the changes do not fit:{lines}"


def _wants_a_word(changes: Changes, root: Path) -> str:
    acting = [f"{shown(path)}: {why}" for path, why in changes.acting.items()]
    return (
        f"{root} was left as it is, since some of the changed files act on this machine when a "
        f"person or a tool uses the directory:{in_lines(acting, NAMED_PATHS)}\n"
        f"A person should look at these first (`orchestrator show {changes.run_id} --patch`), and "
        f"can then apply all of it with `orchestrator apply {changes.run_id} --allow-acting`; over "
        "MCP, `allow_acting: true`, once the person has agreed to them"
    )


def _links_out(changes: Changes) -> list[str]:
    return [
        f"{shown(change.path)} is a new symbolic link that leads out of the directory or into a "
        f".git, to {shown(change.new.target)}; if you want it, apply the changes with "
        f"`orchestrator apply {changes.run_id} --allow-links`"
        for change in changes.changes
        if change.new.kind == "symlink" and leads_out(change.path, change.new.target)
    ]


def _missing(changes: Changes) -> list[str]:
    """Contents that are not where they were kept, or not what they were."""
    return [
        f"the new content of {shown(change.path)} is missing or damaged in {changes.folder}"
        for change in changes.changes
        if brings_content(change) and not _is_whole(changes, change.new)
    ]


def _is_whole(changes: Changes, state: State) -> bool:
    try:
        fd = os.open(changes.object_path(state.sha256), FILE)
    except OSError:
        return False
    try:
        return digest(fd) == state.sha256
    finally:
        os.close(fd)


class _Now:
    """The directory as it is, against what the changes were made from."""

    def __init__(self, tree: Root, changes: Changes) -> None:
        self._tree = tree
        self._changes = {change.path: change for change in changes.changes}
        self._blocked: dict[str, str] = {}
        """Paths that cannot be reached without leaving the tree, and why."""
        self._states = {path: self._look(path) for path in self._changes}
        umask = current_umask()
        self.changes = tuple(
            _with_modes(change, self._states[change.path], umask) for change in changes.changes
        )
        """The same, with the modes that files and directories have here, or will have."""
        self._changes = {change.path: change for change in self.changes}

    def is_new(self, change: Change) -> bool:
        if change.path in self._blocked:
            return False
        if change.path in self.kept_folders:
            return True  # what was not copied keeps a directory alive that the agent deleted
        return self._states[change.path] == change.new

    def conflicts(self, changes: Sequence[Change]) -> list[str]:
        problems = []
        for change in changes:
            path, state = change.path, self._states[change.path]
            if path in self._blocked:
                problems.append(f"{shown(path)}: {self._blocked[path]}")
            elif state != change.old and not (
                state.kind == "dir" and (change.old.kind, change.new.kind) == ("absent", "dir")
            ):
                problems.append(f"{shown(path)} {_difference(change.old, state)}")
            elif _replaces_folder(change) and self._extra(path):
                problems.append(f"{shown(path)} holds something that was not copied")
        return problems

    def new_repositories(self, changes: Sequence[Change]) -> list[str]:
        """What git would take for its own, together with what is here and was not copied."""
        wanted = (change.path for change in changes if change.new.kind != "absent")
        folders = sorted({folder for path in wanted for folder in ("", *parents(path))})
        return [
            f"{shown(folder) or 'the directory itself'} is or would be a repository to git, which "
            "would run what it says; take HEAD out of it, or do without these changes"
            for folder in folders
            if is_repository(self._names_after(folder))
        ]

    def _names_after(self, folder: str) -> set[str]:
        try:
            with self._tree.parent(f"{folder}/x" if folder else "x") as (fd, _):
                names = {*os.listdir(fd)}
        except OSError:
            names = set()  # it is made, or stands in the way and is told of elsewhere
        for name, change in self._marks.get(folder, {}).items():
            if change.new.kind != "absent":
                names.add(name)
            elif change.path not in self.kept_folders:
                names.discard(name)
        return names

    @cached_property
    def _marks(self) -> dict[str, dict[str, Change]]:
        """Changes of what makes a repository, by directory and name."""
        marks: dict[str, dict[str, Change]] = {}
        for path, change in self._changes.items():
            folder, _, name = path.rpartition("/")
            if git_mark(name):
                marks.setdefault(folder, {})[name] = change
        return marks

    @cached_property
    def kept_folders(self) -> tuple[str, ...]:
        """Directories that the agent deleted and that cannot go."""
        kept: set[str] = set()
        for path, change in sorted(self._changes.items(), reverse=True):
            if (change.old.kind, change.new.kind) != ("dir", "absent"):
                continue
            if path in self._blocked or self._states[path].kind != "dir":
                continue
            if self._extra(path) or any(each.startswith(path + "/") for each in kept):
                kept.add(path)
        return tuple(sorted(kept))

    def _extra(self, path: str) -> bool:
        """Whether a directory holds something that the changes do not take away."""
        with self._tree.parent(path + "/x") as (folder, _):
            names = os.listdir(folder)
        below = (self._changes.get(f"{path}/{name}") for name in names)
        return any(change is None or change.new.kind != "absent" for change in below)

    def _look(self, path: str) -> State:
        names = path.split("/")
        try:
            with self._tree.parent(path) as (folder, name):
                return state_of(folder, name)
        except FileNotFoundError:
            return State()
        except OSError as exc:
            above = ("/".join(names[:depth]) for depth in range(1, len(names)))
            if not any(each in self._changes for each in above):  # or it is judged by itself
                self._blocked[path] = f"a directory above it is none any more ({exc.strerror})"
            return State()


def _with_modes(change: Change, here: State, umask: int) -> Change:
    """Of a mode, only whether a file can be run is the agent's to say."""
    old, new = change.old, change.new
    if here.kind == old.kind == "dir" or (
        here.kind == old.kind == "file" and not (here.mode ^ old.mode) & 0o100
    ):
        old = old.model_copy(update={"mode": here.mode})
    if new.kind == "file":
        new = new.model_copy(update={"mode": taken_mode(here, new.mode, umask)})
    elif new.kind == "dir":
        mode = here.mode if here.kind == "dir" else 0o777 & ~umask
        new = new.model_copy(update={"mode": mode})
    return change.model_copy(update={"old": old, "new": new})


def _replaces_folder(change: Change) -> bool:
    return change.old.kind == "dir" and change.new.kind in ("file", "symlink")


def _difference(old: State, now: State) -> str:
    if old.kind == "absent":
        return "is there by now, and was not when the workspace was copied"
    if now.kind == "absent":
        return "is gone since the workspace was copied"
    if old.kind == now.kind and old.model_copy(update={"mode": now.mode}) == now:
        return f"has mode {now.mode:o} by now; it was {old.mode:o} when it was copied"
    return "has changed since the workspace was copied"
