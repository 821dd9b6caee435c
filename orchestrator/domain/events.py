"""Event: something that happened in a run, for people (`text`) and for programs (`data`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from orchestrator.domain import Frozen

EventKind = Literal[
    "image",  # the agent image is being made; told before the run begins, and not kept
    "queued",  # waits for its turn
    "starting",  # a container is being made
    "started",  # the CLI runs: data = runner, path (cold, warm, session)
    "ready",  # the CLI has said who it is: data = session_id, model, tools, mcp_servers
    "text",  # the agent said something
    "saying",  # a piece of what it has not said to the end
    "tool_call",  # data = id, tool, input
    "tool_result",  # data = id, is_error
    "mcp_failed",  # a declared MCP server is not there: data = name, status
    "model_request",  # data = status, model, ..., cost_usd, estimated_usd, unanswered
    "api_retry",  # the CLI asks the model again: data = attempt, status
    "schema_failed",  # the answer breaks the schema: data = errors
    "fallback",  # a runner could not go on, and another does: data = runner, next, reason
    "nudged",  # told to finish, since time is nearly up
    "interrupted",  # stopped in the middle of a turn
    "egress",  # a connection or request through the gateway: data = host, port, rule, bytes
    "egress_denied",  # one that was refused: data = host, port, why
    "secret_used",  # a request that a secret was added to: data = secret, host, method, path
    "server",  # a server of tools starts, ends, or is not as it was pinned: data = server
    "server_call",  # a tool of one was called: data = server, tool, direct, is_error, bytes, ...
    "server_denied",  # a call that was refused: data = server, tool, code, rule, why
    "workspace",  # copied in, or what was changed: data = files, bytes, seconds
    "asked",  # the agent asks its parent: data = message_id, default_answer
    "answered",  # and was told: data = message_id, by (caller, default)
    "approval_asked",  # a tool call waits: data = call_id, tool, input, input_chars (of all of it)
    "approval_decided",  # data = call_id, decision
    "delegated",  # its agent runs another one: data = run_id
    "status",  # what the agent says of its progress
    "steered",  # the caller said something in the middle of it
    "memory",  # memory.md was written back
    "warning",  # anything else worth knowing
    "ended",  # data = status, reason
]


class Event(Frozen):
    """One line of a run's record."""

    run_id: str
    seq: int
    """Counts up from 1 within the run; 0 is before it, and in no record."""
    at: float
    """Seconds since 1970."""
    kind: EventKind
    text: str = ""
    """One line for people, bounded and without secrets."""
    data: dict[str, object] = {}


def said_so_far(events: Iterable[Event]) -> str:
    """What the agent said last, whole or not. `events` are the run's, or the last of them."""
    said, unfinished = "", ""
    for event in events:
        if event.kind == "text":
            said, unfinished = event.text, ""
        elif event.kind == "saying":
            unfinished = event.text if event.data.get("begins") else unfinished + event.text
    return unfinished or said
