"""Random bodies and answers, made of the words that each format knows: none of them is an error."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import Meter
from orchestrator.gateway.model.request import Asked
from tests.gateway.model.formats.dialects import DIALECTS, Dialect
from tests.gateway.model.formats.test_look import GOOD
from tests.gateway.model.formats.test_reading import STREAMS

BODIES = 1500
WORDS = (
    *(
        "model",
        "messages",
        "input",
        "contents",
        "content",
        "parts",
        "tools",
        "type",
        "role",
        "text",
    ),
    *("name", "function", "functionDeclarations", "function_declarations", "inlineData", "source"),
    *(
        "mimeType",
        "mime_type",
        "data",
        "image_url",
        "url",
        "file",
        "file_data",
        "output",
        "summary",
    ),
    *("generationConfig", "maxOutputTokens", "stream", "stream_options", "store", "service_tier"),
    *("encrypted_content", "functionResponse", "reasoning", "message", "namespace", "custom"),
    *("choices", "delta", "usage", "response", "candidates", "usageMetadata", "finishReason"),
    *("input_tokens", "input_tokens_details", "cached_tokens", "prompt_tokens", "error", "code"),
    *("promptTokenCount", "thoughtsTokenCount", "item", "response.completed", "message_start"),
    *("message_delta", "content_block_start", "content_block", "groundingMetadata", "details"),
    *("incomplete_details", "reason", "promptFeedback", "blockReason", "tool_search_output"),
)


def junk(chance: Random, depth: int) -> Any:
    kind = chance.randrange(8 if depth else 5)
    if kind < 2:
        return chance.choice(WORDS)
    if kind < 5:
        return chance.choice((None, True, 0, 7, -3, 10**12, 1.5, "", [], {}))
    if kind == 5:
        return [junk(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {chance.choice(WORDS): junk(chance, depth - 1) for _ in range(chance.randrange(6))}


def spoiled(chance: Random, value: Any) -> Any:
    """A value with junk in one place of it."""
    if chance.random() < 0.25 or not isinstance(value, dict | list) or not value:
        return junk(chance, 3)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], spoiled(chance, value[at]), *value[at + 1 :]]
    key = chance.choice(list(value))
    return {**value, key: spoiled(chance, value[key])}


ANTHROPIC: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 5}}},
    {"type": "content_block_start", "content_block": {"type": "server_tool_use", "name": "x"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"iterations": [{}]}},
)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
def test_no_body_and_no_answer_is_an_error(dialect: Dialect) -> None:
    chance = Random(dialect.name)
    api = FORMATS[dialect.name]
    known = [more for each, more in GOOD if each is dialect] or [{}]
    let = 0
    for _ in range(BODIES):
        body = {**dialect.plain, **chance.choice(known), chance.choice(WORDS): junk(chance, 5)}
        body = spoiled(chance, body)
        if not isinstance(body, dict):
            continue
        refused, asked = dialect.look(body)
        let += not refused
        assert asked.ceiling_usd >= 0
        meter = Meter(asked if not refused else Asked(provider=api.provider), api.reading())
        streams = chance.random() < 0.7
        meter.start(chance.choice((200, 200, 429)), "text/event-stream" if streams else "x/json")
        for event in STREAMS.get(dialect.name, ANTHROPIC):
            told = spoiled(chance, event)
            meter.feed(b"data: " * streams + json.dumps(told).encode() + b"\n\n")
        tally = meter.tally(whole=chance.random() < 0.5, seconds=chance.random())
        assert tally.cost_usd >= 0 <= tally.estimated_usd
    assert 0 < let < BODIES
