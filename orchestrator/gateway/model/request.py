"""A request's body -> what it asks of the model, read once; and the most that it can cost. Pure.

The reader of Python's json holds up all that the process does, the event loop included, even from
a thread of its own. So what is bounded here is not only how long a body is, but how long it takes.
"""

from __future__ import annotations

import json

from orchestrator.domain import Frozen
from orchestrator.gateway.model.prices import Used, cost_usd

MAX_BODY_PARTS = 300_000
"""Texts, commas and brackets of a body, outside of texts: many times what a full context has. To
read one that is nothing but parts would take as long as thousands of others."""

BODY_NUMBER_CHARS = 100
"""Of one number; nothing in a request needs more than a tenth of that."""

BYTES_PER_INPUT_TOKEN = 2
"""Where the API did not say. Few texts have more tokens than that."""

MAX_OUTPUT_TOKENS = 128_000
"""What no model goes beyond in one answer; also counted where a request does not say how much."""

NAME_CHARS = 100
"""Of a name that goes into an event."""


class Unreadable(ValueError):
    """A body that is not looked through; the text says what it is."""


class Asked(Frozen):
    """What decides the price of a request, as far as it is known before its answer."""

    model: str = ""
    body_bytes: int = 0
    max_tokens: int = MAX_OUTPUT_TOKENS
    fast: bool = False
    us_only: bool = False

    @property
    def input_tokens(self) -> int:
        """A guess, rather too many."""
        return -(-self.body_bytes // BYTES_PER_INPUT_TOKEN)

    @property
    def ceiling_usd(self) -> float:
        """What it costs when the model writes all that it may."""
        used = Used(
            input_tokens=self.input_tokens,
            output_tokens=self.max_tokens,
            fast=self.fast,
            us_only=self.us_only,
        )
        return cost_usd(self.model, used)


def read_body(body: bytes) -> dict[str, object]:
    """The object that a body holds; Unreadable if it is none, or takes too long."""
    if _has_too_many_parts(body):
        raise Unreadable(
            f"a body of more than {MAX_BODY_PARTS} parts, which takes too long to look through,"
        )
    try:
        asked = json.loads(
            body.decode(),  # json would take UTF-16 too, whose parts were not counted above
            object_pairs_hook=_once,
            parse_int=_short_int,
            parse_float=_short_float,
        )
    except Unreadable:
        raise
    except (ValueError, RecursionError):
        raise Unreadable("a body that is not JSON") from None
    if not isinstance(asked, dict):
        raise Unreadable("a body that is not an object")
    return asked


def asked_for(body: dict[str, object], size: int) -> Asked:
    """What a body of that size asks for."""
    most = body.get("max_tokens")
    known = type(most) is int and 0 < most < MAX_OUTPUT_TOKENS
    return Asked(
        model=plain_name(body.get("model")),
        body_bytes=size,
        max_tokens=most if known else MAX_OUTPUT_TOKENS,
        fast=body.get("speed") == "fast",
        us_only=body.get("inference_geo") == "us",
    )


def plain_name(value: object) -> str:
    """A name as it may go into an event; "" for what is none."""
    text = value if isinstance(value, str) else ""
    return "".join(c for c in text[:NAME_CHARS] if c.isprintable())


def _has_too_many_parts(body: bytes) -> bool:
    if _separators(body) <= MAX_BODY_PARTS:
        return False
    # Most of them are in texts: a long conversation is full of code and tables.
    marks = body.replace(b"\\\\", b"").replace(b'\\"', b"")  # what is left ends or begins a text
    texts = marks.count(b'"') // 2
    if texts > MAX_BODY_PARTS:
        return True
    return texts + sum(map(_separators, marks.split(b'"')[::2])) > MAX_BODY_PARTS


def _separators(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # We would take the last of two values; an API that takes the first sees another request.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Unreadable("a body that can be read in two ways, since a key comes twice in it,")
    return found


def _short_int(digits: str) -> int:
    return int(_short(digits))


def _short_float(digits: str) -> float:
    return float(_short(digits))


def _short(digits: str) -> str:
    if len(digits) > BODY_NUMBER_CHARS:
        raise Unreadable(f"a body with a number of more than {BODY_NUMBER_CHARS} digits")
    return digits
