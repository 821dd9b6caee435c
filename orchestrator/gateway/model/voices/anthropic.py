"""A scripted model in Anthropic's Messages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from orchestrator.gateway.model.voices.spoken import (
    Means,
    Overheard,
    SaidText,
    Spoken,
    Uttered,
    event,
    new_id,
    objects,
    own_text,
    pieces,
    text_of,
    user_texts,
)

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}

ANTHROPIC_MEANT: dict[Means, str] = {
    "quota": "You have reached your specified API usage limits",
    "context": "prompt is too long",
}

_MIDWAY = re.compile(
    r"^The user sent a new message while you were working:\n(.*?)\n\nThis is how Claude Code ",
    re.DOTALL | re.MULTILINE,
)
"""How 2.1.325 tells the model what was said in the middle of a turn."""


class AnthropicVoice:
    """Voice (voices/spoken.py)."""

    def heard(self, asked: Mapping[str, object]) -> list[Overheard]:
        found: list[Overheard] = []
        for message in objects(asked.get("messages")):
            content = message.get("content")
            role = message.get("role")
            if role == "assistant":
                found.append(Overheard("model"))
            elif role == "system":
                found += [Overheard("user", text) for text in _MIDWAY.findall(text_of(content))]
            elif role == "user":
                found += _heard_of_user(content)
        return found

    def whole(self, spoken: Spoken, asked: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG002 a part of the contract
        content: list[dict[str, object]] = []
        for block in spoken.blocks:
            if isinstance(block, SaidText):
                content.append({"type": "text", "text": block.text})
            else:
                call = {"id": new_id("toolu"), "name": block.tool, "input": block.input}
                content.append({"type": "tool_use", **call})
        return {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": spoken.model,
            "content": content,
            "stop_reason": spoken.stop,
            "stop_sequence": None,
            "usage": {
                "input_tokens": spoken.usage.input,
                "output_tokens": spoken.usage.output,
                "cache_read_input_tokens": spoken.usage.cache_read,
                "cache_creation_input_tokens": spoken.usage.cache_write,
            },
        }

    def streamed(self, spoken: Spoken, asked: Mapping[str, object]) -> list[Uttered]:
        message = self.whole(spoken, asked)
        usage = message["usage"]
        assert isinstance(usage, dict)  # noqa: S101 made above
        begun = {**usage, "output_tokens": min(1, spoken.usage.output)}
        started = {**message, "content": [], "stop_reason": None, "usage": begun}
        found = [event("start", {"type": "message_start", "message": started}, named=True)]
        for index, block in enumerate(objects(message["content"])):
            at = {"index": index}
            if block["type"] == "text":
                opened: dict[str, object] = {"type": "text", "text": ""}
                texts = pieces(str(block["text"]))
                deltas = [{"type": "text_delta", "text": part} for part in texts]
            else:
                opened = {**block, "input": {}}
                texts = pieces(json.dumps(block["input"]))
                deltas = [{"type": "input_json_delta", "partial_json": part} for part in texts]
            opening = {"type": "content_block_start", **at, "content_block": opened}
            found.append(event("start", opening, named=True))
            for delta in deltas:
                said = {"type": "content_block_delta", **at, "delta": delta}
                found.append(event("piece", said, named=True))
            found.append(event("stop", {"type": "content_block_stop", **at}, named=True))
        total = {"output_tokens": spoken.usage.output}
        ending = {"stop_reason": spoken.stop, "stop_sequence": None}
        end = {"type": "message_delta", "delta": ending, "usage": total}
        return [
            *found,
            event("end", end, named=True),
            event("end", {"type": "message_stop"}, named=True),
        ]

    def error(self, status: int, message: str, means: Means) -> object:
        kind = ERROR_TYPES.get(status, "api_error")
        said = f"{ANTHROPIC_MEANT[means]}: {message}" if means else message
        return {"type": "error", "error": {"type": kind, "message": said}}


def _heard_of_user(content: object) -> list[Overheard]:
    found: list[Overheard] = []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)
    for block in blocks:
        if block.get("type") == "text":
            found += user_texts([text_of(block.get("text"))])
        elif block.get("type") == "tool_result":
            text = text_of(block.get("content"))
            said = own_text(text)
            found += [Overheard("tool", said)] if said or not text else []
    return found
