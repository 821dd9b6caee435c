"""So many events a second are kept, and of the rest how many there were."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from orchestrator.domain.events import EventKind

OUTSIDE: frozenset[EventKind] = frozenset(
    (
        *("model_request", "egress", "egress_denied", "secret_used"),
        *("server", "server_call", "server_denied"),
    )
)
"""What the gateway saw. It is counted by itself: chatter must not hide it."""

CHATTER: frozenset[EventKind] = frozenset(
    ("text", "saying", "tool_call", "tool_result", "ready", "mcp_failed", "api_retry", "status")
)
"""What the agent can have us say as often as it likes. All else is ours, and seldom dropped."""

ALWAYS: frozenset[EventKind] = frozenset(("starting", "started", "workspace", "ended"))
"""What only we can say."""


def group(kind: EventKind) -> str:
    """What an event is counted with, so that no group can hide another. What the model was asked
    for is money, and has a group for itself.
    """
    if kind == "model_request":
        return "model"
    return "outside" if kind in OUTSIDE else "chatter" if kind in CHATTER else "words"


class Flood:
    """Counts a run's events, second by second."""

    def __init__(self, per_second: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._second = 0
        self._counts = Counter[str]()
        self._dropped = 0

    def keeps(self, kind: EventKind) -> bool:
        """Whether this one is to be kept."""
        if kind not in CHATTER | OUTSIDE:
            return True
        counted = group(kind)
        self._counts[counted] += 1
        kept = self._counts[counted] <= self._per_second
        self._dropped += not kept
        return kept

    def dropped(self, kind: EventKind) -> int:
        """How many were dropped in a second that is over, or at the end; told once."""
        second = int(self._clock())
        if second == self._second and kind != "ended":
            return 0
        self._second = second
        self._counts.clear()
        dropped, self._dropped = self._dropped, 0
        return dropped
