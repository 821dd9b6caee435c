"""The claude CLI: what is launched, by value; what it says, as recorded by record.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.domain.agent import AgentSpec, McpServer, Permissions
from orchestrator.domain.container import File, Launch
from orchestrator.domain.result import Reason
from orchestrator.errors import AgentInvalid
from orchestrator.runners import claude
from orchestrator.runners.signs import (
    ControlAnswered,
    ControlAsked,
    Noise,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Sign,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

RECORDED = Path(__file__).parent / "recorded"
OLD, NEW = "2.1.197", "2.1.325"
BOTH = (OLD, NEW)
SESSION = "00000000-0000-4000-8000-000000000000"
CALL_USD = 0.0006
"""What the CLI thinks one scripted answer costs."""

RECORDINGS = sorted(RECORDED.rglob("*.jsonl"))


def parse(data: bytes) -> list[Sign]:
    parser = claude.Parser()
    return parser.feed(data) + parser.finish()


def recorded(version: str, case: str) -> list[Sign]:
    """The signs of a recording, with costs that binary fractions have not blurred."""
    signs = parse((RECORDED / version / f"{case}.jsonl").read_bytes())
    return [
        sign.model_copy(update={"cost_usd": round(sign.cost_usd, 7)})
        if isinstance(sign, TurnEnded)
        else sign
        for sign in signs
    ]


def ended(
    reason: Reason,
    text: str,
    *,
    turns: int = 1,
    usd: float = 0.0,
    denied: str = "",
    call: int | str = 1,
) -> TurnEnded:
    denial = ToolCalled(id=f"toolu_{call}", tool="Bash", input={"command": denied})
    return TurnEnded(
        reason=reason,
        text=text,
        session_id=SESSION,
        num_turns=turns,
        cost_usd=round(usd, 7),
        denials=(denial,) if denied else (),
        interrupted=reason == "cancelled",
    )


def done(calls: int = 1, text: str = "All done.", denied: str = "") -> TurnEnded:
    return ended("ok", text, turns=calls, usd=calls * CALL_USD, denied=denied)


def both(*endings: TurnEnded) -> dict[str, tuple[TurnEnded, ...]]:
    return dict.fromkeys(BOTH, endings)


LATER = (
    ". This is a server-side issue, usually temporary — try again in a moment. If it persists, "
    "check your inference gateway (127.0.0.1:8080)."
)
TOO_LONG = (
    "API Error: Claude's response exceeded the 32000 output token maximum. To configure this "
    "behavior, set the CLAUDE_CODE_MAX_OUTPUT_TOKENS environment variable."
)
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
RATE = "API Error: Request rejected (429) · scripted 429"
AUTH = "Failed to authenticate. API Error: 401 scripted 401"

ENDINGS: dict[str, dict[str, tuple[TurnEnded, ...]]] = {
    "text": both(done(text="Hello there.")),
    "tool": both(done(2)),
    "two_turns": both(ended("ok", "One.", usd=CALL_USD), ended("ok", "Two.", usd=2 * CALL_USD)),
    "schema_retry": both(
        ended("ok", '{"n": "one"}', usd=CALL_USD),
        ended("ok", '{"n": 1}', turns=2, usd=3 * CALL_USD),
    ),
    "api_400": both(ended("api_error", "API Error: 400 scripted 400")),
    "api_401": both(ended("api_auth", AUTH)),
    "api_429": both(ended("api_rate_limit", RATE)),
    "api_500": both(ended("api_error", "API Error: 500 scripted 500" + LATER)),
    "api_529": both(ended("api_overloaded", "API Error: 529 scripted 529" + LATER)),
    "api_500_then_ok": both(done()),
    "cut_in_text": {
        OLD: (ended("stream_cut", NO_JSON),),
        NEW: (ended("stream_cut", NO_NAME, usd=0.000315),),
    },
    "cut_after_text": {
        OLD: (ended("stream_cut", BROKE_OFF),),
        NEW: (ended("stream_cut", LOST, turns=4, usd=0.00126),),
    },
    "cut_after_tool": {
        OLD: (ended("stream_cut", BROKE_OFF, turns=2, usd=CALL_USD),),
        NEW: (ended("stream_cut", LOST, turns=5, usd=0.00186),),
    },
    "cut_then_ok": {
        OLD: (ended("ok", "All done.", usd=0.000315),),
        NEW: (ended("ok", "All done.", usd=0.00063),),
    },
    "dropped_in_text": {
        OLD: (ended("stream_cut", NO_JSON),),
        NEW: (ended("stream_cut", NO_NAME),),
    },
    "dropped_after_text": {
        OLD: (ended("stream_cut", CLOSED, usd=0.000315),),
        NEW: (ended("stream_cut", NO_NAME),),
    },
    "max_turns": both(
        ended("max_turns", "Reached maximum number of turns (2)", turns=3, usd=2 * CALL_USD)
    ),
    "refusal": {
        OLD: (ended("refusal", USAGE_POLICY, usd=CALL_USD),),
        NEW: (ended("refusal", NO_HELP, turns=2, usd=2 * CALL_USD),),
    },
    "max_tokens": {
        OLD: (ended("max_tokens", TOO_LONG, usd=4 * CALL_USD),),
        NEW: (ended("max_tokens", TOO_LONG, turns=4, usd=4 * CALL_USD),),
    },
    "stop_sequence": both(done(text="Stopped.")),
    "interrupt": both(
        ended("cancelled", STOPPED, turns=3, usd=CALL_USD),
        ended("ok", "Back again.", usd=2 * CALL_USD),
    ),
    "interrupt_streaming": both(
        ended("cancelled", STOPPED, turns=2), ended("ok", "Back again.", usd=CALL_USD)
    ),
    "denied": both(done(2, denied="touch forbidden")),
    "denied_by_rule": both(done(2, denied="curl --version")),
    "denied_twice": both(
        done(2, denied="touch a"),
        ended("ok", "All done.", turns=2, usd=4 * CALL_USD, denied="touch b", call=3),
    ),
    "unknown_tool": both(done(2)),
    "failed_mcp": both(done()),
    "approved": both(done(2)),
    "approved_edited": both(done(2)),
    "rejected": both(done(2, denied="touch a")),
    "asked_unmentioned": both(done(2, denied="touch a")),
    "asked_and_denied_by_rule": both(done(2, denied="touch a")),
    "asked_and_denied_in_a_subshell": both(done(2, denied="(mkdir b && touch a)")),
    "asked_of_parts": both(done(2, denied="mkdir d && touch a")),
    "asked_of_mcp": both(done(2).model_copy(update={"denials": (REFUSED_QUESTION,)})),
    "asked_together": both(
        ended("ok", "All done.", turns=3, usd=2 * CALL_USD, denied="touch b", call="1b")
    ),
    "asked_interrupted": both(
        ended("cancelled", STOPPED, turns=3, usd=CALL_USD, denied="touch a"),
        ended("ok", "Back again.", usd=2 * CALL_USD),
    ),
    "parent_asked": both(done(2)),
    "parent_asked_twice_at_once": both(ended("ok", "All done.", turns=3, usd=2 * CALL_USD)),
    "parent_told": both(done(2)),
    "parent_interrupted": both(
        ended("cancelled", STOPPED, turns=3, usd=CALL_USD),
        ended("ok", "Back again.", usd=2 * CALL_USD),
    ),
}


# What it says


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_each_recorded_turn_ends_as_it_did(path: Path) -> None:
    version, case = path.parent.name, path.stem
    endings = tuple(sign for sign in recorded(version, case) if isinstance(sign, TurnEnded))
    assert endings == ENDINGS[case][version]


def test_every_ending_was_recorded_from_both_versions() -> None:
    assert {(p.stem, p.parent.name) for p in RECORDINGS} == {
        (case, version) for case in ENDINGS for version in BOTH
    }


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_a_recording_holds_nothing_that_is_not_understood(path: Path) -> None:
    assert [sign for sign in parse(path.read_bytes()) if isinstance(sign, Noise)] == []


@pytest.mark.parametrize("version", BOTH)
def test_a_tool_call_is_told_with_its_input_and_its_result(version: str) -> None:
    assert recorded(version, "tool") == [
        Ready(session_id=SESSION, model="claude-sonnet-4-5", tools=("Bash",)),
        ToolCalled(id="toolu_1", tool="Bash", input={"command": "echo hi"}),
        ToolReturned(id="toolu_1", text="hi"),
        Said(text="All done."),
        done(2),
    ]


@pytest.mark.parametrize("version", BOTH)
def test_an_mcp_server_that_is_not_there_is_told(version: str) -> None:
    ready = recorded(version, "failed_mcp")[0]
    assert ready == Ready(
        session_id=SESSION, model="claude-sonnet-4-5", mcp_servers={"absent": "failed"}
    )


@pytest.mark.parametrize("version", BOTH)
def test_an_interrupt_is_answered_and_the_next_turn_works(version: str) -> None:
    kinds = [sign.kind for sign in recorded(version, "interrupt")]
    first = ["ready", "tool_called", "control_answered", "tool_returned", "turn_ended"]
    assert kinds == [*first, "ready", "said", "turn_ended"]
    assert ControlAnswered(request_id="stop-1") in recorded(version, "interrupt")


ASKED = PermissionAsked(
    request_id="00000000-0000-4000-8000-000000000003",
    call_id="toolu_1",
    tool="Bash",
    input={"command": "touch a"},
    why="rule",
)


def asked(version: str, case: str) -> list[PermissionAsked]:
    return [sign for sign in recorded(version, case) if isinstance(sign, PermissionAsked)]


def returned(version: str, case: str) -> list[tuple[str, bool]]:
    signs = recorded(version, case)
    return [(sign.text, sign.is_error) for sign in signs if isinstance(sign, ToolReturned)]


@pytest.mark.parametrize("version", BOTH)
def test_a_call_that_a_rule_asks_about_waits_though_another_rule_allows_it(version: str) -> None:
    assert asked(version, "approved") == [ASKED]
    assert returned(version, "approved") == [("(Bash completed with no output)", False)]


@pytest.mark.parametrize("version", BOTH)
def test_what_runs_is_the_input_that_was_allowed(version: str) -> None:
    assert asked(version, "approved_edited")[0].input == {"command": "echo original"}
    assert returned(version, "approved_edited") == [("edited", False)]


@pytest.mark.parametrize("version", BOTH)
def test_an_agent_whose_call_is_refused_reads_why(version: str) -> None:
    assert asked(version, "rejected") == [ASKED]
    assert returned(version, "rejected") == [("Not on a Sunday.", True)]


@pytest.mark.parametrize("version", BOTH)
def test_a_rule_that_denies_goes_before_one_that_asks(version: str) -> None:
    denied = "Permission to use Bash with command touch a has been denied."
    assert asked(version, "asked_and_denied_by_rule") == []
    assert returned(version, "asked_and_denied_by_rule") == [(denied, True)]


@pytest.mark.parametrize("version", BOTH)
def test_a_subshell_is_no_way_around_being_asked(version: str) -> None:
    # 2.1.197 does not see what is in it, and asks; 2.1.325 does, and denies it by the rule.
    text = "Permission to use Bash with command (mkdir b && touch a) has been denied."
    answer = "Not on a Sunday." if version == OLD else text
    assert returned(version, "asked_and_denied_in_a_subshell") == [(answer, True)]


@pytest.mark.parametrize("version", BOTH)
def test_it_is_told_whether_a_rule_made_the_cli_ask(version: str) -> None:
    why = {
        case: asked(version, case)[0].why
        for case in ("approved", "asked_of_mcp", "asked_of_parts", "asked_unmentioned")
    }
    assert why == {
        "approved": "rule",
        "asked_of_mcp": "rule",
        "asked_of_parts": "parts",
        "asked_unmentioned": "no_rule",
    }


@pytest.mark.parametrize("version", BOTH)
def test_two_calls_of_one_message_are_decided_each_by_itself(version: str) -> None:
    assert [one.call_id for one in asked(version, "asked_together")] == ["toolu_1", "toolu_1b"]
    assert returned(version, "asked_together") == [
        ("(Bash completed with no output)", False),
        ("Not on a Sunday.", True),
    ]


@pytest.mark.parametrize("version", BOTH)
def test_an_interrupt_withdraws_the_question_and_an_answer_that_comes_late_does_nothing(
    version: str,
) -> None:
    signs = recorded(version, "asked_interrupted")
    first = ["ready", "tool_called", "permission_asked", "permission_withdrawn"]
    first += ["control_answered", "tool_returned", "turn_ended"]
    assert [sign.kind for sign in signs] == [*first, "ready", "said", "turn_ended"]
    assert PermissionWithdrawn(request_id=ASKED.request_id) in signs
    assert "The tool use was rejected" in returned(version, "asked_interrupted")[0][0]


@pytest.mark.parametrize("version", BOTH)
def test_a_question_to_the_parent_comes_back_with_its_answer(version: str) -> None:
    ready = recorded(version, "parent_asked")[0]
    tools = ("mcp__parent__ask_parent", "mcp__parent__update_status")
    assert isinstance(ready, Ready)
    assert (ready.tools, ready.mcp_servers) == (tools, {"parent": "connected"})
    assert returned(version, "parent_asked") == [("You asked: Which colour?", False)]
    assert returned(version, "parent_told") == [("reported", False)]


@pytest.mark.parametrize("version", BOTH)
def test_two_questions_of_one_message_wait_at_the_same_time(version: str) -> None:
    # The first of them was answered after the second.
    assert sorted(returned(version, "parent_asked_twice_at_once")) == [
        ("You asked: Which colour?", False),
        ("You asked: Which size?", False),
    ]


@pytest.mark.parametrize("version", BOTH)
def test_a_question_is_no_obstacle_to_an_interrupt(version: str) -> None:
    kinds = [sign.kind for sign in recorded(version, "parent_interrupted")]
    first = ["ready", "tool_called", "control_answered", "tool_returned", "turn_ended"]
    assert kinds == [*first, "ready", "said", "turn_ended"]


@pytest.mark.parametrize(
    ("allow", "ask", "why", "is_it"),
    [
        ((), ("Bash(touch:*)",), "rule", True),
        ((), ("Bash(touch:*)",), "parts", False),
        (("Bash(ls:*)",), ("Bash(touch:*)",), "parts", False),
        (("Bash",), ("Bash(touch:*)",), "parts", True),
        (("Bash",), ("Bash(touch:*)",), "no_rule", False),
        ((), ("Bash",), "parts", True),
        ((), ("Bash(*)",), "no_rule", True),
        ((), ("Write",), "no_rule", False),
        ((), (), "no_rule", False),
    ],
)
def test_only_what_the_author_said_to_ask_about_may_be_asked(
    allow: tuple[str, ...],
    ask: tuple[str, ...],
    why: Literal["rule", "parts", "no_rule"],
    is_it: bool,
) -> None:
    call = ASKED.model_copy(update={"why": why})
    assert claude.is_asked_about(call, allow, ask) is is_it


def test_a_request_of_the_cli_that_we_do_not_know_is_told_by_its_id() -> None:
    for request in ({"subtype": "x" * 500}, {"subtype": "can_use_tool", "input": "no"}, "no", None):
        event = {"type": "control_request", "request_id": "r1", "request": request}
        (sign,) = parse(line(event))
        assert isinstance(sign, ControlAsked)
        assert (sign.request_id, len(sign.what) <= 100) == ("r1", True)
    assert isinstance(parse(line({"type": "control_request"}))[0], Noise)
    assert isinstance(parse(line({"type": "control_cancel_request"}))[0], Noise)


def test_a_tool_that_takes_long_is_not_noise() -> None:
    # 2.1.325, every 30 s
    beat = {"type": "tool_progress", "tool_use_id": "toolu_1-heartbeat-0", "heartbeat": True}
    assert parse(line(beat)) == []


@pytest.mark.parametrize("version", BOTH)
def test_a_request_that_is_tried_again_is_told(version: str) -> None:
    signs = recorded(version, "api_500_then_ok")
    assert signs[1] == Retrying(attempt=1, status=500, error="server_error")


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("case", ["api_401", "api_500", "cut_in_text"])
def test_an_error_of_the_cli_is_not_taken_for_words_of_the_agent(version: str, case: str) -> None:
    assert [sign for sign in recorded(version, case) if isinstance(sign, Said)] == []


def test_a_sub_agents_words_are_not_the_agents() -> None:
    text = {"type": "text", "text": "from below"}
    call = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
    event = {"type": "assistant", "message": {"content": [text, call]}}
    assert parse(line({**event, "parent_tool_use_id": "toolu_0"})) == [
        ToolCalled(id="t", tool="Read")
    ]


def test_a_tool_result_of_several_blocks_is_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image"}, {"type": "text", "text": "two"}]
    block = {"type": "tool_result", "tool_use_id": "t", "content": parts, "is_error": True}
    assert parse(line({"type": "user", "message": {"content": [block]}})) == [
        ToolReturned(id="t", text="one\ntwo", is_error=True)
    ]


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


# Bytes from a stranger


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


@given(data=st.data())
def test_the_signs_do_not_depend_on_how_the_bytes_were_cut(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(RECORDINGS)).read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    parser, signs = claude.Parser(), list[Sign]()
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        signs += parser.feed(whole[start:end])
    assert signs + parser.finish() == parse(whole)


@given(st.binary())
def test_garbage_is_never_an_error(data: bytes) -> None:
    assert all(isinstance(sign, Noise) for sign in parse(data))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, categories=None)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
KEYS = ("subtype", "message", "content", "error", "errors", "response", "request_id", "result")
MORE = ("is_error", "stop_reason", "num_turns", "total_cost_usd", "tools", "mcp_servers", "attempt")
TYPES = st.sampled_from(
    ["system", "assistant", "user", "result", "control_response", "control_request", "x"]
)
BLOCKS = st.lists(
    st.dictionaries(st.sampled_from(("id", "name", "input", "text", "content")), JSON).flatmap(
        lambda d: st.sampled_from(("text", "tool_use", "tool_result")).map(
            lambda t: d | {"type": t}
        )
    )
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=TYPES,
    fields=st.dictionaries(st.sampled_from((*KEYS, *MORE, "permission_denials", "request")), JSON),
    blocks=BLOCKS,
    nested=st.booleans(),
    init=st.booleans(),
)
def test_an_event_with_anything_in_it_is_never_an_error(
    kind: str, fields: dict[str, object], blocks: list[object], nested: bool, init: bool
) -> None:
    event = fields | {"type": kind}
    if nested:
        event |= {"message": {"content": blocks}, "permission_denials": blocks}
    if init:
        event["subtype"] = "init"
    for sign in parse(line(event)):
        sign.model_dump_json()


def test_junk_between_the_lines_is_noise_and_nothing_else_changes() -> None:
    lines = (RECORDED / NEW / "tool.jsonl").read_bytes().splitlines(keepends=True)
    junk = b"\xff\xfe half a \xe2\x82\n"
    signs = parse(junk.join(lines) + junk)
    assert [sign for sign in signs if not isinstance(sign, Noise)] == parse(b"".join(lines))
    assert [sign for sign in signs if isinstance(sign, Noise)] == [
        Noise(text="\ufffd\ufffd half a \ufffd")
    ] * len(lines)


def test_a_line_too_long_is_skipped_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claude, "LINE_BYTES", 100)
    result = line({"type": "result", "subtype": "success", "stop_reason": "end_turn"})
    assert len(result) <= 100
    long = line({"type": "result", "result": "x" * 200})
    told = Noise(text="a line of more than 100 bytes")
    assert parse(long + result) == [told, TurnEnded(reason="ok")]
    parser = claude.Parser()
    assert [sign for byte in long + result for sign in parser.feed(bytes([byte]))] == [
        told,
        TurnEnded(reason="ok"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 5000,
        '{"type":"result","num_turns":' + "9" * 5000 + "}",
        "null",
        "[]",
        '"text"',
        "NaN",
    ],
    ids=lambda text: text[:12],
)
def test_json_that_is_no_event_is_noise(text: str) -> None:
    assert parse(text.encode()) == [Noise(text=text[:500])]


def test_a_tools_input_is_cut_where_it_is_nested_too_deep() -> None:
    value: object = "bottom"
    for _ in range(200):
        value = [value]
    block = {"type": "tool_use", "id": "t", "name": "x", "input": {"deep": value}}
    (sign,) = parse(line({"type": "assistant", "message": {"content": [block]}}))
    assert sign.model_dump_json().count("[") == claude.INPUT_DEPTH


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1, True, "1", 10**400])
def test_a_cost_that_is_none_is_nothing(cost: object) -> None:
    (sign,) = parse(line({"type": "result", "total_cost_usd": cost}))
    assert isinstance(sign, TurnEnded)
    assert sign.cost_usd == 0


# What is said to it


@pytest.mark.parametrize("text", ["hello", "/clear", "a\nb\r\u2028c", "--bare", "\ud800", "\0", ""])
def test_a_message_is_one_line_and_its_text_is_not_the_last_block(text: str) -> None:
    said = claude.user_message(text)
    assert said.count(b"\n") == 1
    assert said.endswith(b"\n")
    blocks = [{"type": "text", "text": text}, {"type": "text", "text": ""}]
    assert json.loads(said) == {"type": "user", "message": {"role": "user", "content": blocks}}


def test_control_requests_carry_their_id() -> None:
    assert json.loads(claude.interrupt("r1")) == {
        "type": "control_request",
        "request_id": "r1",
        "request": {"subtype": "interrupt"},
    }
    assert json.loads(claude.initialize("r2")) == {
        "type": "control_request",
        "request_id": "r2",
        "request": {"subtype": "initialize", "systemPromptSnapshot": False},
    }


@pytest.mark.parametrize(
    ("said", "response"),
    [
        (
            claude.allow("r1", {"command": "a\nb"}),
            {"response": {"behavior": "allow", "updatedInput": {"command": "a\nb"}}},
        ),
        (claude.deny("r1", "No.\n"), {"response": {"behavior": "deny", "message": "No.\n"}}),
        (claude.refuse("r1", "unknown"), {"subtype": "error", "error": "unknown"}),
    ],
)
def test_an_answer_is_one_line_with_the_id_of_what_was_asked(
    said: bytes, response: dict[str, object]
) -> None:
    assert said.index(b"\n") == len(said) - 1
    whole = {"subtype": "success", "request_id": "r1"} | response
    assert json.loads(said) == {"type": "control_response", "response": whole}


# What is launched


def agent(
    *,
    prompt: str = "",
    model: str = "sonnet",
    allow: tuple[str, ...] = (),
    deny: tuple[str, ...] = (),
) -> AgentSpec:
    permissions = Permissions(allow=allow, deny=deny)
    return AgentSpec(
        name="a", description="An agent.", prompt=prompt, model=model, permissions=permissions
    )


def launched(
    spec: AgentSpec,
    *servers: McpServer,
    env: dict[str, str] | None = None,
    session_id: str | None = None,
    resume: str | None = None,
    memory: str = "",
    parent_url: str | None = None,
    ask_rules: tuple[str, ...] = (),
    approvals: bool = False,
) -> Launch:
    return claude.launch(
        spec,
        base_url="http://127.0.0.1:8080",
        token="run-token",
        env=env or {},
        mcp_servers=servers,
        cwd="/workspace",
        session_id=session_id,
        resume=resume,
        memory=memory,
        parent_url=parent_url,
        ask_rules=ask_rules,
        approvals=approvals,
    )


ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TMPDIR": "/tmp",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:8080",
    "ANTHROPIC_API_KEY": "run-token",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
    "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "MCP_CONNECTION_NONBLOCKING": "0",
    "MCP_CONNECT_TIMEOUT_MS": "15000",
    "ENABLE_TOOL_SEARCH": "false",
}
FIXED = (
    *("claude", "-p", "--verbose"),
    *("--input-format", "stream-json", "--output-format", "stream-json"),
    *("--setting-sources", "", "--strict-mcp-config"),
    *("--mcp-config", "/home/agent/.orchestrator/mcp.json", "--permission-mode", "dontAsk"),
)


def test_an_agent_that_says_nothing_may_do_nothing() -> None:
    assert launched(agent()) == Launch(
        argv=(*FIXED, "--tools=", "--model=sonnet", "--max-turns=50", "--no-session-persistence"),
        env=ENV,
        cwd="/workspace",
        files=(
            File(path="/home/agent/.orchestrator/mcp.json", content=b'{\n "mcpServers": {}\n}'),
        ),
    )


def test_an_agent_that_says_everything_gets_it() -> None:
    spec = agent(
        prompt="Be good.\n",
        allow=("Bash(curl:*)", "Bash(jq:*)", "Read"),
        deny=("Bash(curl -d:*)",),
    )
    server = McpServer(name="my.srv", command="srv", args=("--x", "${A}"), env={"K": "$v"})
    launch = launched(spec, server, env={"TZ": "UTC"}, session_id=SESSION, memory="Remember.")

    assert launch.argv == (
        *FIXED,
        "--tools=Bash,Read",
        "--allowedTools=Bash(curl:*),Bash(jq:*),Read,mcp__my_srv",
        "--disallowedTools=Bash(curl -d:*)",
        "--model=sonnet",
        "--max-turns=50",
        *("--system-prompt-file", "/home/agent/.orchestrator/prompt.md"),
        f"--session-id={SESSION}",
    )
    assert launch.env == {"TZ": "UTC", **ENV, "ORCHESTRATOR_DOLLAR": "$"}
    config, prompt = launch.files
    assert json.loads(config.content) == {
        "mcpServers": {
            "my.srv": {
                "type": "stdio",
                "command": "srv",
                "args": ["--x", "${ORCHESTRATOR_DOLLAR}{A}"],
                "env": {"K": "$v"},
            }
        }
    }
    assert prompt == File(
        path="/home/agent/.orchestrator/prompt.md", content=b"Be good.\n\nRemember.", mode=0o600
    )


def allowed(launch: Launch) -> str:
    return next((arg for arg in launch.argv if arg.startswith("--allowedTools=")), "")


def test_a_declared_server_is_allowed_unless_the_author_says_which_of_its_tools() -> None:
    server = McpServer(name="github", command="srv")
    one = "mcp__github__get_issue"
    assert allowed(launched(agent(), server)) == "--allowedTools=mcp__github"
    assert allowed(launched(agent(allow=(one,)), server)) == f"--allowedTools={one}"
    assert allowed(launched(agent(deny=("mcp__github",)), server)) == ""
    assert "--tools=" in launched(agent(allow=(one,)), server).argv


PARENT_URL = "http://127.0.0.1:8083/mcp"


def test_the_parent_is_a_server_that_is_always_there_and_is_waited_for() -> None:
    launch = launched(agent(), parent_url=PARENT_URL)
    entry = {"type": "http", "url": PARENT_URL, "timeout": 86_400_000, "alwaysLoad": True}
    assert json.loads(launch.files[0].content) == {"mcpServers": {"parent": entry}}
    assert allowed(launch) == "--allowedTools=mcp__parent"
    assert allowed(launched(agent(deny=("mcp__parent",)), parent_url=PARENT_URL)) == ""


def test_nobody_else_is_called_parent() -> None:
    server = McpServer(name="parent", command="srv")
    assert launched(agent(), server).files
    with pytest.raises(AgentInvalid, match="names an MCP server 'parent'"):
        launched(agent(), server, parent_url=PARENT_URL)


def approval_flags(launch: Launch) -> tuple[str, ...]:
    mode = launch.argv.index("--permission-mode")
    return launch.argv[mode : launch.argv.index("--model=sonnet")]


def test_calls_to_be_approved_are_asked_about_and_their_tools_are_there() -> None:
    spec, rules = agent(allow=("Read", "Bash(git:*)")), ("Bash(git push:*)", "Write")
    assert approval_flags(launched(spec, ask_rules=rules, approvals=True)) == (
        *("--permission-mode", "default", "--permission-prompt-tool", "stdio"),
        '--settings={"permissions": {"ask": ["Bash(git push:*)", "Write"]}}',
        "--tools=Read,Bash,Write",
        "--allowedTools=Read,Bash(git:*)",
    )


def test_with_nobody_to_approve_them_the_cli_refuses_them_itself() -> None:
    assert approval_flags(launched(agent(allow=("Bash",)), ask_rules=("Bash(rm:*)",))) == (
        *("--permission-mode", "dontAsk"),
        '--settings={"permissions": {"ask": ["Bash(rm:*)"]}}',
        "--tools=Bash",
        "--allowedTools=Bash",
    )


def test_a_tool_asked_about_as_a_whole_and_denied_in_part_is_asked_about_call_by_call() -> None:
    spec = agent(
        allow=("Bash", "Read", "WebFetch"), deny=("Bash(rm:*)", "WebFetch(domain:example.org)")
    )
    rules = ("Bash", "Read", "WebFetch")
    assert approval_flags(launched(spec, ask_rules=rules, approvals=True)) == (
        *("--permission-mode", "default", "--permission-prompt-tool", "stdio"),
        '--settings={"permissions": {"ask": ["Bash(**)", "WebFetch(domain:*)", "Read"]}}',
        "--tools=Bash,Read,WebFetch",
        "--allowedTools=Read",
        "--disallowedTools=Bash(rm:*),WebFetch(domain:example.org)",
    )


def test_a_session_is_resumed_by_its_id() -> None:
    assert launched(agent(), resume=SESSION).argv[-1] == f"--resume={SESSION}"
    with pytest.raises(ValueError, match="is no session id"):
        launched(agent(), resume="../../etc/passwd")


HOSTILE = ("--bare", "--dangerously-skip-permissions", "-p", "a\n--bare", "'; rm -rf / #")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_of_an_author_becomes_a_flag(text: str) -> None:
    launch = launched(agent(prompt=text, model=text), memory=text)
    plain = launched(agent(prompt="x"))
    assert len(launch.argv) == len(plain.argv)
    assert [new for new, old in zip(launch.argv, plain.argv, strict=True) if new != old] == [
        f"--model={text}"
    ]
    assert launch.files[1].content == f"{text}\n\n{text}".encode()


RULES = (
    "--bare",
    "",
    "Bash(",
    "Bash(a)(b)",
    "Bash(a))",
    "Bash,Write",
    "Bash Write",
    "Bash()",
    "(x)",
)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_could_become_another_or_a_flag_is_none(rule: str) -> None:
    for field in ("allow", "deny"):
        with pytest.raises(ValidationError, match="must be the name of a tool"):
            Permissions.model_validate({field: [rule]})


@pytest.mark.parametrize(
    "spec",
    [
        agent(prompt="a\0b"),
        agent(model="a\0b"),
        agent(allow=("Bash(a\0b)",)),
        agent(deny=("Bash(a\0b)",)),
    ],
)
def test_a_nul_is_refused(spec: AgentSpec) -> None:
    with pytest.raises(AgentInvalid, match="NUL"):
        launched(spec)
    with pytest.raises(AgentInvalid, match="the variable X holds a NUL"):
        launched(agent(), env={"X": "a\0b"})
    with pytest.raises(AgentInvalid, match="half a character"):
        launched(agent(), memory="\ud800")


@pytest.mark.parametrize("name", [*ENV, "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CONFIG_DIR"])
def test_the_orchestrators_own_variables_are_not_an_agents_to_set(name: str) -> None:
    with pytest.raises(AgentInvalid, match=f"sets {name} in its env"):
        launched(agent(), env={name: "x"})
