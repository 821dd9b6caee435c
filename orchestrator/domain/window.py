"""Which client of a caller acts, in which trace, and for which run: for people to tell apart, never
for access.

A surface sets the first two for each call, and what is written down of the call takes them from
here: they go through every verb, and none of them decides by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

WINDOW: ContextVar[str] = ContextVar("window", default="")
"""Such as `claude-code 4f1c`, or `terminal`."""


def who(caller: str | None) -> str:
    """A caller by its name; None is the operator, who types commands."""
    return caller or "operator"


def whom(caller: str | None) -> str:
    """Who acts at this moment, for people: a caller, or None for the operator, and its window."""
    window = WINDOW.get()
    return f"{who(caller)}{f', {window}' * bool(window)}"


# Traces, in the words of W3C Trace Context

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)

TRACEPARENT: ContextVar[str] = ContextVar("traceparent", default="")
"""Of the caller's span, or "" if the caller told none."""


def valid_traceparent(text: object) -> str:
    """A traceparent as it came from a caller; "" for what is none."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else ""


def trace_id_of(traceparent: str) -> str:
    """The 32 digits by which people find a trace; "" if there is none."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found.group(1) if found else ""


REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
"""What the request is called that runs are begun by, or "" if it has no name. It is told to those
who watch runs, and also of the runs that work for them.
"""


@contextmanager
def called_within(traceparent: object, request_id: str = "") -> Iterator[None]:
    """In this block, runs are begun for a caller whose span this is: the value of a `traceparent`
    header, or of `_meta`; what is none counts as none. The request may have a name, too.
    """
    token = TRACEPARENT.set(valid_traceparent(traceparent))
    named = REQUEST_ID.set(request_id)
    try:
        yield
    finally:
        REQUEST_ID.reset(named)
        TRACEPARENT.reset(token)


class RunAtWork(NamedTuple):
    """The run for which something is done."""

    run_id: str
    trace_id: str = ""


AT_WORK: ContextVar[RunAtWork | None] = ContextVar("at_work", default=None)
"""For lines of the log: which run they are about."""


@contextmanager
def at_work_for(run_id: str, trace_id: str) -> Iterator[None]:
    """In this block, and in tasks that it starts, what is logged is about that run."""
    token = AT_WORK.set(RunAtWork(run_id, trace_id))
    try:
        yield
    finally:
        AT_WORK.reset(token)
