"""Every place that a path leads through: who can write one of them decides what the path means."""

from __future__ import annotations

import os
from pathlib import Path

MAX_HOPS = 40
"""Symbolic links in one path, as the kernel has it."""


def led_through(path: Path) -> tuple[Path, ...]:
    """Where each symbolic link on the way really lies, and where the path ends; no link is left in
    the folders of any of them. What does not exist is where it would be made.
    """
    places: dict[Path, None] = {}
    at, waiting, hops = Path("/"), [*path.absolute().parts[1:]], 0
    while waiting:
        name = waiting.pop(0)
        if name in ("", "."):
            continue
        if name == "..":
            at = at.parent
            continue
        here = at / name
        try:
            target = os.readlink(here)  # noqa: PTH115 as it is written, ".." and all
        except OSError:  # no link, or nothing at all
            at = here
            continue
        places[here] = None
        hops += 1
        if hops > MAX_HOPS:
            break
        at = Path("/") if target.startswith("/") else at
        waiting[:0] = target.split("/")
    return (*places, at) if at not in places else (*places,)
