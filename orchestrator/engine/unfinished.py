"""What the agent is saying: kept as it comes, and told to the record now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from orchestrator.engine.record import MAX_TEXT, Record

UNFINISHED_CHARS = 64 * 1024
"""Of one text that is kept, and of all of them in the record of a run."""

TELL_SECONDS = 1.0
"""Between two words to the record."""


class UnfinishedText:
    """One text of the agent after another, each until it is whole."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pieces: list[str] = []
        self._chars = 0
        self._told = 0
        """Characters of this text that the record has."""
        self._told_in_all = 0
        self._told_at = -inf

    def hear(self, piece: str, *, begins: bool) -> None:
        """The agent says a bit more, or begins to say something else."""
        if begins:
            self.end()
        kept = piece[: UNFINISHED_CHARS - self._chars]
        if kept:
            self._pieces.append(kept)
            self._chars += len(kept)

    def end(self) -> None:
        """The text is whole, or no more of it will come; whoever hears it whole notes it."""
        self._pieces, self._chars, self._told = [], 0, 0

    def text(self, record: Record) -> str:
        """So far, but for an end that may be the beginning of a secret."""
        return record.sure("".join(self._pieces)) if self._pieces else ""

    def tell(self, record: Record) -> None:
        """Have the record know what was said since the last time."""
        now = self._clock()
        left = UNFINISHED_CHARS - self._told_in_all
        if not self._pieces or left <= 0 or now - self._told_at < TELL_SECONDS:
            return
        fresh = self.text(record)[self._told :]
        if not fresh:
            return
        begins, self._told_at = not self._told, now
        self._told += len(fresh)
        # First this: a secret must not lie across two events, nor be cut before it is known.
        said = record.clean(fresh)[:left]
        self._told_in_all += len(said)
        for start in range(0, len(said), MAX_TEXT):
            record.note("saying", said[start : start + MAX_TEXT], begins=begins and not start)
