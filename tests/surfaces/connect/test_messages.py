"""What a relay understands of messages, and what it changes in them."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.surfaces.connect.messages import (
    KEY_META,
    VERSION_META,
    cancelled_id,
    directories_in,
    headers_for,
    may_repeat,
    with_directories,
    with_key,
)


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


def test_directories_are_found_and_named_anew_and_nothing_else() -> None:
    tasks = [{"agent_name": "a", "workspace": "/b"}, {"agent_name": "a", "prompt": "/b"}, 7]
    arguments = {"workspace": "/a", "cwd": "relative", "prompt": "/a", "tasks": tasks}
    assert directories_in(arguments) == {"/a", "/b"}
    changed = with_directories(arguments, {"/a": "w1", "/b": "w2"})
    assert changed == {
        "workspace": "w1",
        "cwd": "relative",
        "prompt": "/a",
        "tasks": [{"agent_name": "a", "workspace": "w2"}, {"agent_name": "a", "prompt": "/b"}, 7],
    }


def test_only_a_call_that_starts_runs_has_a_key_and_keeps_its_own() -> None:
    started = with_key(call("run_subagent"), "k")
    assert started["params"]["_meta"] == {KEY_META: "k"}
    assert with_key(started, "other") == started
    assert with_key(call("get_logs"), "k") == call("get_logs")


@pytest.mark.parametrize(
    ("tool", "repeated"),
    [("run_subagent", True), ("wait_for_tasks", True), ("cancel_task", True)]
    + [(name, False) for name in ("reply_subagent", "resume_subagent_task", "unknown")],
)
def test_what_would_be_done_twice_is_not_sent_twice(tool: str, repeated: bool) -> None:
    assert may_repeat(call(tool)) is repeated
    assert may_repeat({"id": 1, "method": "tools/list"})


def test_the_newer_era_says_in_headers_what_it_asks() -> None:
    message = call("größe")
    assert headers_for(message) == {}
    message["params"]["_meta"] = {VERSION_META: "2026-07-28"}
    assert headers_for(message) == {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?Z3LDtsOfZQ==?=",
    }


def test_what_is_taken_back_is_known() -> None:
    taken = {"method": "notifications/cancelled", "params": {"requestId": 7}}
    assert cancelled_id(taken) == 7
    assert cancelled_id({"method": "notifications/progress", "params": {"requestId": 7}}) is None
