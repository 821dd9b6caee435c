"""The lines that are written to the claude CLI: messages, requests, and answers to its own."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.runners.lines import line


def initialize(request_id: str) -> bytes:
    """The first line to write. It is answered when the CLI can take messages; no model is asked.

    It also keeps 2.1.325 from sending the system prompt of a conversation's first day for ever:
    without it, a resumed session never hears of a new prompt.
    """
    return _request(request_id, {"subtype": "initialize", "systemPromptSnapshot": False})


def rehearsal() -> bytes:
    """A message of nothing: the CLI does all that it does for its first one, and forgets it.

    Its first request takes 150 ms, the next ones 30: what it needs for them is there by then. What
    is asked for is refused by the gateway, and neither message nor refusal is in the next request
    (seen with 2.1.325; tests/engine/test_spares.py keeps an eye on it).
    """
    return _message([])


def user_message(text: str, message_id: str = "") -> bytes:
    """The line that starts a turn, or that the agent reads between two steps of a running one.

    With an id, which has to be a UUID, 2.1.325 tells when it takes the message up.

    The CLI takes the last block of a message for something typed: "/clear" never reaches the model
    and "@/etc/passwd" attaches the file, whatever the permissions say. So the last block is empty,
    and dropped by the CLI itself.
    """
    return _message([{"type": "text", "text": text}, {"type": "text", "text": ""}], message_id)


def interrupt(request_id: str) -> bytes:
    """The line that stops the turn; the CLI answers it and stays usable."""
    return _request(request_id, {"subtype": "interrupt"})


def allow(request_id: str, tool_input: Mapping[str, object]) -> bytes:
    """The line that lets a call run, with this input, whatever the one was that was asked for."""
    return _answer(request_id, {"behavior": "allow", "updatedInput": dict(tool_input)})


def deny(request_id: str, message: str) -> bytes:
    """The line that refuses a call; the agent reads the message as the call's result."""
    return _answer(request_id, {"behavior": "deny", "message": message})


def refuse(request_id: str, why: str) -> bytes:
    """The line for a request that we do not know, so that the CLI does not wait for more."""
    error = {"subtype": "error", "request_id": request_id, "error": why}
    return line({"type": "control_response", "response": error})


def _message(blocks: list[dict[str, str]], message_id: str = "") -> bytes:
    said: dict[str, object] = {"type": "user", "message": {"role": "user", "content": blocks}}
    return line({**said, "uuid": message_id} if message_id else said)


def _request(request_id: str, request: dict[str, object]) -> bytes:
    return line({"type": "control_request", "request_id": request_id, "request": request})


def _answer(request_id: str, response: dict[str, object]) -> bytes:
    success = {"subtype": "success", "request_id": request_id, "response": response}
    return line({"type": "control_response", "response": success})
