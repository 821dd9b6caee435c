"""Ids of runs as these clients take them: as UUIDs. Pure."""

from __future__ import annotations

import re

UUID_HEAD = "00000000-0000-8000-8000-00"
"""Version 8: what the rest means is ours to say. It is a run's id without the r."""

_OURS = re.compile(r"r([0-9a-f]{10})")
_THEIRS = re.compile(rf"{UUID_HEAD}([0-9a-f]{{10}})")


def run_uuid(run_id: str) -> str:
    """r0123456789 -> 00000000-0000-8000-8000-000123456789."""
    found = _OURS.fullmatch(run_id)
    return f"{UUID_HEAD}{found[1]}" if found else run_id


def our_run_id(text: str) -> str:
    """The same back; what is no such UUID stays as it is."""
    found = _THEIRS.fullmatch(text.lower())
    return f"r{found[1]}" if found else text
