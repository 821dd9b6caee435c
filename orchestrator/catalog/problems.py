"""What is wrong with a file, said so that its author can mend it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from orchestrator.domain import Frozen
from orchestrator.plain_yaml import PLACE_CHARS, Loc, shortened, written

LIKENESS = 0.6
"""From here on two words are taken for the same one, misspelt."""


NEAR_ENOUGH = 0.7
"""The same where words are short, and a wrong guess would stop an agent."""


class Problem(Frozen):
    """One thing to mend."""

    path: Path
    line: int
    """0 where there are no lines: it is about a folder."""
    field: str
    """Such as "mcp_servers[0].name"; empty when it is about the file."""
    message: str

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line else str(self.path)
        return ": ".join(part for part in (where, self.field, self.message) if part)


class Remark(NamedTuple):
    """What a check has to say of an agent, before it is known where that is written."""

    loc: Loc
    message: str
    stops: bool = True
    """The agent cannot be used like that; False for a warning."""


class Problems:
    """All that is wrong with one file, as it is being found."""

    def __init__(self, path: Path, first_line: int = 1) -> None:
        self.path = path
        self.found: list[Problem] = []
        self.lines: dict[Loc, int] = {(): first_line}
        """Where each value stands, as far as the document has been read."""
        self.aliases: dict[Loc, Loc] = {}
        """What stands elsewhere than the author wrote it -> where that was."""

    def add(self, loc: Loc, message: str, line: int | None = None) -> None:
        self.found.append(self.at(loc, message, line))

    def at(self, loc: Loc, message: str, line: int | None = None) -> Problem:
        """A problem with the value there; it is not added."""
        return Problem(
            path=self.path,
            line=self.line_of(loc) if line is None else line,
            field=self.written(loc),
            message=message,
        )

    def line_of(self, loc: Loc) -> int:
        """The line of the value, or of the nearest one around it."""
        loc = self._original(loc)
        while loc not in self.lines:
            loc = loc[:-1]
        return self.lines[loc]

    def written(self, loc: Loc) -> str:
        """The place, as the author knows it."""
        return written(self._original(loc))

    def _original(self, loc: Loc) -> Loc:
        for moved, here in self.aliases.items():
            if loc[: len(moved)] == moved:
                return (*here, *loc[len(moved) :])
        return loc

    def ordered(self) -> tuple[Problem, ...]:
        return tuple(sorted(self.found, key=lambda problem: problem.line))


def did_you_mean(word: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """The known word that is most like this one, if any is."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower().replace("-", "_")
    by_form = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(snake[:PLACE_CHARS], by_form, n=1, cutoff=likeness)
    return by_form[close[0]] if close else None


def found(value: object, *, secret: bool = False) -> str:
    """What stands there, for a sentence; only the kind of it where it may be a secret."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "a boolean" if secret else f"the boolean {str(value).lower()}"
        case int() | float():
            return "a number" if secret else f"the number {shortened(str(value))}"
        case str():
            return "a text" if secret else f"'{shortened(value)}'"
        case list():
            return "a list"
        case _:
            return "a mapping"
