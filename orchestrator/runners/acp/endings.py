"""How a prompt of ACP ended -> the verdict on the turn. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.result import Reason
from orchestrator.runners.json_fields import dict_of, int_of, text_of
from orchestrator.runners.lines import event_of
from orchestrator.runners.signs import STATUS_REASONS, TurnEnded

_STOPS: dict[str, Reason] = {
    "end_turn": "ok",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turns",
    "refusal": "refusal",
    "cancelled": "cancelled",
}


def turn_ended(answer: Mapping[str, object], said: str) -> TurnEnded:
    """`answer` is the response to the prompt; `said` what the agent said last."""
    if "error" in answer:
        return _failed(dict_of(answer, "error"))
    stop = text_of(dict_of(answer, "result"), "stopReason")
    reason = _STOPS.get(stop, "cli_crashed")
    if reason == "cancelled":
        return TurnEnded(reason=reason, text="the turn was interrupted", interrupted=True)
    if reason == "refusal":
        return TurnEnded(reason=reason, text=said or "the model refused to answer")
    return TurnEnded(reason=reason, text=said)


def _failed(error: Mapping[str, object]) -> TurnEnded:
    message = text_of(error, "message").removeprefix("Internal error: ")
    # gemini hands on the body of the API's answer.
    body = dict_of(event_of(message) or {}, "error")
    code = int_of(body, "code") or int_of(error, "code") or 0
    message = text_of(body, "message") or message
    reason = STATUS_REASONS.get(code, "api_error")
    if "API key not valid" in message:
        reason = "api_auth"
    return TurnEnded(reason=reason, text=message or "the CLI did not say why")
