"""What the program inside says has changed -> changes that make sense, or none. Pure.

It ran where an agent ran, so every word of it is checked: a tree that could not exist is refused
as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from orchestrator.workspace.box import Odd
from orchestrator.workspace.changes.collected import Change, State, taken_mode
from orchestrator.workspace.paths import (
    MARKER,
    git_mark,
    in_git,
    parents,
    path_problem,
    repositories,
)
from orchestrator.workspace.reading.pack import EntryKind, LeftOut, TreeEntry
from orchestrator.workspace.reading.tree import Snapshot

MAX_CHANGES = 50_000
"""Things that are new or different in one copy; a person does not look through more of them."""

MAX_LISTING_BYTES = 32 * 1024 * 1024
"""Of paths and the targets of links in one listing: an agent decides how long they are."""

MAX_TARGET_BYTES = 4095

REASONS = {
    "git": "since it belongs to git",
    "repository": "since git would take it for a repository, and run what it says",
    "name": "since its name is not UTF-8",
    "long": "since its name is too long",
    "special": "special files",
    "unreadable": "could not be read",
    "ignored": "since .gitignore names it",
}

BY_PRODUCT = "as .gitignore says"


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """Something new or different."""

    kind: EntryKind
    mode: int
    target: str = ""
    fetched: bool = True
    """False: only the mode of a file is different, so its content is known."""


class Listing:
    """Records, one by one; `check` when all are there."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.found: dict[str, FoundEntry] = {}
        self.deleted: set[str] = set()
        self.left_out = LeftOut()
        self.by_products = LeftOut()
        """Directories that .gitignore names: nothing that needs a warning."""
        self.too_many = False
        self._bytes = 0

    def add(self, fields: list[object]) -> bool:
        """Take one record; False after the last one. Odd if it is not one of ours."""
        self._bytes += sum(len(field) for field in fields if isinstance(field, str))
        if self._bytes > MAX_LISTING_BYTES:
            raise Odd(f"their names take more than {MAX_LISTING_BYTES // 1024**2} MiB")
        match fields:
            case ["end", *_]:
                return False
            case ["more", *_]:
                self.too_many = True
            case ["skip", str(path), str(why)]:
                if path not in self.snapshot.git_places:
                    self.left_out.add(REASONS.get(why, "for no known reason"), path)
            case ["deleted", str(path)]:
                if path not in self.snapshot.entries or path in self.deleted:
                    raise Odd("something is deleted that was not there")
                self.deleted.add(path)
            case ["dir", str(path), int(mode)]:
                self._add(path, FoundEntry("dir", mode & 0o777))
            case ["file", str(path), int(mode), int()]:
                self._add(path, FoundEntry("file", mode & 0o777))
            case ["mode", str(path), int(mode)]:
                old = self.snapshot.entries.get(path)
                if old is None or old.kind != "file":
                    raise Odd("a file has a new mode that was not there")
                self._add(path, FoundEntry("file", mode & 0o777, fetched=False))
            case ["symlink", str(path), str(target)]:
                if not _is_target(target):
                    raise Odd("a symbolic link points to no path")
                self._add(path, FoundEntry("symlink", 0o777, target))
            case _:
                raise Odd("a record of no known kind")
        return True

    def _add(self, path: str, found: FoundEntry) -> None:
        if problem := path_problem(path):
            raise Odd(f"a path cannot be used: {problem}")
        if path in self.found:
            raise Odd("one path comes twice")
        if len(self.found) >= MAX_CHANGES:
            raise Odd("there is more than was asked for")
        if in_git(path):
            self.left_out.add(REASONS["git"], path)
        elif path.partition("/")[0] != MARKER:
            self.found[path] = found

    def check(self) -> None:
        """Odd unless everything is in a directory; drops what .gitignore names or git owns."""
        self._drop_by_products()
        self._drop_repositories()
        for path in (*self.found, *self._kept()):
            parent = path.rpartition("/")[0]
            if parent and self._kind_after(parent) != "dir":
                raise Odd("something is in a place that is no directory")
        if any(path in self.deleted for path in self.found):
            raise Odd("something is deleted and there")

    def clear(self) -> None:
        self.found.clear()
        self.deleted.clear()

    def _drop_by_products(self) -> None:
        """Leave out what .gitignore names, new, changed or gone; git would not see it either."""
        dropped = {path for path in self.found if self._is_by_product(path)}
        dropped |= self._left_empty(dropped)
        for path in sorted({self._outermost(path, dropped) for path in dropped}):
            if path not in self.found or self.found[path].kind == "dir":
                self.by_products.add(BY_PRODUCT, path)
            else:  # whoever asked for it will look for it
                self.left_out.add(REASONS["ignored"], path)
        for path in dropped:
            del self.found[path]
        for path in [path for path in self.deleted if self._was_by_product(path)]:
            above = parents(path)
            # In the place of a directory that is something else by now, nothing can stay.
            if all(each not in self.found or self.found[each].kind == "dir" for each in above):
                self.deleted.difference_update((path, *above))

    def _is_by_product(self, path: str) -> bool:
        if path in self.snapshot.entries:
            return self._was_by_product(path)
        ignore = self.snapshot.ignore
        if ignore is None:
            return False
        return ignore.ignored_anywhere(path, folder=self.found[path].kind == "dir")

    def _was_by_product(self, path: str) -> bool:
        """Of something that was copied: where it is not known what git tracks, it may be more."""
        ignore, is_folder = self.snapshot.ignore, self.snapshot.entries[path].kind == "dir"
        if ignore is None or not ignore.ignored_anywhere(path, folder=is_folder):
            return False
        return path in (self._untracked_folders if is_folder else self.snapshot.untracked)

    @cached_property
    def _untracked_folders(self) -> frozenset[str]:
        """Directories of which it is known that git tracks nothing in them."""
        tracked: set[str] = set()
        for path, entry in self.snapshot.entries.items():
            if entry.kind != "dir" and path not in self.snapshot.untracked:
                tracked.update(parents(path))
        return frozenset(
            {above for path in self.snapshot.untracked for above in parents(path)} - tracked
        )

    def _outermost(self, path: str, dropped: set[str]) -> str:
        """The directory that .gitignore names and that a path is in; or the path itself."""
        ignore = self.snapshot.ignore
        for each in parents(path):
            if each in dropped or (ignore and ignore.ignored_anywhere(each, folder=True)):
                return each
        return path

    def _left_empty(self, dropped: set[str]) -> set[str]:
        """New directories that hold nothing but by-products."""
        kept = {above for path in self.found if path not in dropped for above in parents(path)}
        holds = {above for path in dropped for above in parents(path)}
        return {
            path
            for path in holds - kept
            if path in self.found and path not in self.snapshot.entries
        }

    def _drop_repositories(self) -> None:
        """Leave out what would be git's own, though nothing is called .git: of a repository that
        was there, everything; a new directory, as a whole; of another one, what makes it one.
        """
        before = repositories(self.snapshot.entries)
        made = repositories((*self._kept(), *self.found)) - before
        if not before and not made:
            return
        owners = {path: self._owner(path, before, made) for path in self.found}
        theirs = {path for path, owner in owners.items() if owner is not None}
        owned = {owner for owner in owners.values() if owner is not None}
        for path in [path for path in self.deleted if not before.isdisjoint(("", *parents(path)))]:
            above = parents(path)
            owned.update(before.intersection(("", *above)))
            self.deleted.difference_update((path, *above))
            theirs.update(each for each in above if self._kind_after(each) != "dir")
        for path in theirs:
            self.found.pop(path, None)
        if owned:
            for each in sorted(owned):
                self.left_out.add(REASONS["repository"], each or ".")

    def _owner(self, path: str, before: set[str], made: set[str]) -> str | None:
        """The repository that a path belongs to."""
        names = path.split("/")
        for depth, folder in enumerate(("", *parents(path))):
            if folder in before:
                return folder
            if folder in made and (self._is_new(folder) or git_mark(names[depth])):
                return folder
        return path if path in made and self._is_new(path) else None

    def _is_new(self, folder: str) -> bool:
        old = self.snapshot.entries.get(folder)
        return folder != "" and (old is None or old.kind != "dir")

    def _kept(self) -> Iterator[str]:
        """What nothing was said of."""
        for path in self.snapshot.entries:
            if path not in self.deleted and path not in self.found:
                yield path

    def _kind_after(self, path: str) -> EntryKind | None:
        if path in self.found:
            return self.found[path].kind
        entry = self.snapshot.entries.get(path)
        return None if entry is None or path in self.deleted else entry.kind

    def changes(self, contents: dict[str, tuple[str, int]]) -> Iterator[Change]:
        """In the order of their paths; contents are path -> sha256 and size."""
        base = self.snapshot.entries
        for path in sorted((*self.deleted, *self.found)):
            old, new = base.get(path), self._entry(path, contents)
            if new is None and path not in self.deleted:
                continue  # its content could not be had
            change = Change(path=path, old=State.of(old), new=State.of(new))
            if change.old != change.new:
                yield change

    def _entry(self, path: str, contents: dict[str, tuple[str, int]]) -> TreeEntry | None:
        found = self.found.get(path)
        if found is None:
            return None
        old = self.snapshot.entries.get(path)
        if found.kind == "dir":
            return TreeEntry("dir", old.mode if old and old.kind == "dir" else 0o755)
        if found.kind == "symlink":
            return TreeEntry("symlink", found.mode, target=found.target)
        mode = taken_mode(State.of(old), found.mode)
        if not found.fetched:
            return replace(self.snapshot.entries[path], mode=mode)
        if path not in contents:
            return None
        sha256, size = contents[path]
        return TreeEntry("file", mode, size, sha256=sha256)


def _is_target(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= MAX_TARGET_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False
