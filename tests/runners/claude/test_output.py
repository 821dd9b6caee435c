"""What the CLI says -> signs: recorded, made up, and garbage."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.runners import json_fields
from orchestrator.runners import lines as cli_lines
from orchestrator.runners.claude import output as claude_output
from orchestrator.runners.json_fields import LIST_ITEMS
from orchestrator.runners.signs import (
    Noise,
    PermissionAsked,
    Ready,
    Retrying,
    Said,
    Saying,
    TakenUp,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)
from tests.runners.claude.recordings import (
    BOTH,
    NEW,
    RECORDED,
    RECORDINGS,
    SESSION,
    done,
    line,
    names,
    parse,
    recorded,
    returned,
)


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
        done(),
    ]


@pytest.mark.parametrize("version", BOTH)
def test_an_mcp_server_that_is_not_there_is_told(version: str) -> None:
    ready = recorded(version, "failed_mcp")[0]
    assert ready == Ready(
        session_id=SESSION, model="claude-sonnet-4-5", mcp_servers={"absent": "failed"}
    )


@pytest.mark.parametrize("version", BOTH)
def test_an_interrupt_is_answered_and_the_next_turn_works(version: str) -> None:
    kinds = names(recorded(version, "interrupt"))
    first = ["Ready", "ToolCalled", "ControlAnswered", "ToolReturned", "TurnEnded"]
    assert kinds == [*first, "Ready", "Said", "TurnEnded"]
    assert claude_output.ControlAnswered(request_id="stop-1") in recorded(version, "interrupt")


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
    kinds = names(recorded(version, "parent_interrupted"))
    first = ["Ready", "ToolCalled", "ControlAnswered", "ToolReturned", "TurnEnded"]
    assert kinds == [*first, "Ready", "Said", "TurnEnded"]


def test_a_request_of_the_cli_that_we_do_not_know_is_told_by_its_id() -> None:
    for request in ({"subtype": "x" * 500}, {"subtype": "can_use_tool", "input": "no"}, "no", None):
        event = {"type": "control_request", "request_id": "r1", "request": request}
        (sign,) = parse(line(event))
        assert sign == claude_output.ControlAsked(request_id="r1")
    assert isinstance(parse(line({"type": "control_request"}))[0], Noise)
    assert isinstance(parse(line({"type": "control_cancel_request"}))[0], Noise)


def test_a_message_that_is_taken_up_is_told_and_one_that_waits_is_not() -> None:
    told = {"type": "command_lifecycle", "command_uuid": "u-1"}
    assert parse(line({**told, "state": "queued"})) == []
    for state in ("started", "completed", "cancelled", "discarded", "refused"):
        assert parse(line({**told, "state": state})) == [TakenUp(message_id="u-1")]


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


def test_a_text_is_heard_as_it_comes_and_nothing_else_of_the_stream() -> None:
    def streamed(parent: str | None = None, **event: object) -> bytes:
        return line({"type": "stream_event", "event": event, "parent_tool_use_id": parent})

    text, thought = {"type": "text", "text": ""}, {"type": "thinking_delta", "thinking": "Hm."}
    said = {"type": "text_delta", "text": "Good mor"}
    assert parse(
        streamed(type="message_start", message={})
        + streamed(type="content_block_start", index=0, content_block=text)
        + streamed(type="content_block_delta", index=0, delta=said)
        + streamed(type="content_block_delta", index=0, delta=thought)
        + streamed("toolu_1", type="content_block_delta", index=0, delta=said)
        + streamed(type="content_block_stop", index=0)
        + streamed(type="message_stop")
    ) == [Saying(text="", begins=True), Saying(text="Good mor")]


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


# Bytes from a stranger


@given(data=st.data())
def test_the_signs_do_not_depend_on_how_the_bytes_were_cut(data: st.DataObject) -> None:
    whole = data.draw(st.sampled_from(RECORDINGS)).read_bytes()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    parser, signs = claude_output.Parser(), list[claude_output.Parsed]()
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
    | st.text(st.characters(codec=None, categories=None), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,  # deep enough: what is below a field is read at most three levels down
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


def test_a_line_of_more_parts_than_can_be_read_quickly_is_noise() -> None:
    (many,) = parse(b'{"type":"result","x":[' + b"[]," * 50_000 + b"[]]}\n")
    assert isinstance(many, Noise)
    code = "a, b = [c], {d}, " * 20_000
    block = {"type": "text", "text": code}
    (said,) = parse(line({"type": "assistant", "message": {"content": [block]}}))
    assert said == Said(text=code)


def test_of_a_line_with_very_much_in_it_a_bounded_part_is_taken() -> None:
    (ended,) = parse(line({"type": "result", "permission_denials": [{"tool_name": "T"}] * 20_000}))
    assert isinstance(ended, TurnEnded)
    assert len(ended.denials) == LIST_ITEMS
    many = {"type": "tool_use", "id": "1", "name": "T", "input": {"a": list(range(50_000)), "b": 1}}
    (called,) = parse(line({"type": "assistant", "message": {"content": [many]}}))
    assert isinstance(called, ToolCalled)
    assert called.input == {"a": "…", "b": 1}


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ({"command": "ls"}, True),
        ({"ids": list(range(1000))}, True),
        ({"ids": list(range(50_000))}, False),
        ({"content": "x" * 2_000_000}, False),
    ],
)
def test_a_call_that_cannot_be_shown_whole_says_so(given: dict[str, object], whole: bool) -> None:
    request = {"subtype": "can_use_tool", "tool_use_id": "t", "tool_name": "T", "input": given}
    (asked,) = parse(line({"type": "control_request", "request_id": "1", "request": request}))
    assert isinstance(asked, PermissionAsked)
    assert asked.is_whole is whole


def test_junk_between_the_lines_is_noise_and_nothing_else_changes() -> None:
    lines = (RECORDED / NEW / "tool.jsonl").read_bytes().splitlines(keepends=True)
    junk = b"\xff\xfe half a \xe2\x82\n"
    signs = parse(junk.join(lines) + junk)
    assert [sign for sign in signs if not isinstance(sign, Noise)] == parse(b"".join(lines))
    assert [sign for sign in signs if isinstance(sign, Noise)] == [
        Noise(text="\ufffd\ufffd half a \ufffd")
    ] * len(lines)


def test_a_line_too_long_is_skipped_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_lines, "OUTPUT_LINE_BYTES", 100)
    result = line({"type": "result", "subtype": "success", "stop_reason": "end_turn"})
    assert len(result) <= 100
    long = line({"type": "result", "result": "x" * 200})
    told = Noise(text="a line of more than 100 bytes")
    assert parse(long + result) == [told, TurnEnded(reason="ok")]
    parser = claude_output.Parser()
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
    assert sign.model_dump_json().count("[") == json_fields.VALUE_DEPTH
