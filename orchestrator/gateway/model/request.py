"""A request's body -> what it asks of the model, read once; and the most that it can cost. Pure.

The reader of Python's json holds up all that the process does, the event loop included, even from
a thread of its own. So what is bounded here is not only how long a body is, but how long it takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from orchestrator.domain import Frozen
from orchestrator.gateway.model.money.price_table import MAX_OUTPUT_TOKENS, ProviderName
from orchestrator.gateway.model.money.prices import Used, cost_usd, price_of

MAX_BODY_PARTS = 300_000
"""Texts, commas and brackets of a body, outside of texts: many times what a full context has. To
read one that is nothing but parts would take as long as thousands of others."""

BODY_NUMBER_CHARS = 100
"""Of one number; nothing in a request needs more than a tenth of that."""

BYTES_PER_INPUT_TOKEN = 2
"""Where the API did not say. Few texts have more tokens than that; none has more than bytes."""

NAME_CHARS = 100
"""Of a name that goes into an event."""

MAX_LEFT_OUT = 10
"""Names of what was left out of a request, in its event."""


class Unreadable(ValueError):
    """A body that is not looked through; the text says what it is."""


class Asked(Frozen):
    """What decides the price of a request, as far as it is known before its answer."""

    provider: ProviderName = "anthropic"
    model: str = ""
    body_bytes: int = 0
    max_tokens: int = MAX_OUTPUT_TOKENS
    """That the answer may have."""
    stream: bool = False
    pictures: int = 0
    documents: bool = False
    """A page takes a few bytes of a PDF and thousands of tokens: documents may fill the context."""
    server_tools: bool = False
    """The API's own tools may give the model more to read than the request holds."""
    caches: Literal["", "minutes", "hour"] = ""
    """What is written to the API's cache costs more, the longer it is kept."""
    offers_tools: bool = False
    """The model may call tools. What a CLI asks for by the way, such as a title, has none."""
    fast: bool = False
    us_only: bool = False
    plain_model: bool = True
    """`model` is the very name in the request."""
    left_out: tuple[str, ...] = ()
    """Parts of the request that do not pass."""
    sent: bytes | None = Field(None, repr=False)
    """The body without them; None where all of it passes."""

    @property
    def input_tokens(self) -> int:
        """A guess, rather too many."""
        return self._read(-(-self.body_bytes // BYTES_PER_INPUT_TOKEN))

    @property
    def ceiling_usd(self) -> float:
        """What it costs when no text has fewer tokens than bytes, all of it is written to the
        cache, and the model writes all that it may.
        """
        price = price_of(self.model, self.provider)
        most = price.context_tokens if self.server_tools else self._read(self.body_bytes)
        return self.cost_usd(self.used(most, self.max_tokens))

    def cost_usd(self, used: Used, model: str = "") -> float:
        """What it costs to have used that, of the model that has answered."""
        return cost_usd(model or self.model, used, self.provider)

    def used(self, input_tokens: int, output_tokens: int, web_searches: int = 0) -> Used:
        """What it took if it read and wrote so much, as long as the API has not said."""
        written = input_tokens if self.caches else 0
        return Used(
            input_tokens=input_tokens - written,
            output_tokens=output_tokens,
            cache_write_tokens=written,
            cache_write_hour_tokens=written if self.caches == "hour" else 0,
            web_searches=web_searches,
            fast=self.fast,
            us_only=self.us_only,
        )

    def _read(self, text_tokens: int) -> int:
        price = price_of(self.model, self.provider)
        if self.documents:
            return price.context_tokens
        return min(text_tokens + self.pictures * price.picture_tokens, price.context_tokens)


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


def most_output(model: str, provider: ProviderName, *wanted: object) -> int:
    """How many tokens an answer can have: what the request wants, in any of these places, or what
    the model is able to.
    """
    able = price_of(model, provider).output_tokens
    known = [most for most in wanted if type(most) is int and most > 0]
    return min(max(known), able) if known else able


def kept_parts(
    body: dict[str, object], keys: frozenset[str], within: str = ""
) -> tuple[dict[str, object], list[str]]:
    """A part of a request without what no agent is given, and the names of that."""
    left_out = [f"{within}{key}" for key in body if key not in keys]
    return {key: value for key, value in body.items() if key in keys}, left_out


def sent_in_place(body: dict[str, object], kept: dict[str, object]) -> bytes | None:
    """What is sent in the place of a body; None where that is all of it."""
    return json.dumps(kept).encode() if kept != body else None


def shown_names(names: list[str]) -> tuple[str, ...]:
    """Names of what was left out, as they may go into an event."""
    return tuple(plain_name(name) for name in names[:MAX_LEFT_OUT])


def plain_name(value: object) -> str:
    """A name as it may go into an event; "" for what is none."""
    text = value if isinstance(value, str) else ""
    return "".join(c for c in text[:NAME_CHARS] if c.isprintable())


def objects_of(body: object) -> Iterator[dict[str, object]]:
    """All objects of a body, wherever they stand: what they hold may be in results of tools, in
    documents, and where only a later version of the API looks for it.
    """
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


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
