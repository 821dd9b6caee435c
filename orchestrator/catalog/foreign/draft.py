"""What a file of others comes to, as it is being read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.catalog.foreign.dialects import Dialect
from orchestrator.catalog.foreign.notes import Note, NoteKind
from orchestrator.catalog.problems import Problems
from orchestrator.plain_yaml import Loc, shortened

UNHURRIED_MS = 600_000
"""From start to answer, for agents whose authors knew no deadline."""

NAMED_WORDS = 12
"""How many names a note repeats."""


class Draft:
    """What a file comes to, as it is being read."""

    def __init__(
        self, path: Path, dialect: Dialect, file_stem: str, lines: Mapping[Loc, int]
    ) -> None:
        self.path, self.dialect, self.file_stem = path, dialect, file_stem
        self.problems = Problems(path)
        self.problems.lines |= {**lines, (): 1}
        self.notes: list[Note] = []
        self.fields: dict[str, object] = {"timeout_ms": UNHURRIED_MS}
        """In the words of agent.md."""
        self.tools: list[str] | None = None
        """As they are named; None if the file says nothing of them."""
        self.tools_field = "tools"
        self.denied: list[tuple[str, str]] = []
        """The field, and the tool that it takes away."""
        self.read_only = dialect.read_only
        self.asks = False

    def note(self, kind: NoteKind, field: str, message: str, instead: str = "") -> None:
        line = self.problems.line_of((field,) if field else ())
        self.notes.append(
            Note(
                kind=kind, path=self.path, line=line, field=field, message=message, instead=instead
            )
        )

    def changed(self, field: str, message: str, instead: str = "") -> None:
        self.note("changed", field, message, instead)

    def left_out(self, field: str, message: str, instead: str = "") -> None:
        self.note("left out", field, message, instead)


def listed(words: Iterable[str]) -> str:
    """Such as "Bash, Edit and Read", for a sentence."""
    names = [shortened(word) for word in words]
    more = len(names) - NAMED_WORDS
    if more > 0:
        return f"{', '.join(names[:NAMED_WORDS])} and {more} more"
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part) or "nothing"
