"""What the claude CLI writes, in pieces of any size -> signs. For versions 2.1.197 and 2.1.325."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.runners.claude.endings import turn_ended
from orchestrator.runners.json_fields import (
    bounded_dict_of,
    dict_of,
    dicts_of,
    id_of,
    int_of,
    name_of,
    names_of,
    text_of,
)
from orchestrator.runners.lines import CliLine, CliLines, is_shown_whole, noise
from orchestrator.runners.signs import (
    Noise,
    PermissionAsked,
    PermissionWithdrawn,
    Ready,
    Retrying,
    Said,
    Saying,
    Sign,
    TakenUp,
    ToolCalled,
    ToolReturned,
)


class ControlAnswered(Frozen):
    """The CLI has answered a control request of ours (initialize, interrupt)."""

    request_id: str


class ControlAsked(Frozen):
    """The CLI wants something of us that we do not know; it is to be told so."""

    request_id: str


Parsed = Sign | ControlAnswered | ControlAsked


class Parser:
    """Bytes in, signs out. Nothing that the CLI writes is an error.

    Any process in the container can write it, too: ids and names are believed in their form only,
    and what has another one is noise.
    """

    def __init__(self) -> None:
        self._lines = CliLines()
        self._fault = ""
        """What the CLI called the error of this turn, when it spoke in the model's place."""

    def feed(self, data: bytes) -> list[Parsed]:
        """The signs of the lines that these bytes complete."""
        return self._understood(self._lines.feed(data))

    def finish(self) -> list[Parsed]:
        """The signs of a last line that was never ended."""
        return self._understood(self._lines.finish())

    def _understood(self, lines: Iterable[CliLine]) -> list[Parsed]:
        signs: list[Parsed] = []
        for event, text in lines:
            signs += [noise(text)] if event is None else self._signs(event, text)
        return signs

    def _signs(self, event: Mapping[str, object], text: str) -> list[Parsed]:
        match event.get("type"):
            case "assistant":
                self._fault = text_of(event, "error") or self._fault
                return _from_assistant(event)
            case "user":
                return _from_user(event)
            case "system":
                return _from_system(event)
            case "result":
                fault, self._fault = self._fault, ""
                return [turn_ended(event, fault)]
            case "control_response":
                response = dict_of(event, "response")
                return [ControlAnswered(request_id=id_of(response, "request_id"))]
            case "command_lifecycle" if message_id := id_of(event, "command_uuid"):
                # 2.1.325 says so of messages that have an id; 2.1.197 says nothing.
                waits = event.get("state") == "queued"
                return [] if waits else [TakenUp(message_id=message_id)]
            case "stream_event":
                return _from_stream(event)
            case "tool_progress":
                return []  # 2.1.325 says every 30 s that a tool still runs
            case "control_request" if request_id := id_of(event, "request_id"):
                asked = _from_request(request_id, dict_of(event, "request"))
                return [asked] if asked else [ControlAsked(request_id=request_id), noise(text)]
            case "control_cancel_request" if request_id := id_of(event, "request_id"):
                return [PermissionWithdrawn(request_id=request_id)]
            case _:
                return [noise(text)]


def _from_assistant(event: Mapping[str, object]) -> list[Parsed]:
    message = dict_of(event, "message")
    # The CLI's own words ("API Error: ...") and a sub-agent's are not what the agent said.
    its_own = message.get("model") != "<synthetic>" and event.get("parent_tool_use_id") is None
    signs: list[Parsed] = []
    for block in dicts_of(message, "content"):
        if block.get("type") == "tool_use":
            called = ToolCalled(
                id=id_of(block, "id"),
                tool=name_of(block, "name"),
                input=bounded_dict_of(block, "input"),
            )
            nameless = Noise(text="a call of a tool whose name has no such form")
            signs.append(called if called.tool else nameless)
        elif block.get("type") == "text" and its_own and text_of(block, "text"):
            signs.append(Said(text=text_of(block, "text")))
    return signs


def _from_stream(event: Mapping[str, object]) -> list[Parsed]:
    """What the model sends, as it comes; of the agent's own texts only."""
    if event.get("parent_tool_use_id") is not None:
        return []
    said = dict_of(event, "event")
    block, delta = dict_of(said, "content_block"), dict_of(said, "delta")
    if said.get("type") == "content_block_start" and block.get("type") == "text":
        return [Saying(text=text_of(block, "text"), begins=True)]
    if said.get("type") == "content_block_delta" and delta.get("type") == "text_delta":
        return [Saying(text=text_of(delta, "text"))]
    return []


def _from_user(event: Mapping[str, object]) -> list[Parsed]:
    signs: list[Parsed] = []
    for block in dicts_of(dict_of(event, "message"), "content"):
        if block.get("type") == "tool_result":
            parts = [text_of(part, "text") for part in dicts_of(block, "content")]
            returned = ToolReturned(
                id=id_of(block, "tool_use_id"),
                text=text_of(block, "content") or "\n".join(part for part in parts if part),
                is_error=block.get("is_error") is True,
            )
            signs.append(returned)
    return signs


def _from_system(event: Mapping[str, object]) -> list[Parsed]:
    if event.get("subtype") == "init":
        servers = dicts_of(event, "mcp_servers")
        ready = Ready(
            session_id=id_of(event, "session_id"),
            model=name_of(event, "model"),
            tools=names_of(event, "tools"),
            mcp_servers={
                name: id_of(server, "status") or "unknown"
                for server in servers
                if (name := name_of(server, "name"))
            },
        )
        return [ready]
    if event.get("subtype") == "api_retry":
        retrying = Retrying(
            attempt=int_of(event, "attempt") or 0,
            status=int_of(event, "error_status"),
            error=text_of(event, "error"),
        )
        return [retrying]
    return []  # how its windows look, which tool it just denied: nothing that is not told elsewhere


def _from_request(request_id: str, request: Mapping[str, object]) -> Parsed | None:
    """None if it is about a call or a tool that cannot be one."""
    if request.get("subtype") != "can_use_tool" or not isinstance(request.get("input"), dict):
        return ControlAsked(request_id=request_id)
    call_id, tool = id_of(request, "tool_use_id"), name_of(request, "tool_name")
    if not (call_id and tool):
        return None
    given = bounded_dict_of(request, "input")
    return PermissionAsked(
        request_id=request_id,
        call_id=call_id,
        tool=tool,
        input=given,
        is_whole=is_shown_whole(given, request["input"]),
        why=_why_asked(request),
    )


def _why_asked(request: Mapping[str, object]) -> Literal["rule", "parts", "no_rule"]:
    # 2.1.325 names the rule even where it has another reason besides.
    if request.get("decision_reason_type") == "rule" or dict_of(request, "matched_ask_rule"):
        return "rule"
    return "parts" if request.get("decision_reason_type") == "subcommandResults" else "no_rule"
