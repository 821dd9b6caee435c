"""Word that something has changed, for everybody in this process who waits for that."""

from __future__ import annotations

from math import inf

import anyio

LOOK_SECONDS = 0.3
"""How often the store is looked at all the same: other processes have no way to tell us."""


class News:
    """Who waits is woken, and looks for himself."""

    def __init__(self) -> None:
        self._changed = anyio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = anyio.Event()

    def next(self) -> anyio.Event:
        """What will be set by the next word. Take it before you look, or you may miss one."""
        return self._changed


async def soon(changed: anyio.Event, seconds: float = inf) -> None:
    """Until it is time to look again: at the next word, or a moment later, `seconds` at most."""
    with anyio.move_on_after(min(seconds, LOOK_SECONDS)):
        await changed.wait()
