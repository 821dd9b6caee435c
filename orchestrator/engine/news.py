"""Word that something has changed, for everybody in this process who waits for that."""

from __future__ import annotations

import anyio


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
