"""A scripted model in Google's generateContent."""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.gateway.model.voices.spoken import (
    Means,
    Overheard,
    SaidCall,
    SaidText,
    Spoken,
    Uttered,
    event,
    new_id,
    objects,
    pieces,
    user_texts,
)

GEMINI_FINISHES = {
    "end_turn": "STOP",
    "tool_use": "STOP",
    "max_tokens": "MAX_TOKENS",
    "refusal": "SAFETY",
}

GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    529: "UNAVAILABLE",
}

RESULT_KEYS = ("output", "error", "content")

DAILY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [
        {
            "quotaMetric": "generativelanguage.googleapis.com/generate_requests_per_model_per_day",
            "quotaId": "GenerateRequestsPerDayPerProjectPerModel",
        }
    ],
}


class GeminiVoice:
    """Voice (voices/spoken.py)."""

    def heard(self, asked: Mapping[str, object]) -> list[Overheard]:
        found: list[Overheard] = []
        for content in objects(asked.get("contents")):
            if content.get("role") == "model":
                found.append(Overheard("model"))
                continue
            for part in objects(content.get("parts")):
                answer = part.get("functionResponse")
                if isinstance(answer, dict):
                    found.append(Overheard("tool", _result(answer.get("response"))))
                elif isinstance(part.get("text"), str):
                    found += user_texts([str(part["text"])])
        return found

    def whole(self, spoken: Spoken, asked: Mapping[str, object]) -> dict[str, object]:  # noqa: ARG002 a part of the contract
        parts = [_part(block) for block in spoken.blocks]
        return _chunk(spoken, parts, last=True)

    def streamed(self, spoken: Spoken, asked: Mapping[str, object]) -> list[Uttered]:  # noqa: ARG002 a part of the contract
        told: list[Uttered] = []
        for block in spoken.blocks:
            texts = pieces(block.text) if isinstance(block, SaidText) else [""]
            for text in texts:
                said = SaidText(text) if isinstance(block, SaidText) else block
                told.append(event("piece", _chunk(spoken, [_part(said)])))
        return [*told, event("end", _chunk(spoken, [{"text": ""}], last=True))]

    def error(self, status: int, message: str, means: Means) -> object:
        kind = GEMINI_STATUSES.get(status, "UNKNOWN")
        said = {"code": status, "message": message, "status": kind}
        if means == "quota":
            return {"error": {**said, "details": [DAILY]}}
        if means == "context":
            said["message"] = f"The input token count exceeds the maximum number allowed: {message}"
        return {"error": said}


def _result(response: object) -> str:
    """What a tool gave back: gemini puts it into `output` or `error`, opencode into `content`."""
    if not isinstance(response, dict):
        return str(response)
    told = next((response[key] for key in RESULT_KEYS if key in response), None)
    return told if isinstance(told, str) else json.dumps(response)


def _part(block: SaidText | SaidCall) -> dict[str, object]:
    if isinstance(block, SaidText):
        return {"text": block.text}
    return {"functionCall": {"id": new_id("call"), "name": block.tool, "args": block.input}}


def _chunk(
    spoken: Spoken, parts: list[dict[str, object]], *, last: bool = False
) -> dict[str, object]:
    usage = spoken.usage
    prompt = usage.input + usage.cache_read + usage.cache_write
    candidate: dict[str, object] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = GEMINI_FINISHES[spoken.stop]
    output = usage.output if last else min(1, usage.output)
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": output,
            "totalTokenCount": prompt + output,
        },
        "modelVersion": spoken.model,
        "responseId": new_id("resp"),
    }
