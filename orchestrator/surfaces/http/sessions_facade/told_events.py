"""Our events -> those that these clients know, in frames. Pure.

Another server has turns, which begin with a model request and end with the results of the tools
that it asked for; ours are counted here. A tool is told to have started when it is certain that it
may: once it was allowed, or with its result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from orchestrator.store.numbered_events import KeptEvent
from orchestrator.surfaces.http.sessions_facade.run_ids import run_uuid
from orchestrator.surfaces.http.sessions_facade.session_bodies import timestamp

Told = tuple[str, dict[str, Any]]
"""An event's name, and what it says besides the run."""

QUESTION_TOOL = "ask_parent"
"""What a question of an agent is called among tool calls: the answer is its custom_result."""

OF_A_TURN = frozenset(("saying", "text", "tool_call", "approval_asked", "asked", "model_request"))
"""Kinds that belong to a turn."""

STOPS = {"completed": "completed", "cancelled": "cancelled"}
"""By the status of a run that has not failed."""

_PROMPT_TOKENS = ("input_tokens", "cache_read_tokens", "cache_write_tokens")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass
class RunTelling:
    """What was told of one run so far."""

    turn: int = 0
    _open: bool = False
    _has_results: bool = False
    _said: str = ""
    _tools: dict[str, str] = field(default_factory=dict)
    _started: set[str] = field(default_factory=set)
    _rejected: set[str] = field(default_factory=set)
    _prompt_tokens: int = 0
    _answer_tokens: int = 0

    def told(self, event: KeptEvent) -> list[Told]:
        """What there is to tell of the run's next event."""
        data: dict[str, Any] = json.loads(event.data)
        told: list[Told] = [("RunStarted", {})] if event.seq == 1 else []
        if event.kind in OF_A_TURN:
            told += self._in_turn()
        telling = getattr(self, f"_on_{event.kind}", None)
        return told + (telling(event.text, data) if telling else [])

    def _in_turn(self) -> list[Told]:
        told: list[Told] = []
        if self._open and self._has_results:
            told.append(self._turn_ends("tool_calls"))
        if not self._open:
            self.turn += 1
            self._open, self._said = True, ""
            told.append(("TurnStarted", {"turn": self.turn}))
        return told

    def _turn_ends(self, reason: str) -> Told:
        self._open = self._has_results = False
        return "TurnCompleted", {"turn": self.turn, "finish_reason": reason}

    def _on_saying(self, text: str, data: dict[str, Any]) -> list[Told]:
        self._said = text if data.get("begins") else self._said + text
        return [("TextDelta", {"delta": text})]

    def _on_text(self, text: str, _: dict[str, Any]) -> list[Told]:
        rest = text.removeprefix(self._said) if text.startswith(self._said) else ""
        self._said = ""
        whole: list[Told] = [("TextComplete", {"text": text})]
        return [("TextDelta", {"delta": rest}), *whole] if rest else whole

    def _on_tool_call(self, _: str, data: dict[str, Any]) -> list[Told]:
        self._tools[str(data.get("id"))] = str(data.get("tool"))
        return []

    def _on_tool_result(self, text: str, data: dict[str, Any]) -> list[Told]:
        self._has_results = True
        call = str(data.get("id"))
        name = self._tools.pop(call, "")
        if call in self._rejected:
            return []
        done = {"tool_call_id": call, "tool_name": name}
        result = {**done, "result": text, "is_error": bool(data.get("is_error"))}
        begun = [] if call in self._started else [("ToolExecutionStarted", done)]
        self._started.discard(call)
        return [*begun, ("ToolExecutionCompleted", result)]

    def _on_approval_asked(self, _: str, data: dict[str, Any]) -> list[Told]:
        call, tool = str(data.get("call_id")), str(data.get("tool"))
        self._tools[call] = tool
        return _proposed(call, tool, data.get("input", {}))

    def _on_asked(self, text: str, data: dict[str, Any]) -> list[Told]:
        said = {"question": text, "default_answer": data.get("default_answer", "")}
        return _proposed(str(data.get("message_id")), QUESTION_TOOL, said)

    def _on_approval_decided(self, text: str, data: dict[str, Any]) -> list[Told]:
        call = str(data.get("call_id"))
        done = {"tool_call_id": call, "tool_name": self._tools.get(call, "")}
        if data.get("decision") == "approved":
            self._started.add(call)
            return [("ToolExecutionStarted", done)]
        self._rejected.add(call)
        return [("ToolRejected", {**done, "reason": text})]

    def _on_model_request(self, _: str, data: dict[str, Any]) -> list[Told]:
        asked = sum(int(data.get(name) or 0) for name in _PROMPT_TOKENS)
        answered = int(data.get("output_tokens") or 0)
        self._prompt_tokens += asked
        self._answer_tokens += answered
        return [("UsageReport", {"turn": self.turn, "usage": _usage(asked, answered)})]

    def _on_api_retry(self, text: str, data: dict[str, Any]) -> list[Told]:
        attempt = int(data.get("attempt") or 0)
        return [("RetryAttempt", {"attempt": attempt, "delay_ms": 0, "reason": text})]

    def _on_ended(self, text: str, data: dict[str, Any]) -> list[Told]:
        status, reason = str(data.get("status")), str(data.get("reason"))
        stop = "max_turns" if reason == "max_turns" else STOPS.get(status)
        finish = {"completed": "stop", "cancelled": "cancelled", "max_turns": "stop"}
        told = [self._turn_ends(finish.get(stop or "", "error"))] if self._open else []
        if stop is None:
            error = text or reason or status
            return [*told, ("RunError", {"error": error, "retryable": False})]
        usage = _usage(self._prompt_tokens, self._answer_tokens)
        said = {"total_turns": self.turn, "total_usage": usage, "stop_reason": stop}
        return [*told, ("RunCompleted", said)]


def event_frames(session_id: str, event: KeptEvent, told: list[Told]) -> bytes:
    """What is told of one event. Only the last frame has its id: who is cut off between two of them
    gets all of them again.
    """
    run_id, frames = run_uuid(event.run_id), []
    for place, (name, said) in enumerate(told, 1):
        body = {
            "id": event.number,
            "session_id": session_id,
            "run_id": run_id,
            "timestamp": timestamp(event.at),
            "event": {name: {"run_id": run_id, **said}},
        }
        head = f"id: {event.number}\n" if place == len(told) else ""
        line = json.dumps(_finite(body))
        frames.append(f"{head}event: {_CAPITAL.sub('_', name).lower()}\ndata: {line}\n\n")
    return "".join(frames).encode()


def _proposed(call: str, tool: str, arguments: object) -> list[Told]:
    proposed = {"id": call, "name": tool, "arguments": arguments}
    return [
        ("ToolCallsProposed", {"tool_calls": [proposed]}),
        ("WaitingForToolApproval", {"pending_tool_call_ids": [call]}),
    ]


def _usage(asked: int, answered: int) -> dict[str, int]:
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
    }


def _finite(value: Any) -> Any:
    """A JSON value without numbers that are none: what came from a container may have some."""
    return json.loads(json.dumps(value), parse_constant=str)
