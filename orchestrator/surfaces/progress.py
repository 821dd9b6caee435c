"""Lines of progress -> stderr: a spinner on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STILL_SECONDS = 4.0
"""Without a terminal, a step that takes longer is told again, every so often."""


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """Yields what to call with each new step; the time is that since the beginning."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        with _told_again(began) as show:
            yield show
        return
    # Here, since most commands show no progress, and rich takes a tenth of a second to load.
    from rich.console import Console
    from rich.text import Text  # a build step may hold [brackets], which are no markup

    console = Console(stderr=True, highlight=False)
    last: tuple[str, float] | None = None
    with console.status("") as status:

        def finish(now: float) -> None:
            if last is not None:
                console.print(Text(f"{last[1]:6.1f} s  {last[0]} ({now - last[1]:.1f} s)"))

        def show(line: str) -> None:
            nonlocal last
            now = time.monotonic() - began
            finish(now)
            last = (line, now)
            status.update(Text(line))

        try:
            yield show
        finally:
            finish(time.monotonic() - began)


@contextmanager
def _told_again(began: float) -> Iterator[Callable[[str], None]]:
    """Yields what to call with each step. A log that stands still looks like a program that hangs:
    a thread tells long steps again, since whoever works meanwhile may block.
    """
    last = ("", began)
    changed, over = threading.Event(), threading.Event()

    def show(line: str) -> None:
        nonlocal last
        last = (line, time.monotonic())
        _print(line, time.monotonic() - began)
        changed.set()

    def repeat() -> None:
        while not over.is_set():
            if not changed.wait(STILL_SECONDS) and last[0]:
                now = time.monotonic()
                _print(f"{last[0]} ({now - last[1]:.0f} s)", now - began)
            changed.clear()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        changed.set()
        thread.join()


def _print(line: str, seconds: float) -> None:
    print(f"{seconds:6.1f} s  {line}", file=sys.stderr, flush=True)
