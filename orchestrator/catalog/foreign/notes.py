"""What of a file of others counts differently here, or not at all."""

from __future__ import annotations

from typing import Literal

from orchestrator.catalog.problems import Problem

NoteKind = Literal["changed", "left out", "passed over"]
"""It means something else here; it has no effect, and would have there; we do not know it."""


class Note(Problem):
    """One thing that a caller of an agent from a file of others should know; the agent works."""

    kind: NoteKind
    instead: str = ""
    """Lines of agent.md that would make it otherwise."""
