"""What a request asks of the model, and what it may take to read it."""

from __future__ import annotations

import json

import pytest

from orchestrator.gateway.model.request import (
    BODY_NUMBER_CHARS,
    MAX_BODY_PARTS,
    MAX_OUTPUT_TOKENS,
    Asked,
    Unreadable,
    asked_for,
    read_body,
)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b'{"model": "a", "model": "b"}', "a body that can be read in two ways"),
        (b"[" * 100_000, "a body that is not JSON"),
        (b'{"model": ', "a body that is not JSON"),
        (b"[]", "a body that is not an object"),
        (b'{"messages": [' + b"1," * MAX_BODY_PARTS + b"1]}", "a body of more than 300000 parts"),
        (b'{"messages": [' + b'"",' * MAX_BODY_PARTS + b"1]}", "a body of more than 300000 parts"),
        (b'{"messages": ' + b'["\\\\",[' * MAX_BODY_PARTS, "a body of more than 300000 parts"),
        ('{"a": "\\"", "b": []}'.encode("utf-16"), "a body that is not JSON"),
        (
            b'{"max_tokens": ' + b"9" * (BODY_NUMBER_CHARS + 1) + b"}",
            "a body with a number of more",
        ),
        (b'{"temperature": 0.' + b"1" * BODY_NUMBER_CHARS + b"}", "a body with a number of more"),
    ],
)
def test_a_body_that_would_take_too_long_is_not_read(body: bytes, what: str) -> None:
    with pytest.raises(Unreadable, match=f"^{what}"):
        read_body(body)


def test_a_full_context_of_tables_and_code_is_read() -> None:
    """A million tokens of what has the most commas, quotes and brackets."""
    table = {"type": "text", "text": '1,"2",[3]\\\n' * 300_000}
    block = {"type": "tool_use", "id": "x", "name": "Bash", "input": {"command": "ls", "a": [1]}}
    messages = [{"role": "user", "content": [table]}, {"role": "user", "content": [block] * 9000}]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    assert body.count(b",") > 2 * MAX_BODY_PARTS
    assert read_body(body)["messages"] == messages


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (
            {"model": "claude-haiku-4-5", "max_tokens": 32000, "speed": "fast"},
            Asked(model="claude-haiku-4-5", body_bytes=9, max_tokens=32000, fast=True),
        ),
        ({"model": 7, "max_tokens": "1"}, Asked(body_bytes=9, max_tokens=MAX_OUTPUT_TOKENS)),
        ({"max_tokens": 10**90}, Asked(body_bytes=9, max_tokens=MAX_OUTPUT_TOKENS)),
        ({"max_tokens": -1}, Asked(body_bytes=9, max_tokens=MAX_OUTPUT_TOKENS)),
        ({"max_tokens": True}, Asked(body_bytes=9, max_tokens=MAX_OUTPUT_TOKENS)),
        (
            {"max_tokens": 1, "inference_geo": "us"},
            Asked(body_bytes=9, max_tokens=1, us_only=True),
        ),
    ],
)
def test_what_decides_the_price_is_taken_from_the_request(
    body: dict[str, object], asked: Asked
) -> None:
    assert asked_for(body, 9) == asked


def test_the_most_that_a_request_can_cost_is_known_before_it_is_sent() -> None:
    asked = Asked(model="claude-sonnet-4-5", body_bytes=2000, max_tokens=1000)
    assert asked.ceiling_usd == pytest.approx((1000 * 3 + 1000 * 15) / 1e6)
