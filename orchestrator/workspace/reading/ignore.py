"""What .gitignore files leave out: nested, with negations, the deeper file first. No git is run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from orchestrator.workspace.paths import FILE, parents
from orchestrator.workspace.reading.ignore_pattern import IgnorePattern, read_pattern

GITIGNORE_BYTES = 1024 * 1024
"""What is read of one .gitignore."""


class Ignore:
    """The rules of one tree, filled in as it is walked."""

    def __init__(self, rules: Mapping[str, Sequence[str]] | None = None) -> None:
        self.rules: dict[str, list[str]] = {}
        """The lines that count, by the directory whose they are."""
        self._patterns: dict[str, list[IgnorePattern]] = {}
        """The same, the last line first."""
        self._folders: dict[str, bool] = {}
        """What is known of directories, or of what they are in."""
        for path, lines in (rules or {}).items():
            self._take(path, lines)

    def enter(self, path: str, folder: int) -> None:
        """Take the rules of a directory, before anything in it is asked about."""
        try:
            fd = os.open(".gitignore", FILE, dir_fd=folder)
        except OSError:
            return
        try:
            text = os.read(fd, GITIGNORE_BYTES).decode(errors="replace")
        except OSError:
            return  # a directory of that name
        finally:
            os.close(fd)
        self._take(path, [line.removesuffix("\r") for line in text.lstrip("\ufeff").split("\n")])

    def _take(self, path: str, lines: Sequence[str]) -> None:
        read = [(line, pattern) for line in lines if (pattern := read_pattern(line)) is not None]
        if read:
            self.rules[path] = [line for line, _ in read]
            self._patterns[path] = [pattern for _, pattern in reversed(read)]

    def ignored(self, path: str, *, folder: bool) -> bool:
        """Whether a path is left out whose parents are not."""
        names = path.encode().split(b"/")
        for depth, at in enumerate(reversed(("", *parents(path))), 1):
            for pattern in self._patterns.get(at, ()):
                if pattern.matches(names[-depth:], folder=folder):
                    return not pattern.negated
        return False

    def ignored_anywhere(self, path: str, *, folder: bool) -> bool:
        """Whether a path is left out, or something that it is in."""
        for each in parents(path):
            if each not in self._folders:
                self._folders[each] = self.ignored(each, folder=True)
            if self._folders[each]:
                return True
        return self.ignored(path, folder=folder)
