"""Whether processes of ours are still there."""

from __future__ import annotations

import threading


def processes_waited_for() -> int:
    """How many processes of ours have not ended: asyncio has a thread for each."""
    return sum("waitpid-" in each.name for each in threading.enumerate())
