"""The bytes of an answer -> what it used."""

from __future__ import annotations

import json

import pytest

from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import (
    EVENT_LINE_BYTES,
    OUTPUT_TOKENS_PER_SECOND,
    Meter,
    Tally,
)
from orchestrator.gateway.model.money.price_table import CONTEXT_TOKENS
from orchestrator.gateway.model.request import Asked

START = {
    "type": "message_start",
    "message": {
        "model": "claude-sonnet-4-5",
        "usage": {
            "input_tokens": 10,
            "output_tokens": 1,
            "cache_creation_input_tokens": 300,
            "cache_read_input_tokens": 2000,
            "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        },
    },
}
TEXT = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x" * 30}}
ASKED = Asked(body_bytes=200, max_tokens=32000)
END = {"type": "message_delta", "usage": {"output_tokens": 50, "input_tokens": 12}}


def streamed(*events: object) -> bytes:
    return b"".join(b"event: e\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def a_meter(asked: Asked) -> Meter:
    return Meter(asked, FORMATS["anthropic"].reading())


def measured(
    data: bytes,
    pieces: int,
    status: int = 200,
    kind: str = "text/event-stream",
    asked: Asked = ASKED,
    *,
    whole: bool = True,
) -> Tally:
    meter = a_meter(asked)
    meter.start(status, kind)
    for at in range(0, len(data), pieces):
        meter.feed(data[at : at + pieces])
    tally = meter.tally(whole=whole)
    return tally.model_copy(update={"cost_usd": round(tally.cost_usd, 9)})


@pytest.mark.parametrize("pieces", [1, 7, 100_000])
def test_a_stream_is_counted_however_it_is_cut_up(pieces: int) -> None:
    cost = (12 * 3 + 50 * 15 + 2000 * 0.3 + 100 * 3.75 + 200 * 6) / 1e6
    assert measured(streamed(START, TEXT, END), pieces) == Tally(
        model="claude-sonnet-4-5",
        input_tokens=12,
        output_tokens=50,
        cache_read_tokens=2000,
        cache_write_tokens=300,
        cost_usd=round(cost, 9),
    )


def test_an_answer_in_one_piece_is_counted() -> None:
    body = {"type": "message", "model": "claude-haiku-4-5", "usage": {"input_tokens": 5}}
    body["usage"] = {"input_tokens": 5, "output_tokens": 7}
    assert measured(json.dumps(body).encode(), 3, kind="application/json") == Tally(
        model="claude-haiku-4-5",
        input_tokens=5,
        output_tokens=7,
        cost_usd=40e-6,
    )


def test_what_was_written_before_a_stream_broke_off_is_estimated() -> None:
    tally = measured(streamed(START, TEXT), 5)
    assert (tally.input_tokens, tally.output_tokens) == (10, 10)
    assert 0 < tally.cost_usd < 0.01  # what the API said when it began is a fact
    assert tally.estimated_usd == pytest.approx(9 * 15e-6)


def test_an_answer_that_says_nothing_of_its_use_pays_for_its_bytes_and_most() -> None:
    tally = measured(b"x" * 300, 100, kind="application/json")
    assert (tally.input_tokens, tally.output_tokens) == (100, 100)
    assert tally.cost_usd == 0
    assert tally.estimated_usd == pytest.approx((100 * 15 + 100 * 75) / 1e6)


def test_an_answer_without_a_model_is_priced_by_what_was_asked_for() -> None:
    asked = ASKED.model_copy(update={"model": "claude-haiku-4-5"})
    tally = measured(b"x" * 300, 100, kind="application/json", asked=asked)
    assert tally.model == "claude-haiku-4-5"
    assert tally.cost_usd == 0
    assert tally.estimated_usd == pytest.approx(600 / 1e6)


def test_who_does_not_wait_for_an_answer_pays_for_all_that_it_may_have_had() -> None:
    unanswered = a_meter(ASKED).tally(whole=False)
    assert (unanswered.input_tokens, unanswered.output_tokens) == (100, 32000)
    half = measured(b'{"type": "message", "con', 9, kind="application/json", whole=False)
    assert (half.input_tokens, half.output_tokens) == (100, 32000)


def test_searches_before_a_stream_broke_off_are_paid_for_with_what_they_found() -> None:
    use = {"type": "server_tool_use", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "content": [{"encrypted_content": "x" * 4000}]}
    blocks = [{"type": "content_block_start", "content_block": each} for each in (use, found)]
    cut = measured(streamed(START, *blocks, *blocks), 999, whole=False)
    line = len("data: " + json.dumps(blocks[1]))
    assert cut.input_tokens == 10 + line
    assert cut.estimated_usd > 0.02

    # What the API says at the end is what counts.
    usage = {"output_tokens": 50, "server_tool_use": {"web_search_requests": 1}}
    whole = measured(streamed(START, *blocks, {"type": "message_delta", "usage": usage}), 999)
    assert whole.input_tokens == 10
    assert 0.01 < whole.cost_usd < 0.02


def test_what_the_api_compacts_by_itself_is_paid_for() -> None:
    step = {
        "input_tokens": 100_000,
        "output_tokens": 3000,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 500,
        "cache_creation": {"ephemeral_1h_input_tokens": 500},
    }
    small = {"input_tokens": 20, "output_tokens": 10, "cache_creation": None}
    usage = {**small, "cache_read_input_tokens": 7000, "iterations": [step, small, "?"]}
    end = {"type": "message_delta", "usage": usage}
    start = {"type": "message_start", "message": {"model": "claude-sonnet-4-5", "usage": small}}
    cost = (100_020 * 3 + 3010 * 15 + 7000 * 0.3 + 500 * 6) / 1e6
    assert measured(streamed(start, end), 50) == Tally(
        model="claude-sonnet-4-5",
        input_tokens=100_020,
        output_tokens=3010,
        cache_read_tokens=7000,
        cache_write_tokens=500,
        cost_usd=round(cost, 9),
    )


def test_errors_cost_nothing_and_say_their_name() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    assert measured(json.dumps(error).encode(), 9, 529, "application/json") == Tally(
        error_type="overloaded_error", verdict="overloaded"
    )
    assert measured(b"<html>", 9, 502, "text/html") == Tally(verdict="error")


def test_an_error_in_the_middle_of_a_stream_is_noticed_and_paid_for() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    tally = measured(streamed(START, TEXT, error), 9)
    assert tally.error_type == "overloaded_error"
    assert tally.output_tokens == 10


def test_junk_and_endless_lines_are_survived() -> None:
    junk = b'data: [1]\ndata: {"type":"message_start","message":7}\ndata: \xff\n\n:ping\n'
    long = b"data: " + b"x" * (EVENT_LINE_BYTES + 10) + b"\n"
    meter = a_meter(ASKED)
    meter.start(200, "text/event-stream")
    for chunk in (
        junk,
        long[:EVENT_LINE_BYTES],
        long[EVENT_LINE_BYTES:-1],
        long[-1:],
        streamed(START, END),
    ):
        meter.feed(chunk)
    assert meter.tally().output_tokens == 50


def heard(*events: object, asked: Asked = ASKED) -> Meter:
    """A stream that has said so much."""
    meter = a_meter(asked)
    meter.start(200, "text/event-stream")
    meter.feed(streamed(*events))
    return meter


def test_hidden_thinking_before_a_cut_is_paid_for_by_the_second_up_to_the_most_asked_for() -> None:
    thinks = heard(START)
    assert thinks.tally(whole=False, seconds=12).output_tokens == 12 * OUTPUT_TOKENS_PER_SECOND
    assert thinks.tally(whole=False, seconds=9999).output_tokens == ASKED.max_tokens


def test_what_the_api_says_replaces_what_was_estimated() -> None:
    meter = heard(START, TEXT)
    assert meter.tally(seconds=60).output_tokens == 60 * OUTPUT_TOKENS_PER_SECOND
    meter.feed(streamed(END))
    assert meter.tally(whole=False, seconds=60).output_tokens == 50


def test_a_count_that_more_is_written_after_is_not_the_last() -> None:
    block = {"type": "content_block_start", "content_block": {"type": "thinking"}}
    meter = heard(START, END, block)
    assert meter.broke_off
    assert meter.tally(whole=False, seconds=10).output_tokens == 10 * OUTPUT_TOKENS_PER_SECOND


@pytest.mark.parametrize(
    ("stream", "whole", "output"),
    [
        (True, False, 2000),  # hung up on: it may have begun
        (True, True, 0),  # it hung up: nothing had begun
        (False, False, 32000),  # nothing would be seen before its end
        (False, True, 2000),  # it took too long, and may have been worked on
    ],
)
def test_without_any_answer_time_and_who_hung_up_decide(
    stream: bool, whole: bool, output: int
) -> None:
    meter = a_meter(ASKED.model_copy(update={"stream": stream}))
    tally = meter.tally(whole=whole, seconds=10)
    assert (tally.input_tokens, tally.output_tokens) == (100, output)


def test_a_document_that_was_not_answered_may_have_filled_the_context() -> None:
    asked = ASKED.model_copy(update={"documents": True, "stream": True, "caches": "hour"})
    tally = a_meter(asked).tally(whole=False)
    assert (tally.input_tokens, tally.cache_write_tokens) == (0, CONTEXT_TOKENS)
    # What it did read is said with the first event.
    assert heard(START, asked=asked).tally(whole=False).cache_write_tokens == 300
