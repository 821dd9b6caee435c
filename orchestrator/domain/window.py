"""Which client of a caller acts: for people to tell apart, never for access.

A surface sets it for each call, and what is written down of the call takes it from here: it goes
through every verb, and none of them decides by it.
"""

from __future__ import annotations

from contextvars import ContextVar

WINDOW: ContextVar[str] = ContextVar("window", default="")
"""Such as `claude-code 4f1c`, or `terminal`."""


def who(caller: str | None) -> str:
    """A caller by its name; None is the operator, who types commands."""
    return caller or "operator"


def whom(caller: str | None) -> str:
    """Who acts at this moment, for people: a caller, or None for the operator, and its window."""
    window = WINDOW.get()
    return f"{who(caller)}{f', {window}' * bool(window)}"
