"""A model's name and what it used -> dollars. A model that is not known pays the highest price."""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.domain import Frozen
from orchestrator.domain.result import Tokens

WEB_SEARCH_USD = 0.01
"""For each search that the API makes on the model's behalf."""

US_ONLY = 1.1
"""What tokens cost more by when the API is told to stay in one country."""

MTOK = 1_000_000


class LongPrompt(Frozen):
    """Some models cost more by a factor when the prompt is long."""

    above_tokens: int
    factor: float


class Price(Frozen):
    """Dollars for a million tokens."""

    input: float
    output: float
    cache_write: float
    cache_write_hour: float
    """Written to be kept for an hour instead of five minutes."""
    cache_read: float
    long_prompt: LongPrompt | None = None


class Used(Tokens):
    """What one request took, and what else decides its price."""

    cache_write_hour_tokens: int = 0
    """Of all that were written to the cache."""
    web_searches: int = 0
    fast: bool = False
    us_only: bool = False


def _price(
    tokens_in: float, out: float, read: float | None = None, long: LongPrompt | None = None
) -> Price:
    return Price(
        input=tokens_in,
        output=out,
        cache_write=tokens_in * 1.25,
        cache_write_hour=tokens_in * 2,
        cache_read=tokens_in / 10 if read is None else read,
        long_prompt=long,
    )


FAST = _price(30, 150)
"""The dearest of the models' fast modes: taken for all of them."""

PRICES: dict[str, Price] = {
    # As in the table that claude 2.1.325 counts by.
    "claude-opus-4-0": _price(15, 75),
    "claude-opus-4-1": _price(15, 75),
    "claude-opus-4-5": _price(5, 25),
    "claude-opus-4-6": _price(5, 25),
    "claude-opus-4-7": _price(5, 25),
    "claude-opus-4-8": _price(5, 25),
    "claude-opus-5": _price(5, 25),
    "claude-opus-5-5": _price(4, 20, 0.2),
    "claude-sonnet-4-0": _price(3, 15),
    "claude-sonnet-4-5": _price(3, 15),
    "claude-sonnet-4-6": _price(3, 15),
    "claude-sonnet-5": _price(2, 10),
    "claude-sonnet-5-5": _price(2, 10, 0.1),
    "claude-3-5-haiku": _price(0.8, 4),
    "claude-haiku-4-5": _price(1, 5),
    "claude-haiku-5-5": _price(0.1, 0.5, long=LongPrompt(above_tokens=100_000, factor=5)),
    "claude-fable-5": _price(10, 50),
    "claude-fable-5-1": _price(10, 50, 0.25),
    "claude-fable-5-2": _price(8, 40, 0.2),
    "claude-mythos-5": _price(10, 50),
    "claude-mythos-5-1": _price(10, 50, 0.25),
}
"""By name without date. Another model of a known family pays what its dearest sibling does."""

FAMILIES = ("opus", "sonnet", "haiku", "fable", "mythos")

_DECORATION = re.compile(r"(\[1m\]|-latest|[-@]\d{8}|-v\d+(:\d+)?)+$")


def undecorated(model: str) -> str:
    """A model's name without its date and the like, in lower case."""
    return _DECORATION.sub("", model.lower())


def is_listed(model: str) -> bool:
    """Whether a model is billed by a price of its own."""
    return _listed(model) is not None


def _listed(model: str) -> Price | None:
    name = undecorated(model)
    at = name.find("claude-")
    return PRICES.get(name[at:]) if at >= 0 else None


def price_of(model: str) -> Price:
    """The price of a model by whatever name: dated, with a vendor's prefix, unheard of."""
    name = undecorated(model)
    known = _listed(model)
    if known is not None:
        return known
    for family in FAMILIES:
        if family in name:
            return _dearest(price for known, price in PRICES.items() if family in known)
    return _dearest(PRICES.values())


def cost_usd(model: str, used: Used) -> float:
    """What a request cost."""
    price = FAST if used.fast else price_of(model)
    hour = min(used.cache_write_hour_tokens, used.cache_write_tokens)
    dollars = (
        used.input_tokens * price.input
        + used.output_tokens * price.output
        + used.cache_read_tokens * price.cache_read
        + (used.cache_write_tokens - hour) * price.cache_write
        + hour * price.cache_write_hour
    ) / MTOK
    prompt = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    if price.long_prompt is not None and prompt > price.long_prompt.above_tokens:
        dollars *= price.long_prompt.factor
    if used.us_only:
        dollars *= US_ONLY
    return dollars + used.web_searches * WEB_SEARCH_USD


def _dearest(prices: Iterable[Price]) -> Price:
    return max(prices, key=lambda price: (price.output, price.input, price.cache_read))
