"""How a turn of the CLI ended: the recorded ones, and others."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.runners.signs import ToolCalled, TurnEnded
from tests.runners.claude.recordings import (
    BOTH,
    NEW,
    OLD,
    RECORDINGS,
    done,
    ended,
    line,
    parse,
    recorded,
)


def both(*endings: TurnEnded) -> dict[str, tuple[TurnEnded, ...]]:
    return dict.fromkeys(BOTH, endings)


TOO_LONG = "Claude's response exceeded the 32000 output token maximum"
USAGE_POLICY = (
    "API Error: Claude Code is unable to respond to this request, which appears to violate our "
    "Usage Policy (https://www.anthropic.com/legal/aup). Try rephrasing the request in a new "
    "session or change your model.\n\nRequest ID: req_1"
)
NO_HELP = (
    "API Error: Sonnet 4.5 can't help with this. Start a new session to continue.\n\nLearn more: "
    "https://www.anthropic.com/legal/aup\n\nRequest ID: req_1\n\nMessage ID: msg_2"
)
LOST = "API Error: Connection lost mid-response. The response above may be incomplete."
CLOSED = "API Error: Connection closed mid-response. The response above may be incomplete."
NO_JSON = "API Error: Failed to parse JSON"
NO_NAME = "API Error: JSON Parse error: Property name must be a string literal"
BROKE_OFF = "the model's answer broke off"
REFUSED_QUESTION = ToolCalled(
    id="toolu_1", tool="mcp__parent__ask_parent", input={"question": "Which colour?"}
)
STOPPED = "the turn was interrupted"
RATE = "429 scripted 429"
AUTH = "401 scripted 401"

ENDINGS: dict[str, dict[str, tuple[TurnEnded, ...]]] = {
    "text": both(done(text="Hello there.")),
    "tool": both(done()),
    "two_turns": both(ended("ok", "One."), ended("ok", "Two.")),
    "schema_retry": both(
        ended("ok", '{"n": "one"}'),
        ended("ok", '{"n": 1}'),
    ),
    "api_400": both(ended("api_error", "400 scripted 400")),
    "api_401": both(ended("api_auth", AUTH)),
    "api_429": both(ended("api_rate_limit", RATE)),
    "api_500": both(ended("api_error", "500 scripted 500")),
    "api_529": both(ended("api_overloaded", "529 scripted 529")),
    "api_500_then_ok": both(done()),
    "cut_in_text": {
        OLD: (ended("stream_cut", NO_JSON),),
        NEW: (ended("stream_cut", NO_NAME),),
    },
    "cut_after_text": {
        OLD: (ended("stream_cut", BROKE_OFF),),
        NEW: (ended("stream_cut", LOST),),
    },
    "cut_after_tool": {
        OLD: (ended("stream_cut", BROKE_OFF),),
        NEW: (ended("stream_cut", LOST),),
    },
    "cut_then_ok": {
        OLD: (ended("ok", "All done."),),
        NEW: (ended("ok", "All done."),),
    },
    "dropped_in_text": {
        OLD: (ended("stream_cut", NO_JSON),),
        NEW: (ended("stream_cut", NO_NAME),),
    },
    "dropped_after_text": {
        OLD: (ended("stream_cut", CLOSED),),
        NEW: (ended("stream_cut", NO_NAME),),
    },
    "max_turns": both(ended("max_turns", "Reached maximum number of turns (2)")),
    "refusal": {
        OLD: (ended("refusal", USAGE_POLICY),),
        NEW: (ended("refusal", NO_HELP),),
    },
    "max_tokens": {
        OLD: (ended("max_tokens", TOO_LONG),),
        NEW: (ended("max_tokens", TOO_LONG),),
    },
    "stop_sequence": both(done(text="Stopped.")),
    "interrupt": both(
        ended("cancelled", STOPPED),
        ended("ok", "Back again."),
    ),
    "interrupt_streaming": both(ended("cancelled", STOPPED), ended("ok", "Back again.")),
    "denied": both(done(denied="touch forbidden")),
    "denied_by_rule": both(done(denied="curl --version")),
    "denied_twice": both(
        done(denied="touch a"),
        ended("ok", "All done.", denied="touch b", call=3),
    ),
    "unknown_tool": both(done()),
    "failed_mcp": both(done()),
    "approved": both(done()),
    "approved_edited": both(done()),
    "rejected": both(done(denied="touch a")),
    "asked_unmentioned": both(done(denied="touch a")),
    "asked_and_denied_by_rule": both(done(denied="touch a")),
    "asked_and_denied_in_a_subshell": both(done(denied="(mkdir b && touch a)")),
    "asked_of_parts": both(done(denied="mkdir d && touch a")),
    "asked_of_mcp": both(done().model_copy(update={"denials": (REFUSED_QUESTION,)})),
    "asked_together": both(ended("ok", "All done.", denied="touch b", call="1b")),
    "asked_interrupted": both(
        ended("cancelled", STOPPED, denied="touch a"),
        ended("ok", "Back again."),
    ),
    "parent_asked": both(done()),
    "parent_asked_twice_at_once": both(ended("ok", "All done.")),
    "parent_told": both(done()),
    "parent_interrupted": both(
        ended("cancelled", STOPPED),
        ended("ok", "Back again."),
    ),
}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_each_recorded_turn_ends_as_it_did(path: Path) -> None:
    version, case = path.parent.name, path.stem
    endings = tuple(sign for sign in recorded(version, case) if isinstance(sign, TurnEnded))
    assert endings == ENDINGS[case][version]


def test_every_ending_was_recorded_from_both_versions() -> None:
    assert {(p.stem, p.parent.name) for p in RECORDINGS} == {
        (case, version) for case in ENDINGS for version in BOTH
    }


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"subtype": "error_max_budget_usd", "is_error": True}, "budget"),
        ({"subtype": "error_of_tomorrow", "is_error": True}, "cli_crashed"),
        ({}, "cli_crashed"),
        ({"subtype": "success", "is_error": True, "api_error_status": 403}, "api_auth"),
        ({"subtype": "success", "is_error": True, "api_error_status": 503}, "api_overloaded"),
        ({"subtype": "success", "is_error": True}, "api_error"),
        ({"subtype": "success", "stop_reason": "max_tokens"}, "max_tokens"),
        ({"subtype": "success", "stop_reason": None}, "stream_cut"),
        ({"subtype": "success", "stop_reason": "end_turn"}, "ok"),
    ],
)
def test_a_result_that_was_not_recorded_has_a_reason_too(
    event: dict[str, object], reason: str
) -> None:
    (sign,) = parse(line({"type": "result", **event}))
    assert isinstance(sign, TurnEnded)
    assert sign.reason == reason


def test_the_error_of_one_turn_is_not_held_against_the_next() -> None:
    spoken = line({"type": "assistant", "error": "max_output_tokens", "message": {}})
    result = line({"type": "result", "subtype": "success", "stop_reason": "end_turn"})
    reasons = [s.reason for s in parse(spoken + result + result) if isinstance(s, TurnEnded)]
    assert reasons == ["max_tokens", "ok"]
