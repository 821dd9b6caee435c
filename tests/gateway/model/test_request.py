"""What a request asks of the model, and what it may take to read it."""

from __future__ import annotations

import json

import pytest

from orchestrator.gateway.model.formats.anthropic import asked_for
from orchestrator.gateway.model.money.price_table import (
    CONTEXT_TOKENS,
    MAX_OUTPUT_TOKENS,
    PICTURE_TOKENS,
)
from orchestrator.gateway.model.request import (
    BODY_NUMBER_CHARS,
    MAX_BODY_PARTS,
    Asked,
    Unreadable,
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
        ({"model": 7, "max_tokens": "1"}, Asked(body_bytes=9, plain_model=False)),
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


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
PDF = {"type": "document", "source": {"type": "base64", "data": "x"}}
TEXT = {"type": "document", "source": {"type": "text", "data": "x"}}
ODD = {"type": "film", "source": {"type": "base64", "data": "x"}}


def result(*blocks: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}


@pytest.mark.parametrize(
    ("blocks", "pictures", "documents"),
    [
        ([], 0, False),
        ([PICTURE, result(PICTURE, result(PICTURE))], 3, False),
        ([result(PDF)], 0, True),
        ([{"type": "document", "source": {"type": "content", "content": [PICTURE]}}], 1, False),
        ([{"type": "document"}], 0, True),
        ([TEXT], 0, False),
        ([ODD], 0, True),
    ],
)
def test_pictures_and_documents_are_found_wherever_they_stand(
    blocks: list[object], pictures: int, documents: bool
) -> None:
    bodies: tuple[dict[str, object], ...] = (
        {"messages": [{"role": "user", "content": blocks}]},
        {"system": blocks},
        {"messages": [{"role": "user", "content": "hi"}], "of a later version": {"x": blocks}},
    )
    for body in bodies:
        asked = asked_for(body, 9)
        assert (asked.pictures, asked.documents) == (pictures, documents)


@pytest.mark.parametrize(
    ("control", "caches"),
    [
        (None, ""),
        ({"type": "ephemeral"}, "minutes"),
        ({"type": "ephemeral", "ttl": "5m"}, "minutes"),
        ({"type": "ephemeral", "ttl": "1h"}, "hour"),
        ({"type": "ephemeral", "ttl": "9h"}, "hour"),
    ],
)
def test_how_long_a_prompt_is_cached_decides_the_price(control: object, caches: str) -> None:
    tools = [{"name": "a", "input_schema": {}, "cache_control": control}]
    assert asked_for({"tools": tools}, 9).caches == caches
    assert asked_for({"cache_control": control}, 9).caches == caches


@pytest.mark.parametrize(
    ("more", "tokens_in", "price"),
    [
        ({}, 2000, 3),
        ({"caches": "minutes"}, 2000, 3.75),
        ({"caches": "hour"}, 2000, 6),
        ({"pictures": 2}, 2000 + 2 * PICTURE_TOKENS, 3),
        ({"pictures": 1000}, CONTEXT_TOKENS, 3),
        ({"documents": True, "caches": "hour"}, CONTEXT_TOKENS, 6),
        ({"server_tools": True}, CONTEXT_TOKENS, 3),
    ],
)
def test_the_most_that_a_request_can_cost_is_known_before_it_is_sent(
    more: dict[str, object], tokens_in: int, price: float
) -> None:
    """No text has more tokens than bytes."""
    asked = Asked(model="claude-sonnet-4-5", body_bytes=2000, max_tokens=1000)
    ceiling = asked.model_copy(update=more).ceiling_usd
    assert ceiling == pytest.approx((tokens_in * price + 1000 * 15) / 1e6)


def test_tools_of_the_api_may_fill_the_context_and_those_of_the_client_do_not() -> None:
    local = [{"name": "a"}, {"type": "custom"}, {"type": "bash_20250124"}]
    assert not asked_for({"tools": local}, 9).server_tools
    assert asked_for({"tools": [*local, {"type": "web_search_20250305"}]}, 9).server_tools


def test_the_model_is_not_told_of_tools_that_may_not_be_called() -> None:
    tools = [{"name": name} for name in ("Read", "mcp__db__get", "mcp__db__drop")]
    body: dict[str, object] = {"model": "m", "messages": [], "tools": tools}
    asked = asked_for(body, 100, lambda name: name != "mcp__db__drop")
    assert asked.sent is not None
    assert (json.loads(asked.sent), asked.left_out) == ({**body, "tools": tools[:2]}, ())
    assert asked_for(body, 100).sent is None
