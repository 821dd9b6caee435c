"""A model's name and what it used -> dollars."""

from __future__ import annotations

import pytest

from orchestrator.gateway.model.money.prices import PRICES, Used, cost_usd, price_of


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("claude-opus-4-8[1m]", "claude-opus-4-8"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-opus-4-5-20251101-v1:0", "claude-opus-4-5"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("claude-opus-4-20250514", "claude-opus-4-0"),
        ("sonnet", "claude-sonnet-4-6"),
        ("claude-opus-9", "claude-opus-4-1"),
        ("", "claude-opus-4-1"),
        ("something-else", "claude-opus-4-1"),
    ],
)
def test_a_name_is_known_in_all_its_forms_and_strangers_pay_most(name: str, same_as: str) -> None:
    assert price_of(name) == PRICES[same_as]


def test_a_cost_is_what_the_cli_would_count() -> None:
    # claude 2.1.197 said 0.002 for 200 and 40 tokens of claude-opus-4-8[1m].
    used = Used(input_tokens=200, output_tokens=40)
    assert cost_usd("claude-opus-4-8[1m]", used) == pytest.approx(0.002)


def test_caches_searches_and_surcharges_count() -> None:
    million = 1_000_000
    written = Used(cache_write_tokens=2 * million, cache_write_hour_tokens=million)
    assert cost_usd("claude-sonnet-4-5", written) == pytest.approx(3.75 + 6)
    read = Used(cache_read_tokens=million, web_searches=3)
    assert cost_usd("claude-sonnet-4-5", read) == pytest.approx(0.3 + 0.03)
    assert cost_usd("claude-opus-4-6", Used(output_tokens=million, fast=True)) == 150
    at_home = Used(input_tokens=million, us_only=True)
    assert cost_usd("claude-opus-5-5", at_home) == pytest.approx(4.4)
    assert cost_usd("claude-haiku-5-5", Used(input_tokens=million)) == pytest.approx(0.5)
