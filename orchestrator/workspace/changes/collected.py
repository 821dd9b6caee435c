"""Changes: what became of a copy, kept on disk until it is applied or the run is forgotten.

A folder (0700) with manifest.json, changes.patch if there is one, and objects/SHA256, the new
contents.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from orchestrator.domain import Frozen
from orchestrator.domain.result import ChangedFile
from orchestrator.errors import ApplyRefused
from orchestrator.workspace.paths import in_git, parents, path_problem
from orchestrator.workspace.reading.pack import TreeEntry

MANIFEST = "manifest.json"
PATCH = "changes.patch"
UTF8_PATCH = "changes.utf8.patch"
"""The same where the former is no UTF-8 text, which a result must be: with what is of another
encoding as git writes binary files."""
OBJECTS = "objects"


def _check_path(path: str) -> str:
    if problem := path_problem(path):
        raise ValueError(problem)
    if in_git(path):
        raise ValueError("it belongs to git")
    return path


SafePath = Annotated[str, AfterValidator(_check_path)]
"""A path below the workspace, and in no .git."""


class State(Frozen):
    """What is at a path."""

    kind: Literal["absent", "file", "symlink", "dir"] = "absent"
    mode: Annotated[int, Field(ge=0, le=0o777)] = 0
    size: Annotated[int, Field(ge=0)] = 0
    sha256: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    target: str = ""

    @classmethod
    def of(cls, entry: TreeEntry | None) -> State:
        if entry is None:
            return cls()
        return cls(
            kind=entry.kind,
            mode=entry.mode,
            size=entry.size,
            sha256=entry.sha256,
            target=entry.target,
        )

    def entry(self) -> TreeEntry | None:
        """The other way round; None for what is absent."""
        if self.kind == "absent":
            return None
        return TreeEntry(
            self.kind, self.mode, size=self.size, sha256=self.sha256, target=self.target
        )


class Change(Frozen):
    """One path: what the snapshot says, and what the agent made of it."""

    path: SafePath
    old: State
    new: State


class Changes(Frozen):
    """All that an agent did to its copy."""

    version: Literal[1] = 1
    root: Path
    """The workspace that was copied."""
    changes: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()
    """What of it could not be kept, and why."""
    by_products: tuple[str, ...] = ()
    """What of it stays behind as it should: directories that .gitignore names."""
    acting: dict[str, str] = {}
    """Those that act on this machine when a person or a tool uses the directory, and how."""
    complete: bool = True
    """False: there was too much, or it made no sense; what is here is for reading only."""
    patch_bytes: int | None = None
    """None: there is no patch."""
    folder: Path = Field(default=Path(), exclude=True)

    @property
    def run_id(self) -> str:
        """Whose they are: folders of changes are called after their runs (`kept`)."""
        return self.folder.name.partition(".")[0]

    @property
    def files(self) -> tuple[ChangedFile, ...]:
        """The changes as a list for people; directories only if nothing else tells of them."""
        return changed_files(self.changes, self.acting)

    @property
    def patch_path(self) -> Path | None:
        """The same as a diff that `git apply` takes in the workspace."""
        return None if self.patch_bytes is None else self.folder / PATCH

    @property
    def utf8_patch_path(self) -> Path | None:
        """The same as text, whatever the files are."""
        other = self.folder / UTF8_PATCH
        return other if self.patch_bytes is not None and other.exists() else self.patch_path

    def object_path(self, sha256: str) -> Path:
        return self.folder / OBJECTS / sha256


def save_changes(changes: Changes) -> None:
    """Write the manifest; the objects are there already."""
    scratch = changes.folder / (MANIFEST + ".new")
    scratch.write_text(changes.model_dump_json())
    scratch.replace(changes.folder / MANIFEST)


def load_changes(folder: Path) -> Changes:
    """What `collect` kept in this folder. ApplyRefused if there is nothing of the kind."""
    try:
        text = (folder / MANIFEST).read_text()
        changes = Changes.model_validate_json(text)
    except FileNotFoundError as exc:
        raise ApplyRefused(
            f"no changes are kept in {folder}: the agent worked on no copy, or they were removed"
        ) from exc
    except (OSError, ValueError) as exc:  # also of a text that is none
        raise ApplyRefused(
            f"the changes kept in {folder} cannot be read ({type(exc).__name__}); "
            "run the agent again"
        ) from exc
    return changes.model_copy(update={"folder": folder})


def make_folder(folder: Path) -> None:
    """For one run's changes; only this user may read it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    (folder / OBJECTS).mkdir(mode=0o700, exist_ok=True)
    for stale in (folder / MANIFEST, folder / PATCH):
        stale.unlink(missing_ok=True)
    for name in os.listdir(folder / OBJECTS):
        (folder / OBJECTS / name).unlink()


def taken_mode(old: State, mode: int, umask: int = 0o022) -> int:
    """The mode of a file that an agent left with this one: only whether it can be run counts, and
    all else is as it was or, of a new file, as anybody's would be.
    """
    runs = bool(mode & 0o100)
    if old.kind != "file":
        return (0o777 if runs else 0o666) & ~umask
    if runs == bool(old.mode & 0o100):
        return old.mode
    return old.mode | 0o100 | (old.mode & 0o444) >> 2 if runs else old.mode & ~0o111


def changed_files(
    changes: Sequence[Change], acting: Mapping[str, str] | None = None
) -> tuple[ChangedFile, ...]:
    """A file that is gone here and new there, unchanged, has been renamed."""
    gone: dict[str, list[str]] = {}
    for change in changes:
        if change.old.kind == "file" and change.new.kind == "absent" and change.old.size:
            gone.setdefault(change.old.sha256, []).append(change.path)
    renamed: dict[str, str] = {}
    for change in changes:
        if change.old.kind == "absent" and gone.get(change.new.sha256):
            renamed[change.path] = gone[change.new.sha256].pop(0)
    sources, acts = set(renamed.values()), acting or {}
    above = {parent for c in changes for parent in parents(c.path)}
    return tuple(
        ChangedFile(
            path=change.path,
            change="renamed" if change.path in renamed else _verb(change),
            old_path=renamed.get(change.path, ""),
            acts=acts.get(change.path) or acts.get(renamed.get(change.path, ""), ""),
        )
        for change in changes
        if change.path not in sources and not (_is_folder(change) and change.path in above)
    )


def _is_folder(change: Change) -> bool:
    return {change.old.kind, change.new.kind} == {"absent", "dir"}


def _verb(change: Change) -> Literal["added", "modified", "deleted", "mode"]:
    if change.new.kind == "absent":
        return "deleted"
    if change.old.kind == "absent":
        return "added"
    same = change.old.model_copy(update={"mode": change.new.mode}) == change.new
    return "mode" if same else "modified"
