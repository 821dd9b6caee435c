"""What an API says of an error -> what it means, for every API alike."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.gateway.model.failures import reason_of
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import Meter
from orchestrator.gateway.model.request import Asked
from orchestrator.runners.contract import WireFormat


def anthropic(kind: str, message: str = "m") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def openai(kind: str | None, code: str | None, message: str = "m") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code, "param": None}}


def gemini(status: str, message: str = "m", **detail: object) -> dict[str, Any]:
    return {"error": {"code": 0, "message": message, "status": status, "details": [detail]}}


DAY = [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]
MINUTE = [{"quotaId": "GenerateRequestsPerMinutePerProjectPerModel"}]
CASES: tuple[tuple[WireFormat, int, object, str], ...] = (
    ("anthropic", 401, anthropic("authentication_error"), "auth"),
    ("anthropic", 403, anthropic("permission_error"), "auth"),
    ("anthropic", 429, anthropic("rate_limit_error"), "rate_limit"),
    ("anthropic", 429, anthropic("rate_limit_error", "Claude AI usage limit reached|17"), "quota"),
    (
        "anthropic",
        400,
        anthropic("invalid_request_error", "Your credit balance is too low"),
        "quota",
    ),
    ("anthropic", 402, anthropic("billing_error"), "quota"),
    ("anthropic", 529, anthropic("overloaded_error"), "overloaded"),
    ("anthropic", 500, anthropic("api_error"), "error"),
    ("anthropic", 400, anthropic("invalid_request_error", "prompt is too long: 9 > 8"), "context"),
    ("anthropic", 413, anthropic("request_too_large"), "context"),
    ("anthropic", 404, anthropic("not_found_error"), "no_model"),
    ("anthropic", 400, anthropic("invalid_request_error", "messages: empty"), "error"),
    ("responses", 400, openai("invalid_request_error", None, "bad value: 'daily quota'"), "error"),
    ("responses", 401, openai("invalid_request_error", "invalid_api_key"), "auth"),
    ("responses", 429, openai("requests", "rate_limit_exceeded"), "rate_limit"),
    ("responses", 429, openai("insufficient_quota", "insufficient_quota"), "quota"),
    ("responses", 429, openai("usage_limit_reached", None), "quota"),
    ("responses", 503, openai("server_error", None), "overloaded"),
    ("responses", 500, openai("server_error", None), "error"),
    ("responses", 400, openai("invalid_request_error", "context_length_exceeded"), "context"),
    ("responses", 404, openai("invalid_request_error", "model_not_found"), "no_model"),
    ("chat", 400, openai("BadRequestError", None, "maximum context length is 8 tokens"), "context"),
    ("chat", 403, openai(None, None), "auth"),
    ("chat", 429, b"slow down", "rate_limit"),
    ("chat", 502, b"<html>bad gateway", "error"),
    (
        "gemini",
        400,
        gemini("INVALID_ARGUMENT", "API key not valid.", reason="API_KEY_INVALID"),
        "auth",
    ),
    ("gemini", 403, gemini("PERMISSION_DENIED"), "auth"),
    ("gemini", 429, gemini("RESOURCE_EXHAUSTED", violations=MINUTE), "rate_limit"),
    ("gemini", 429, gemini("RESOURCE_EXHAUSTED", violations=DAY), "quota"),
    ("gemini", 429, [gemini("RESOURCE_EXHAUSTED", violations=DAY)], "quota"),
    ("gemini", 503, gemini("UNAVAILABLE", "The model is overloaded."), "overloaded"),
    ("gemini", 500, gemini("INTERNAL"), "error"),
    ("gemini", 404, gemini("NOT_FOUND"), "no_model"),
    (
        *("gemini", 400),
        gemini("INVALID_ARGUMENT", "The input token count (2) exceeds the maximum number (1)"),
        "context",
    ),
)


@pytest.mark.parametrize(("form", "status", "body", "verdict"), CASES)
def test_an_error_means_the_same_whoever_tells_it(
    form: WireFormat, status: int, body: object, verdict: str
) -> None:
    meter = Meter(Asked(provider=FORMATS[form].provider), FORMATS[form].reading())
    meter.start(status, "application/json")
    meter.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    tally = meter.tally()
    assert (tally.verdict, tally.cost_usd, tally.estimated_usd) == (verdict, 0, 0)


MIDWAY: tuple[tuple[WireFormat, dict[str, Any], str], ...] = (
    ("anthropic", anthropic("overloaded_error"), "overloaded"),
    ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "m"}, "rate_limit"),
    (
        "responses",
        {"type": "response.failed", "response": {"error": {"code": "context_length_exceeded"}}},
        "context",
    ),
    ("responses", {"type": "response.failed", "response": {"error": {"code": "x"}}}, "error"),
    ("chat", openai("server_error", "insufficient_quota"), "quota"),
    ("gemini", gemini("UNAVAILABLE"), "overloaded"),
)


@pytest.mark.parametrize(("form", "event", "verdict"), MIDWAY)
def test_an_error_in_the_middle_of_an_answer_means_the_same(
    form: WireFormat, event: dict[str, Any], verdict: str
) -> None:
    meter = Meter(Asked(provider=FORMATS[form].provider, stream=True), FORMATS[form].reading())
    meter.start(200, "text/event-stream")
    meter.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    assert (meter.tally().verdict, meter.broke_off) == (verdict, False)


def test_what_it_means_is_a_reason_and_says_whether_another_provider_could_help() -> None:
    assert [reason_of(v) for v in ("", "quota", "rate_limit", "overloaded", "auth", "cut")] == [
        *("ok", "api_rate_limit", "api_rate_limit", "api_overloaded", "api_auth", "stream_cut"),
    ]
    assert [reason_of(v) for v in ("length", "refusal", "context", "error", "unreachable")] == [
        *("max_tokens", "refusal", "api_error", "api_error", "api_error"),
    ]
