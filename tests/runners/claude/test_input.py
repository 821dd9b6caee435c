"""The lines that are written to the CLI, by value."""

from __future__ import annotations

import json

import pytest

from orchestrator.runners.claude import input as claude_input


@pytest.mark.parametrize("text", ["hello", "/clear", "a\nb\r\u2028c", "--bare", "\ud800", "\0", ""])
def test_a_message_is_one_line_and_its_text_is_not_the_last_block(text: str) -> None:
    said = claude_input.user_message(text)
    assert said.count(b"\n") == 1
    assert said.endswith(b"\n")
    blocks = [{"type": "text", "text": text}, {"type": "text", "text": ""}]
    assert json.loads(said) == {"type": "user", "message": {"role": "user", "content": blocks}}


def test_a_message_can_have_an_id() -> None:
    assert json.loads(claude_input.user_message("hello", "u-1"))["uuid"] == "u-1"


def test_control_requests_carry_their_id() -> None:
    assert json.loads(claude_input.interrupt("r1")) == {
        "type": "control_request",
        "request_id": "r1",
        "request": {"subtype": "interrupt"},
    }
    assert json.loads(claude_input.initialize("r2")) == {
        "type": "control_request",
        "request_id": "r2",
        "request": {"subtype": "initialize", "systemPromptSnapshot": False},
    }


@pytest.mark.parametrize(
    ("said", "response"),
    [
        (
            claude_input.allow("r1", {"command": "a\nb"}),
            {"response": {"behavior": "allow", "updatedInput": {"command": "a\nb"}}},
        ),
        (claude_input.deny("r1", "No.\n"), {"response": {"behavior": "deny", "message": "No.\n"}}),
        (claude_input.refuse("r1", "unknown"), {"subtype": "error", "error": "unknown"}),
    ],
)
def test_an_answer_is_one_line_with_the_id_of_what_was_asked(
    said: bytes, response: dict[str, object]
) -> None:
    assert said.index(b"\n") == len(said) - 1
    whole = {"subtype": "success", "request_id": "r1"} | response
    assert json.loads(said) == {"type": "control_response", "response": whole}
