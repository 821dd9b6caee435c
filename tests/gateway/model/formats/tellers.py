"""APIs of each format that know what each request truly costs, and say it as the real ones do."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple, Protocol

from orchestrator.gateway.model.money.prices import Used
from orchestrator.runners.contract import WireFormat
from tests.gateway.model.formats.dialects import DATA

PDF = "data:application/pdf;base64,JVBERi0="
Told = dict[str, Any]


class Wanted(NamedTuple):
    """What a request asks for."""

    chance: Random
    model: str
    text: str
    pictures: int
    pdf: bool
    most: int
    streams: bool


class Teller(Protocol):
    name: WireFormat
    models: tuple[str, ...]

    def place(self, model: str, streams: bool) -> tuple[str, str]:
        """Path and query of a request."""
        ...

    def body(self, wanted: Wanted) -> Told: ...

    def cached_for(self, body: bytes, model: str) -> str:
        """How long what it reads is kept: "", "minutes" or "hour"."""
        ...

    def whole(self, model: str, used: Used) -> Told: ...

    def events(self, model: str, used: Used, end: str) -> list[Told]:
        """A stream that thinks and shows nothing; its end is "end", "error", or missing."""
        ...


class AnthropicTeller:
    name: WireFormat = "anthropic"
    models: tuple[str, ...] = ("claude-sonnet-4-5", "claude-opus-4-8", "claude-haiku-5-5")

    def place(self, model: str, streams: bool) -> tuple[str, str]:
        return "/v1/messages", ""

    def body(self, wanted: Wanted) -> Told:
        source = {"type": "base64", "data": "x"}
        blocks: list[object] = [{"type": "image", "source": source}] * wanted.pictures
        blocks += [{"type": "document", "source": source}] * wanted.pdf
        result = {"type": "tool_result", "content": blocks}
        cache = wanted.chance.choice(
            (None, {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"})
        )
        return {
            "model": wanted.model,
            "max_tokens": wanted.most,
            "stream": wanted.streams,
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": wanted.text}, result]}
            ],
            "cache_control": cache,
        }

    def cached_for(self, body: bytes, model: str) -> str:
        return "hour" if b'"1h"' in body else "minutes" if b"ephemeral" in body else ""

    def whole(self, model: str, used: Used) -> Told:
        return {"type": "message", "model": model, "usage": self._usage(used)}

    def events(self, model: str, used: Used, end: str) -> list[Told]:
        begun = {**self._usage(used), "output_tokens": 1}
        found: list[Told] = [
            {"type": "message_start", "message": {"model": model, "usage": begun}},
            {"type": "content_block_start", "content_block": {"type": "thinking"}},
        ]
        if end == "error":
            found.append({"type": "error", "error": {"type": "overloaded_error"}})
        elif end:
            found.append({"type": "message_delta", "usage": self._usage(used)})
        return found

    def _usage(self, used: Used) -> Told:
        return {
            "input_tokens": used.input_tokens,
            "cache_read_input_tokens": used.cache_read_tokens,
            "cache_creation_input_tokens": used.cache_write_tokens,
            "cache_creation": {"ephemeral_1h_input_tokens": used.cache_write_hour_tokens},
            "output_tokens": used.output_tokens,
        }


def openai_details(used: Used) -> Told:
    return {
        "cached_tokens": used.cache_read_tokens,
        "cache_write_tokens": used.cache_write_tokens,
        "cache_write_tokens_details": {
            "ttl_30m_tokens": used.cache_write_tokens - used.cache_write_hour_tokens,
            "ttl_12h_tokens": used.cache_write_hour_tokens,
        },
    }


def prompt_of(used: Used) -> int:
    return used.input_tokens + used.cache_read_tokens + used.cache_write_tokens


class ResponsesTeller:
    name: WireFormat = "responses"
    models: tuple[str, ...] = ("gpt-5.5", "gpt-5.6", "gpt-6-luna")

    def place(self, model: str, streams: bool) -> tuple[str, str]:
        return "/v1/responses", ""

    def body(self, wanted: Wanted) -> Told:
        parts: list[Told] = [{"type": "input_image", "image_url": DATA}] * wanted.pictures
        parts += [{"type": "input_file", "file_data": PDF}] * wanted.pdf
        return {
            "model": wanted.model,
            "max_output_tokens": wanted.chance.choice((wanted.most, None)),
            "stream": wanted.streams,
            "instructions": wanted.text,
            "input": [{"type": "function_call_output", "call_id": "c", "output": parts}],
            "prompt_cache_retention": wanted.chance.choice((None, "24h")),
        }

    def cached_for(self, body: bytes, model: str) -> str:
        longer = "hour" if b'"24h"' in body else "minutes"
        return "" if model == "gpt-5.5" else longer  # newer ones do it by themselves

    def whole(self, model: str, used: Used) -> Told:
        return {"status": "completed", "model": model, "output": [], "usage": self._usage(used)}

    def events(self, model: str, used: Used, end: str) -> list[Told]:
        begun = {"model": model, "usage": None, "status": "in_progress"}
        found: list[Told] = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.added", "item": {"type": "reasoning"}},
        ]
        if end == "error":
            failed = {**begun, "status": "failed", "error": {"code": "server_error"}}
            found.append({"type": "response.failed", "response": failed})
        elif end:
            found.append({"type": "response.completed", "response": self.whole(model, used)})
        return found

    def _usage(self, used: Used) -> Told:
        return {
            "input_tokens": prompt_of(used),
            "input_tokens_details": openai_details(used),
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"reasoning_tokens": used.output_tokens},
        }


class ChatTeller:
    name: WireFormat = "chat"
    models: tuple[str, ...] = ("gpt-5.5", "gpt-5.6", "gpt-6-luna")

    def place(self, model: str, streams: bool) -> tuple[str, str]:
        return "/v1/chat/completions", ""

    def body(self, wanted: Wanted) -> Told:
        parts: list[Told] = [{"type": "text", "text": wanted.text}]
        parts += [{"type": "image_url", "image_url": {"url": DATA}}] * wanted.pictures
        parts += [{"type": "file", "file": {"file_data": PDF}}] * wanted.pdf
        return {
            "model": wanted.model,
            wanted.chance.choice(("max_tokens", "max_completion_tokens")): wanted.most,
            "stream": wanted.streams,
            "messages": [{"role": "user", "content": parts}],
        }

    def cached_for(self, body: bytes, model: str) -> str:
        longer = "hour" if b'"24h"' in body else "minutes"
        return "" if model == "gpt-5.5" else longer  # newer ones do it by themselves

    def whole(self, model: str, used: Used) -> Told:
        choice = {"message": {"content": None}, "finish_reason": "stop"}
        return {"model": model, "choices": [choice], "usage": self._usage(used)}

    def events(self, model: str, used: Used, end: str) -> list[Told]:
        found: list[Told] = [{"model": model, "choices": [{"delta": {"role": "assistant"}}]}]
        if end == "error":
            found.append({"error": {"code": "server_error", "message": "x"}})
        elif end:
            found.append({"model": model, "choices": [{"delta": {}, "finish_reason": "stop"}]})
            found.append({"model": model, "choices": [], "usage": self._usage(used)})
        return found

    def _usage(self, used: Used) -> Told:
        return {
            "prompt_tokens": prompt_of(used),
            "prompt_tokens_details": openai_details(used),
            "completion_tokens": used.output_tokens,
            "completion_tokens_details": {"reasoning_tokens": used.output_tokens},
        }


class GeminiTeller:
    name: WireFormat = "gemini"
    models: tuple[str, ...] = ("gemini-2.5-pro", "gemini-3.8-flash", "gemini-4-argon")

    def place(self, model: str, streams: bool) -> tuple[str, str]:
        verb = "streamGenerateContent" if streams else "generateContent"
        return f"/v1beta/models/{model}:{verb}", "alt=sse" if streams else ""

    def body(self, wanted: Wanted) -> Told:
        picture = {"inlineData": {"mimeType": "image/png", "data": "x"}}
        paper = {"inline_data": {"mime_type": "application/pdf", "data": "x"}}
        result = {
            "name": "read",
            "parts": [*([picture] * wanted.pictures), *([paper] * wanted.pdf)],
        }
        parts = [
            {"text": wanted.text},
            {wanted.chance.choice(("functionResponse", "function_response")): result},
        ]
        config = {wanted.chance.choice(("maxOutputTokens", "max_output_tokens")): wanted.most}
        return {"contents": [{"parts": parts}], "generationConfig": config}

    def cached_for(self, body: bytes, model: str) -> str:
        return ""

    def whole(self, model: str, used: Used) -> Told:
        candidate = {"content": {"parts": []}, "finishReason": "STOP"}
        return {
            "modelVersion": model,
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": prompt_of(used),
                "cachedContentTokenCount": used.cache_read_tokens,
                "candidatesTokenCount": used.output_tokens // 3,
                "thoughtsTokenCount": used.output_tokens - used.output_tokens // 3,
            },
        }

    def events(self, model: str, used: Used, end: str) -> list[Told]:
        usage = {**self.whole(model, used)["usageMetadata"], "candidatesTokenCount": 1}
        usage["thoughtsTokenCount"] = 0
        found: list[Told] = [{"modelVersion": model, "candidates": [{}], "usageMetadata": usage}]
        if end == "error":
            found.append({"error": {"status": "UNAVAILABLE", "message": "x"}})
        elif end:
            found.append(self.whole(model, used))
        return found


TELLERS: tuple[Teller, ...] = (
    AnthropicTeller(),
    ResponsesTeller(),
    ChatTeller(),
    GeminiTeller(),
)
