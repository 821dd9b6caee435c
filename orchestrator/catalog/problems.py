"""What is wrong with a file, said so that its author can mend it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.domain import Frozen
from orchestrator.plain_yaml import PLACE_CHARS, Loc, shortened, written

LIKENESS = 0.6
"""From here on two words are taken for the same one, misspelt."""


class Problem(Frozen):
    """One thing to mend."""

    path: Path
    line: int
    field: str
    """Such as "mcp_servers[0].name"; empty when it is about the file."""
    message: str

    def __str__(self) -> str:
        return ": ".join(
            part for part in (f"{self.path}:{self.line}", self.field, self.message) if part
        )


class Problems:
    """All that is wrong with one file, as it is being found."""

    def __init__(self, path: Path, first_line: int = 1) -> None:
        self.path = path
        self.found: list[Problem] = []
        self.lines: dict[Loc, int] = {(): first_line}
        """Where each value stands, as far as the document has been read."""

    def add(self, loc: Loc, message: str, line: int | None = None) -> None:
        self.found.append(
            Problem(
                path=self.path,
                line=self.line_of(loc) if line is None else line,
                field=written(loc),
                message=message,
            )
        )

    def line_of(self, loc: Loc) -> int:
        """The line of the value, or of the nearest one around it."""
        while loc not in self.lines:
            loc = loc[:-1]
        return self.lines[loc]

    def ordered(self) -> tuple[Problem, ...]:
        return tuple(sorted(self.found, key=lambda problem: problem.line))


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, if any is."""
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower().replace("-", "_")
    by_form = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(snake[:PLACE_CHARS], by_form, n=1, cutoff=LIKENESS)
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
