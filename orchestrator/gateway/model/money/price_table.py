"""What models cost, row by row. Nothing here decides anything: prices.py does."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen

ProviderName = Literal["anthropic", "openai", "google"]

CONTEXT_TOKENS = 1_000_000
PICTURE_TOKENS = 5_000
MAX_OUTPUT_TOKENS = 128_000
"""Of a model of Anthropic's: what it reads, of a picture, and what it writes, at most."""


class LongPrompt(Frozen):
    """Some models cost more by a factor when the prompt is long."""

    above_tokens: int
    factor: float
    output_factor: float | None = None
    """Of what it writes; None for the same."""


class Price(Frozen):
    """Dollars for a million tokens, and what one request can have of them at most."""

    input: float
    output: float
    cache_write: float
    cache_write_hour: float
    """Written to be kept for an hour or longer, instead of minutes."""
    cache_read: float
    long_prompt: LongPrompt | None = None
    context_tokens: int = CONTEXT_TOKENS
    """What it reads at most: the API refuses what goes beyond that, for nothing."""
    output_tokens: int = MAX_OUTPUT_TOKENS
    """What it writes at most in one answer."""
    picture_tokens: int = PICTURE_TOKENS
    """Of one picture, however few its bytes: the API scales a larger one down to less."""


def _claude(
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


_LONG_GPT = LongPrompt(above_tokens=272_000, factor=2, output_factor=1.5)


def _gpt(
    tokens_in: float,
    out: float,
    read: float | None = None,
    long: LongPrompt | None = None,
    *,
    writes: float = 1,
    output_tokens: int = 128_000,
    picture_tokens: int = 15_000,
) -> Price:
    """`writes` is what writing to the cache costs, by the price of input: nothing more before
    gpt-5.6, which writes to it by itself.
    """
    return Price(
        input=tokens_in,
        output=out,
        cache_write=tokens_in * writes,
        cache_write_hour=tokens_in * (2 if writes > 1 else 1),
        cache_read=tokens_in if read is None else read,
        long_prompt=long,
        context_tokens=1_050_000,
        output_tokens=output_tokens,
        picture_tokens=picture_tokens,
    )


_LONG_GEMINI = LongPrompt(above_tokens=200_000, factor=2, output_factor=1.5)


def _gemini(
    tokens_in: float,
    out: float,
    read: float,
    long: LongPrompt | None = None,
    output_tokens: int = 65_536,
) -> Price:
    """Reading from its cache is cheaper; writing to it costs nothing of its own."""
    return Price(
        input=tokens_in,
        output=out,
        cache_write=tokens_in,
        cache_write_hour=tokens_in,
        cache_read=read,
        long_prompt=long,
        context_tokens=1_048_576,
        output_tokens=output_tokens,
        picture_tokens=20_000,
    )


_CLAUDE_MODELS: dict[str, Price] = {
    # As in the table that claude 2.1.325 counts by.
    "claude-opus-4-0": _claude(15, 75),
    "claude-opus-4-1": _claude(15, 75),
    "claude-opus-4-5": _claude(5, 25),
    "claude-opus-4-6": _claude(5, 25),
    "claude-opus-4-7": _claude(5, 25),
    "claude-opus-4-8": _claude(5, 25),
    "claude-opus-5": _claude(5, 25),
    "claude-opus-5-5": _claude(4, 20, 0.2),
    "claude-sonnet-4-0": _claude(3, 15),
    "claude-sonnet-4-5": _claude(3, 15),
    "claude-sonnet-4-6": _claude(3, 15),
    "claude-sonnet-5": _claude(2, 10),
    "claude-sonnet-5-5": _claude(2, 10, 0.1),
    "claude-3-5-haiku": _claude(0.8, 4),
    "claude-haiku-4-5": _claude(1, 5),
    "claude-haiku-5-5": _claude(0.1, 0.5, long=LongPrompt(above_tokens=100_000, factor=5)),
    "claude-fable-5": _claude(10, 50),
    "claude-fable-5-1": _claude(10, 50, 0.25),
    "claude-fable-5-2": _claude(8, 40, 0.2),
    "claude-mythos-5": _claude(10, 50),
    "claude-mythos-5-1": _claude(10, 50, 0.25),
}

_GPT_MODELS: dict[str, Price] = {
    # As in the table of litellm 1.109.1 (November 2026), without models that write no text, and
    # without those whose last day it says has passed.
    "gpt-4.1": _gpt(2, 8, 0.5),
    "gpt-4.1-mini": _gpt(0.4, 1.6, 0.1),
    "gpt-4o": _gpt(2.5, 10, 1.25),
    "gpt-4o-mini": _gpt(0.15, 0.6, 0.075, picture_tokens=50_000),
    "gpt-5": _gpt(1.25, 10, 0.125),
    "gpt-5-mini": _gpt(0.25, 2, 0.025),
    "gpt-5-nano": _gpt(0.05, 0.4, 0.005),
    "gpt-5-pro": _gpt(15, 120, output_tokens=272_000),
    "gpt-5.1": _gpt(1.25, 10, 0.125),
    "gpt-5.2": _gpt(1.75, 14, 0.175),
    "gpt-5.2-pro": _gpt(21, 168),
    "gpt-5.3-codex": _gpt(1.75, 14, 0.175),
    "gpt-5.4": _gpt(2.5, 15, 0.25, _LONG_GPT),
    "gpt-5.4-mini": _gpt(0.75, 4.5, 0.075),
    "gpt-5.4-nano": _gpt(0.2, 1.25, 0.02),
    "gpt-5.4-pro": _gpt(30, 180, None, _LONG_GPT),
    "gpt-5.5": _gpt(5, 30, 0.5, _LONG_GPT),
    "gpt-5.5-cyber": _gpt(12.5, 75, 1.25),
    "gpt-5.5-pro": _gpt(30, 180, None, _LONG_GPT),
    "gpt-5.6": _gpt(4, 20, 0.4, _LONG_GPT, writes=1.25),
    "gpt-5.6-cyber": _gpt(12.5, 75, 1.25, _LONG_GPT, writes=1.25),
    "gpt-5.6-luna": _gpt(0.2, 1.2, 0.02, _LONG_GPT, writes=1.25),
    "gpt-5.6-sol": _gpt(4, 20, 0.4, _LONG_GPT, writes=1.25),
    "gpt-5.6-terra": _gpt(2, 12, 0.2, _LONG_GPT, writes=1.25),
    "gpt-6-astra": _gpt(10, 50, 1, _LONG_GPT, writes=1.25),
    "gpt-6-luna": _gpt(0.1, 0.5, 0.01, _LONG_GPT, writes=1.25),
    "gpt-6-rosalind": _gpt(15, 75, 1.5, _LONG_GPT, writes=1.25),
    "gpt-6-sol": _gpt(2, 10, 0.2, _LONG_GPT, writes=1.25),
    "gpt-6.1-sol": _gpt(2, 10, 0.1, _LONG_GPT, writes=1.25),
    "gpt-6.1-terra": _gpt(1, 5, 0.05, _LONG_GPT, writes=1.25),
    "o3": _gpt(2, 8, 0.5),
    "o3-pro": _gpt(20, 80),
}

_GEMINI_MODELS: dict[str, Price] = {
    # From the same table, on the same day; but where it has an introductory price, which ends with
    # November (argon) or December 2026 (3.6 to 3.8), the one that comes after it, twice as high.
    "gemini-2.5-flash": _gemini(0.3, 2.5, 0.03),
    "gemini-2.5-flash-lite": _gemini(0.1, 0.4, 0.01),
    "gemini-2.5-pro": _gemini(1.25, 10, 0.125, _LONG_GEMINI),
    "gemini-3-flash-preview": _gemini(0.5, 3, 0.05),
    "gemini-3.1-flash-lite": _gemini(0.25, 1.5, 0.025),
    "gemini-3.1-pro-preview": _gemini(2, 12, 0.2, _LONG_GEMINI),
    "gemini-3.1-pro-preview-customtools": _gemini(2, 12, 0.2, _LONG_GEMINI),
    "gemini-3.5-flash": _gemini(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": _gemini(0.3, 2.5, 0.03),
    "gemini-3.6-flash": _gemini(1.5, 7.5, 0.15),
    "gemini-3.7-flash": _gemini(1.5, 7.5, 0.15),
    "gemini-3.8-flash": _gemini(1.5, 7.5, 0.15),
    "gemini-4-argon": _gemini(4, 20, 0.2, output_tokens=1_048_576),
    "gemini-flash": _gemini(1.5, 7.5, 0.15),
    "gemini-flash-lite": _gemini(0.3, 2.5, 0.03),
    "gemini-pro": _gemini(2, 12, 0.2, _LONG_GEMINI),
}

TABLE: dict[ProviderName, dict[str, Price]] = {
    "anthropic": _CLAUDE_MODELS,
    "openai": _GPT_MODELS,
    "google": _GEMINI_MODELS,
}
"""By name without date."""

FAST = _claude(30, 150)
"""The dearest of Claude's fast modes: taken for all of them."""
