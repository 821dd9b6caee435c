"""Answers in each format -> what they used, and how they ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import Meter, Tally
from orchestrator.gateway.model.money.prices import cost_usd
from orchestrator.gateway.model.request import Asked
from orchestrator.runners.contract import WireFormat

RESPONSE = {
    "model": "gpt-5.6",
    "output": [{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}],
    "usage": {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300},
        "output_tokens": 50,
        "output_tokens_details": {"reasoning_tokens": 40},
        "total_tokens": 1050,
    },
}
CHUNK = {"model": "gpt-5.6", "choices": [{"delta": {"content": "x" * 30}, "finish_reason": None}]}
FINISH = {"model": "gpt-5.6", "choices": [{"delta": {}, "finish_reason": "stop"}]}
CHAT_USAGE = {
    "prompt_tokens": 1000,
    "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 300},
    "completion_tokens": 50,
    "completion_tokens_details": {"reasoning_tokens": 40},
}
CANDIDATE = {"content": {"parts": [{"text": "x" * 30}]}}
GEMINI_USAGE = {
    "promptTokenCount": 1000,
    "cachedContentTokenCount": 600,
    "candidatesTokenCount": 10,
    "thoughtsTokenCount": 40,
    "toolUsePromptTokenCount": 7,
    "totalTokenCount": 1057,
}
GEMINI = {
    "modelVersion": "gemini-2.5-pro",
    "candidates": [{**CANDIDATE, "finishReason": "STOP"}],
    "usageMetadata": GEMINI_USAGE,
}

STREAMS: dict[WireFormat, tuple[dict[str, Any], ...]] = {
    "responses": (
        {"type": "response.created", "response": {**RESPONSE, "usage": None, "output": []}},
        {"type": "response.output_text.delta", "delta": "x" * 30},
        {"type": "response.output_text.done", "text": "x" * 30},
        {"type": "response.completed", "response": RESPONSE},
    ),
    "chat": (CHUNK, FINISH, {"model": "gpt-5.6", "choices": [], "usage": CHAT_USAGE}),
    "gemini": (
        {
            "modelVersion": "gemini-2.5-pro",
            "candidates": [CANDIDATE],
            "usageMetadata": {**GEMINI_USAGE, "candidatesTokenCount": 2, "thoughtsTokenCount": 0},
        },
        GEMINI,
    ),
}
WHOLE: dict[WireFormat, dict[str, Any]] = {
    "responses": RESPONSE,
    "chat": {**FINISH, "usage": CHAT_USAGE},
    "gemini": GEMINI,
}
FORMS: tuple[WireFormat, ...] = ("responses", "chat", "gemini")


def meter(form: WireFormat, *events: object, stream: bool = True, status: int = 200) -> Meter:
    api = FORMATS[form]
    model = "gemini-2.5-pro" if form == "gemini" else "gpt-5.6"
    asked = Asked(provider=api.provider, model=model, body_bytes=200, stream=stream)
    found = Meter(asked, api.reading())
    kind = "text/event-stream; charset=utf-8" if stream else "application/json"
    found.start(status, kind)
    if stream:
        data = b"".join(b"data: " + json.dumps(each).encode() + b"\r\n\r\n" for each in events)
        for at in range(0, len(data), 7):
            found.feed(data[at : at + 7])
        found.feed(b"data: [DONE]\n\n" if form == "chat" else b"")
    else:
        found.feed(json.dumps(events[0]).encode())
    return found


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_what_an_api_tells_is_counted_as_it_bills_it(form: WireFormat, stream: bool) -> None:
    read = meter(form, *(STREAMS[form] if stream else (WHOLE[form],)), stream=stream)
    tally = read.tally(seconds=60)
    fresh = {"gemini": 407}.get(form, 100)  # with what its own tools have found
    written = {"gemini": 0}.get(form, 300)
    expected = Tally(
        model=tally.model,
        input_tokens=fresh,
        output_tokens=50,
        cache_read_tokens=600,
        cache_write_tokens=written,
    )
    told = {"cost_usd": 0.0, "answer_id": "", "stop": ""}
    assert tally.model_copy(update=told) == expected
    stops = {"responses": "", "chat": "stop", "gemini": "STOP"}
    assert (tally.answer_id, tally.stop) == ("", stops[form])
    prices = (1.25, 10, 0.125, 0) if form == "gemini" else (4, 20, 0.4, 5)
    counts = (fresh, 50, 600, written)
    dollars = sum(price * n for price, n in zip(prices, counts, strict=True)) / 1e6
    assert tally.cost_usd == pytest.approx(dollars)
    assert not read.broke_off


@pytest.mark.parametrize("form", FORMS)
def test_of_a_stream_that_broke_off_what_was_written_is_estimated(form: WireFormat) -> None:
    read = meter(form, *STREAMS[form][: 3 if form == "responses" else 1])
    assert read.broke_off
    tally = read.tally(whole=False, seconds=2)
    assert tally.output_tokens == 400  # by the second, since thoughts may not be shown
    assert tally.estimated_usd > 0
    if form == "gemini":  # which tells on the way what it has read and written so far
        assert (tally.input_tokens, tally.cache_read_tokens) == (407, 600)
        assert tally.cost_usd > 0
    else:
        assert (tally.cost_usd, tally.input_tokens + tally.cache_write_tokens) == (0, 100)


def test_a_compatible_provider_may_never_tell_or_tell_with_every_chunk() -> None:
    never = meter("chat", CHUNK, FINISH)
    assert not never.broke_off
    assert never.tally().estimated_usd > 0 == never.tally().cost_usd
    partial = {**CHAT_USAGE, "completion_tokens": 3}
    always = meter(
        "chat", {**CHUNK, "usage": partial}, {**FINISH, "usage": CHAT_USAGE}, {"choices": []}
    )
    assert (always.tally().output_tokens, always.tally().estimated_usd) == (50, 0)


ENDINGS: tuple[tuple[WireFormat, dict[str, Any], str], ...] = (
    ("responses", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
    ("responses", {"incomplete_details": {"reason": "content_filter"}}, "refusal"),
    ("responses", {"output": [{"content": [{"type": "refusal", "refusal": "no"}]}]}, "refusal"),
    ("chat", {"choices": [{"message": {}, "finish_reason": "length"}]}, "length"),
    ("chat", {"choices": [{"message": {}, "finish_reason": "content_filter"}]}, "refusal"),
    ("chat", {"choices": [{"message": {"refusal": "no"}, "finish_reason": "stop"}]}, "refusal"),
    ("chat", {"choices": [{"message": {}, "finish_reason": "tool_calls"}]}, ""),
    ("gemini", {"candidates": [{"finishReason": "MAX_TOKENS"}]}, "length"),
    ("gemini", {"candidates": [{"finishReason": "SAFETY"}]}, "refusal"),
    ("gemini", {"candidates": [], "promptFeedback": {"blockReason": "OTHER"}}, "refusal"),
    ("gemini", {"candidates": [{"finishReason": "STOP"}]}, ""),
)


@pytest.mark.parametrize(("form", "more", "verdict"), ENDINGS)
def test_how_an_answer_ended_is_told_whatever_the_cli_makes_of_it(
    form: WireFormat, more: dict[str, Any], verdict: str
) -> None:
    assert meter(form, {**WHOLE[form], **more}, stream=False).tally().verdict == verdict


def test_searches_of_the_api_are_on_the_bill() -> None:
    call = {"type": "web_search_call", "id": "ws"}
    told = {**RESPONSE, "output": [call, call]}
    without = meter("responses", RESPONSE, stream=False).tally().cost_usd
    assert meter("responses", told, stream=False).tally().cost_usd - without == pytest.approx(0.02)
    begun = meter("responses", {"type": "response.output_item.added", "item": call})
    assert begun.tally(whole=False).estimated_usd > 0.01
    queries = {"groundingMetadata": {"webSearchQueries": ["a", "b"]}}
    grounded = {**GEMINI, "candidates": [{**CANDIDATE, "finishReason": "STOP", **queries}]}
    plain = meter("gemini", GEMINI, stream=False).tally().cost_usd
    more = meter("gemini", grounded, stream=False).tally().cost_usd
    assert more - plain == pytest.approx(0.07)


def test_a_dearer_tier_and_a_long_prompt_cost_what_they_do() -> None:
    dear = meter("responses", {**RESPONSE, "service_tier": "priority"}, stream=False).tally()
    plain = meter("responses", RESPONSE, stream=False).tally()
    assert dear.cost_usd == pytest.approx(2.5 * plain.cost_usd)
    usage = {"prompt_tokens": 300_000, "completion_tokens": 1000}
    long = meter("chat", {**FINISH, "usage": usage}, stream=False).tally()
    assert long.cost_usd == pytest.approx((300_000 * 8 + 1000 * 30) / 1e6)


@pytest.mark.parametrize("form", FORMS)
def test_junk_counts_nothing_and_stops_nothing(form: WireFormat) -> None:
    junk: tuple[Any, ...] = (
        *([], 7, {"type": "response.completed"}, {"type": "response.completed", "response": 7}),
        *({"choices": 7}, {"choices": [7]}, {"choices": [{"delta": 7}]}, {"usage": []}),
        *({"candidates": [{"content": {"parts": 7}}]}, {"usageMetadata": 7}, {"error": 7}),
        *({"usage": {"prompt_tokens": "many"}}, {"usageMetadata": {"promptTokenCount": -5}}),
        {"type": "response.completed", "response": {"usage": {"input_tokens": True}}},
    )
    tally = meter(form, *junk).tally()
    assert (tally.cost_usd, tally.output_tokens) == (0, 0)
    assert meter(form, 7, stream=False).tally().cost_usd == 0


def test_a_model_that_is_not_known_pays_as_the_dearest_of_its_provider() -> None:
    used = {"prompt_tokens": 1_000, "completion_tokens": 1_000}
    told = {**FINISH, "model": "gpt-99", "usage": used}
    assert meter("chat", told, stream=False).tally().cost_usd == pytest.approx(0.21)
    small = {**told, "model": "gpt-99-mini-2027-01-01"}
    assert meter("chat", small, stream=False).tally().cost_usd == pytest.approx(0.00525)
    tokens = FORMATS["gemini"].reading()
    tokens.on_answer({**GEMINI, "modelVersion": "gemini-99"})
    assert tokens.said is not None
    assert cost_usd("gemini-99", tokens.said, "google") == cost_usd(
        "gemini-4-argon", tokens.said, "google"
    )
