"""The bytes of an answer -> what it used."""

from __future__ import annotations

import json

import pytest

from orchestrator.gateway.metering import LINE_BYTES, Meter, Tally

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
END = {"type": "message_delta", "usage": {"output_tokens": 50, "input_tokens": 12}}


def streamed(*events: object) -> bytes:
    return b"".join(b"event: e\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def measured(
    data: bytes,
    pieces: int,
    status: int = 200,
    kind: str = "text/event-stream",
    request: bytes = b"x" * 400,
) -> Tally:
    meter = Meter(request)
    meter.start(status, kind)
    for at in range(0, len(data), pieces):
        meter.feed(data[at : at + pieces])
    tally = meter.tally()
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


def test_an_answer_that_says_nothing_of_its_use_pays_for_its_bytes_and_most() -> None:
    tally = measured(b"x" * 300, 100, kind="application/json")
    assert (tally.input_tokens, tally.output_tokens) == (100, 100)
    assert tally.cost_usd == pytest.approx((100 * 15 + 100 * 75) / 1e6)


@pytest.mark.parametrize(
    ("request_start", "model"),
    [
        (b'{"model": "claude-haiku-4-5", "messages": [{"model": "no"}]}', "claude-haiku-4-5"),
        (b'{"model": "claude-haiku-4-5", "model": "claude-opus-4-1"}', ""),
        (b'{"model": 7}', ""),
        (b'[{"model": "claude-haiku-4-5"', ""),
    ],
)
def test_an_answer_without_a_model_is_priced_by_what_was_asked_for(
    request_start: bytes, model: str
) -> None:
    request = request_start.ljust(400)
    tally = measured(b"x" * 300, 100, kind="application/json", request=request)
    assert tally.model == model
    assert tally.cost_usd == pytest.approx((600 if model else 9000) / 1e6)


def test_errors_cost_nothing_and_say_their_name() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    assert measured(json.dumps(error).encode(), 9, 529, "application/json") == Tally(
        error_type="overloaded_error"
    )
    assert measured(b"<html>", 9, 502, "text/html") == Tally()


def test_an_error_in_the_middle_of_a_stream_is_noticed_and_paid_for() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "m"}}
    tally = measured(streamed(START, TEXT, error), 9)
    assert tally.error_type == "overloaded_error"
    assert tally.output_tokens == 10


def test_junk_and_endless_lines_are_survived() -> None:
    junk = b'data: [1]\ndata: {"type":"message_start","message":7}\ndata: \xff\n\n:ping\n'
    long = b"data: " + b"x" * (LINE_BYTES + 10) + b"\n"
    meter = Meter(b"")
    meter.start(200, "text/event-stream")
    for chunk in (junk, long[:LINE_BYTES], long[LINE_BYTES:-1], long[-1:], streamed(START, END)):
        meter.feed(chunk)
    assert meter.tally().output_tokens == 50
