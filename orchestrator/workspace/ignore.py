"""What .gitignore files leave out: nested, with negations, the deeper file first. No git is run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pathspec import GitIgnoreSpec

from orchestrator.workspace.paths import FILE

MAX_BYTES = 1024 * 1024
"""What is read of one .gitignore."""


class Ignore:
    """The rules of one tree, filled in as it is walked."""

    def __init__(self, rules: Mapping[str, Sequence[str]] | None = None) -> None:
        self.rules: dict[str, list[str]] = {}
        """The lines that count, by the directory whose they are."""
        self._specs: dict[str, GitIgnoreSpec] = {}
        for path, lines in (rules or {}).items():
            self._take(path, list(lines))

    def enter(self, path: str, folder: int) -> None:
        """Take the rules of a directory, before anything in it is asked about."""
        try:
            fd = os.open(".gitignore", FILE, dir_fd=folder)
        except OSError:
            return
        try:
            text = os.read(fd, MAX_BYTES).decode(errors="replace")
        except OSError:
            return  # a directory of that name
        finally:
            os.close(fd)
        lines = [line for line in text.splitlines() if _understood(line)]
        if lines:
            self._take(path, lines)

    def _take(self, path: str, lines: list[str]) -> None:
        self.rules[path] = lines
        self._specs[path] = GitIgnoreSpec.from_lines(lines)

    def ignored(self, path: str, *, folder: bool) -> bool:
        """Whether a path is left out whose parents are not."""
        asked = path + "/" if folder else path
        at = path
        while at:
            at = at.rpartition("/")[0]
            spec = self._specs.get(at)
            if spec is not None:
                verdict = spec.check_file(asked[len(at) + 1 :] if at else asked).include
                if verdict is not None:
                    return verdict
        return False

    def ignored_anywhere(self, path: str, *, folder: bool) -> bool:
        """Whether a path is left out, or something that it is in."""
        names = path.split("/")
        above = ("/".join(names[:depth]) for depth in range(1, len(names)))
        return any(self.ignored(each, folder=True) for each in above) or self.ignored(
            path, folder=folder
        )


def _understood(line: str) -> bool:
    """A pattern that is none is passed over, as git does."""
    if not line.strip():
        return False
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True
