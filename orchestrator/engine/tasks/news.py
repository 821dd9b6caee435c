"""Wakes what waits in this process for a change in the store."""

from __future__ import annotations

from math import inf

import anyio

STORE_LOOK_SECONDS = 0.3
"""How often the store is looked at all the same: other processes cannot wake us."""


class News:
    """One for all runs: a waiting task is woken by every change, and reads the store again."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def tell(self) -> None:
        """Wake all that wait: something has changed."""
        self._changed.set()
        self._changed = anyio.Event()

    def next(self) -> anyio.Event:
        """What the next change sets. Take it before you read the store, or you may miss one."""
        return self._changed


async def wait_for_news(changed: anyio.Event, seconds: float = inf) -> None:
    """Until it is time to read the store again: at the next change, after STORE_LOOK_SECONDS, or
    after `seconds`.
    """
    with anyio.move_on_after(min(seconds, STORE_LOOK_SECONDS)):
        await changed.wait()
