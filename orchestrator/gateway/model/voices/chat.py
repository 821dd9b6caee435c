"""A scripted model in OpenAI's Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.gateway.model.voices.responses import openai_error
from orchestrator.gateway.model.voices.spoken import (
    AnswerPart,
    Means,
    Overheard,
    SaidText,
    Spoken,
    Uttered,
    event,
    new_id,
    objects,
    pieces,
    text_of,
    user_texts,
)

FINISHES = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
}


class ChatVoice:
    """Voice (voices/spoken.py)."""

    def heard(self, asked: Mapping[str, object]) -> list[Overheard]:
        found: list[Overheard] = []
        for message in objects(asked.get("messages")):
            text = text_of(message.get("content"))
            match message.get("role"):
                case "user":
                    found += user_texts([text])
                case "tool":
                    found.append(Overheard("tool", text))
                case "assistant":
                    found.append(Overheard("model"))
        return found

    def whole(self, spoken: Spoken, asked: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG002 a part of the contract
        texts = [block.text for block in spoken.blocks if isinstance(block, SaidText)]
        calls = _calls(spoken)
        message: dict[str, object] = {"role": "assistant", "content": "".join(texts) or None}
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": FINISHES[spoken.stop]}
        return {**_head(spoken, "chat.completion"), "choices": [choice], "usage": _usage(spoken)}

    def streamed(self, spoken: Spoken, asked: Mapping[str, object]) -> list[Uttered]:
        head = _head(spoken, "chat.completion.chunk")

        def chunk(part: AnswerPart, delta: object, finish: str | None = None) -> Uttered:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return event(part, {**head, "choices": [choice]})

        told = [chunk("start", {"role": "assistant", "content": ""})]
        calls = iter(_calls(spoken))
        number = 0
        for block in spoken.blocks:
            if isinstance(block, SaidText):
                told += [chunk("piece", {"content": piece}) for piece in pieces(block.text)]
                continue
            call = next(calls)
            named = {**call, "function": {"name": block.tool, "arguments": ""}}
            told.append(chunk("start", {"tool_calls": [{"index": number, **named}]}))
            for piece in pieces(json.dumps(block.input)):
                more = {"index": number, "function": {"arguments": piece}}
                told.append(chunk("piece", {"tool_calls": [more]}))
            number += 1
        told.append(chunk("end", {}, FINISHES[spoken.stop]))
        options = asked.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            told.append(event("end", {**head, "choices": [], "usage": _usage(spoken)}))
        return [*told, Uttered("end", b"data: [DONE]\n\n")]

    def error(self, status: int, message: str, means: Means) -> object:
        return openai_error(status, message, means)


def _head(spoken: Spoken, kind: str) -> dict[str, object]:
    return {"id": new_id("chatcmpl"), "object": kind, "created": 0, "model": spoken.model}


def _calls(spoken: Spoken) -> list[dict[str, object]]:
    return [
        {
            "id": new_id("call"),
            "type": "function",
            "function": {"name": block.tool, "arguments": json.dumps(block.input)},
        }
        for block in spoken.blocks
        if not isinstance(block, SaidText)
    ]


def _usage(spoken: Spoken) -> dict[str, object]:
    usage = spoken.usage
    whole = usage.input + usage.cache_read + usage.cache_write
    details = {"cached_tokens": usage.cache_read}
    if usage.cache_write:
        details["cache_write_tokens"] = usage.cache_write
    return {
        "prompt_tokens": whole,
        "completion_tokens": usage.output,
        "total_tokens": whole + usage.output,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
