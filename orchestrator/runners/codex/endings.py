"""How a turn of codex ended -> the verdict on it. For version 0.166.0."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.result import Reason
from orchestrator.runners.json_fields import dict_of, dicts_of, int_of, text_of
from orchestrator.runners.signs import STATUS_REASONS, TurnEnded

_ERROR_KINDS: dict[str, Reason] = {
    "contextWindowExceeded": "max_tokens",
    "usageLimitExceeded": "api_rate_limit",
    "rateLimitExceeded": "api_rate_limit",
    "serverOverloaded": "api_overloaded",
    "unauthorized": "api_auth",
    "cyberPolicy": "refusal",
    "misalignmentPolicyViolation": "refusal",
}
_TELLING_WORDS: tuple[tuple[str, Reason], ...] = (
    ("reason: max_output_tokens", "max_tokens"),
    ("reason: content_filter", "refusal"),
    ("stream disconnected", "stream_cut"),
)
"""What tells apart what it calls "other"."""


def turn_ended(turn: Mapping[str, object], said: str) -> TurnEnded:
    """`said` is what the agent said last in it."""
    if turn.get("status") == "completed":
        texts = [text_of(item, "text") for item in dicts_of(turn, "items") if _is_text(item)]
        return TurnEnded(reason="ok", text=texts[-1] if texts else said)
    if turn.get("status") == "interrupted":
        return TurnEnded(reason="cancelled", text="the turn was interrupted", interrupted=True)
    error = dict_of(turn, "error")
    message = text_of(error, "message")
    return TurnEnded(reason=_reason(error, message), text=message or "codex did not say why")


def _is_text(item: Mapping[str, object]) -> bool:
    return item.get("type") == "agentMessage"


def _reason(error: Mapping[str, object], message: str) -> Reason:
    kind = error.get("codexErrorInfo")
    if isinstance(kind, str) and kind in _ERROR_KINDS:
        return _ERROR_KINDS[kind]
    if isinstance(kind, dict):
        statuses = (int_of(said, "httpStatusCode") for said in kind.values() if _is_dict(said))
        for status in statuses:
            return STATUS_REASONS.get(status or 0, "api_error")
    return next((reason for words, reason in _TELLING_WORDS if words in message), "api_error")


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)
