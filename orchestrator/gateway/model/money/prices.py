"""A model's name and what it used -> dollars. A model that is not known pays the highest price."""

from __future__ import annotations

import re
from collections.abc import Collection

from orchestrator.domain.result import Tokens
from orchestrator.gateway.model.money.price_table import FAST, TABLE, Price, ProviderName

WEB_SEARCH_USD: dict[ProviderName, float] = {"anthropic": 0.01, "openai": 0.01, "google": 0.035}
"""For each search that the API makes on the model's behalf; the dearest of its prices."""

US_ONLY = 1.1
"""What tokens cost more by when the API is told to stay in one country."""

TIERS = {"flex": 0.5, "priority": 2.5, "ultrafast": 6.0}
"""What tokens cost by the tier of service that OpenAI's answer names; the dearest of its models'
factors is taken for all of them."""

MTOK = 1_000_000


class Used(Tokens):
    """What one request took, and what else decides its price."""

    cache_write_hour_tokens: int = 0
    """Of all that were written to the cache."""
    web_searches: int = 0
    fast: bool = False
    us_only: bool = False
    tier: str = ""
    """Of service, where the API names one."""


PRICES: dict[str, Price] = {name: price for rows in TABLE.values() for name, price in rows.items()}
"""By name without date. Another model of a known family pays what its dearest sibling does."""

FAMILIES = ("opus", "sonnet", "haiku", "fable", "mythos")
"""Claude's."""

_FAMILIES: dict[ProviderName, tuple[str, ...]] = {
    "anthropic": FAMILIES,
    "openai": ("nano", "luna", "mini", "pro", "cyber", "astra", "terra", "sol", "codex"),
    "google": ("lite", "flash", "pro"),
}
"""Words in the names of models that cost about the same, the narrower ones first."""

_DECORATION = re.compile(r"(\[1m\]|-latest|[-@]\d{8}|-\d{4}-\d\d-\d\d|-v\d+(:\d+)?)+$")


def undecorated(model: str) -> str:
    """A model's name without its date and the like, in lower case."""
    return _DECORATION.sub("", model.lower())


def is_listed(model: str) -> bool:
    """Whether a model is billed by a price of its own."""
    return _listed(model) is not None


def _listed(model: str) -> Price | None:
    name = undecorated(model).rpartition("/")[2]
    at = name.find("claude-")
    return PRICES.get(name[max(at, 0) :])


def price_of(model: str, provider: ProviderName = "anthropic") -> Price:
    """The price of a model by whatever name: dated, with a vendor's prefix, unheard of."""
    known = _listed(model)
    if known is not None:
        return known
    rows = TABLE[provider]
    words = set(_words(model))
    for family in _FAMILIES[provider]:
        if family in words:
            return _dearest([price for name, price in rows.items() if family in _words(name)])
    return _dearest(rows.values())


def cost_usd(model: str, used: Used, provider: ProviderName = "anthropic") -> float:
    """What a request cost."""
    price = FAST if used.fast else price_of(model, provider)
    hour = min(used.cache_write_hour_tokens, used.cache_write_tokens)
    read = (
        used.input_tokens * price.input
        + used.cache_read_tokens * price.cache_read
        + (used.cache_write_tokens - hour) * price.cache_write
        + hour * price.cache_write_hour
    ) / MTOK
    written = used.output_tokens * price.output / MTOK
    prompt = used.input_tokens + used.cache_read_tokens + used.cache_write_tokens
    long = price.long_prompt
    if long is not None and prompt > long.above_tokens:
        read *= long.factor
        written *= long.factor if long.output_factor is None else long.output_factor
    dollars = (read + written) * TIERS.get(used.tier, 1.0)
    if used.us_only:
        dollars *= US_ONLY
    return dollars + used.web_searches * WEB_SEARCH_USD[provider]


def _words(model: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", undecorated(model))


def _dearest(prices: Collection[Price]) -> Price:
    """The dearest of them, with the most that any of them reads and writes."""
    dearest = max(prices, key=lambda price: (price.output, price.input, price.cache_read))
    return dearest.model_copy(
        update={
            "output_tokens": max(price.output_tokens for price in prices),
            "picture_tokens": max(price.picture_tokens for price in prices),
        }
    )
