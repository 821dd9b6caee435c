"""How a turn of copilot ended -> the verdict on it. For version 1.0.102. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.domain.result import Reason
from orchestrator.runners.json_fields import int_of, text_of
from orchestrator.runners.signs import STATUS_REASONS, TurnEnded

_COPILOT_ADVICE = (
    re.compile(r"^Failed to get response from the AI model; retried .*? Last error: ", re.DOTALL),
    re.compile(r"\n\s*Check your COPILOT_PROVIDER_.*", re.DOTALL),
)
_NO_ANSWER = "No response was returned"


def turn_ended(error: Mapping[str, object] | None, said: str, *, aborted: bool) -> TurnEnded:
    """`error` is the turn's `session.error`, if it had one; `said` what the agent said last."""
    if aborted:
        return TurnEnded(reason="cancelled", text="the turn was interrupted", interrupted=True)
    if error is None:
        return TurnEnded(reason="ok", text=said)
    message = text_of(error, "message")
    status = int_of(error, "statusCode")
    reason: Reason = "api_error"
    if status is not None:
        reason = STATUS_REASONS.get(status, "api_error")
    elif "stream" in message.lower() or message.startswith(_NO_ANSWER):
        reason = "stream_cut"
    for pattern in _COPILOT_ADVICE:
        message = pattern.sub("", message)
    return TurnEnded(reason=reason, text=message.strip() or "copilot did not say why")
