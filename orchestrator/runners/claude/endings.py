"""The claude CLI's result event -> the verdict on a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.domain.result import Reason
from orchestrator.runners.json_fields import (
    bounded_dict_of,
    dicts_of,
    id_of,
    int_of,
    name_of,
    text_of,
    texts_of,
)
from orchestrator.runners.signs import STATUS_REASONS, ToolCalled, TurnEnded

_SUBTYPES: dict[str, Reason] = {
    "error_max_turns": "max_turns",
    "error_max_budget_usd": "budget",
    "error_during_execution": "cancelled",
}
_FAULTS: dict[str, Reason] = {
    "authentication_failed": "api_auth",
    "rate_limit": "api_rate_limit",
}
_TOO_LONG = ("max_tokens", "model_context_window_exceeded")
_OF_THE_API = ("api_auth", "api_rate_limit", "api_overloaded", "api_error", "max_tokens")
_ADVICE = (
    re.compile(r"^(Failed to authenticate\. )?API Error: "),
    re.compile(r"^Request rejected \((?=429)"),
    re.compile(r"(?<=^429)\) ·"),
    re.compile(r"\. This is a server-side issue, .*", re.DOTALL),
    re.compile(r" To configure this behavior, set the CLAUDE_CODE_\w+ environment variable\."),
)
_NO_MODEL = re.compile(r"There's an issue with the selected model \(([^)]*)\)\..*", re.DOTALL)
_CUT = re.compile(
    "mid-response|Connection to the API was lost|Stream ended|stream_truncated"
    "|malformed response|Failed to parse JSON|JSON Parse error"
)
"""What an answer that broke off is called, and the one asked for in its place that did as well."""


def turn_ended(event: Mapping[str, object], fault: str) -> TurnEnded:
    """`fault` is what the CLI called the turn's error when it spoke in the model's place."""
    reason = _reason(event, fault)
    text = text_of(event, "result") or "\n".join(texts_of(event, "errors"))
    if reason == "cancelled":
        text = "the turn was interrupted"  # and not "[ede_diagnostic] result_type=user ..."
    elif reason in _OF_THE_API:
        text = _api_words(text)
    elif reason == "stream_cut" and event.get("is_error") is not True:
        text = "the model's answer broke off"  # what there was of it has been said before
    denials = tuple(
        ToolCalled(
            id=id_of(denial, "tool_use_id"),
            tool=tool,
            input=bounded_dict_of(denial, "tool_input"),
        )
        for denial in dicts_of(event, "permission_denials")
        if (tool := name_of(denial, "tool_name"))
    )
    return TurnEnded(
        reason=reason,
        text=text,
        denials=denials,
        interrupted=reason == "cancelled",
    )


def _api_words(text: str) -> str:
    """What the API said, without the advice of a CLI that takes the gateway for the API, and a
    container's variables for the operator's.
    """
    words = _NO_MODEL.sub(r"404 there is no model \1, or not for this credential", text)
    for pattern in _ADVICE:
        words = pattern.sub("", words)
    return words.strip(" .·\n") or text


def _reason(event: Mapping[str, object], fault: str) -> Reason:
    """Why a turn ended. `subtype` alone is no verdict: an API error is a "success" as well."""
    subtype, stop = text_of(event, "subtype"), event.get("stop_reason")
    if subtype != "success":
        return _SUBTYPES.get(subtype, "cli_crashed")
    if stop == "refusal":
        return "refusal"
    if stop in _TOO_LONG or fault == "max_output_tokens":
        return "max_tokens"
    if event.get("is_error") is True:
        status = int_of(event, "api_error_status")
        if status is not None:
            return STATUS_REASONS.get(status, "api_error")
        if fault in _FAULTS:
            return _FAULTS[fault]
        return "stream_cut" if _CUT.search(text_of(event, "result")) else "api_error"
    # 2.1.197 calls an answer that broke off a success: its stop reason is null, or that of the
    # message before, which asked for a tool.
    return "stream_cut" if stop in (None, "tool_use") else "ok"
