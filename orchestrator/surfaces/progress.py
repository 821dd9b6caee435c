"""Lines of progress -> stderr: a spinner on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shown_progress() -> Iterator[Callable[[str], None]]:
    """Yields what to call with each new step; the time is that since the beginning."""
    began = time.monotonic()
    if not sys.stderr.isatty():
        yield lambda line: _print(line, time.monotonic() - began)
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


def _print(line: str, seconds: float) -> None:
    print(f"{seconds:6.1f} s  {line}", file=sys.stderr, flush=True)
