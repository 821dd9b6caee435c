"""The model of tests/runners/claude/fake_model.py in the words of OpenAI Responses."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.runners.claude.fake_model import Cut, Fail, FakeModel, Say, Stall, Step, Use, response

Event = dict[str, object]


@dataclass
class FakeResponses(FakeModel):
    """Answers on /v1/responses."""

    def render(self, step: Step, number: int, *, streamed: bool) -> bytes:
        assert streamed
        if isinstance(step, Fail):
            error = {"message": f"scripted {step.status}", "type": "scripted"}
            return response(step.status, "application/json", json.dumps({"error": error}).encode())
        events: list[Event] = [{"type": "response.created", "response": {"id": f"resp_{number}"}}]
        if isinstance(step, Say | Cut | Stall):
            item: Event = {
                "type": "message",
                "role": "assistant",
                "id": f"msg_{number}",
                "content": [],
            }
            part = {"type": "output_text", "text": step.text}
            added: Event = {"type": "response.output_item.added", "output_index": 0, "item": item}
            delta: Event = {
                "type": "response.output_text.delta",
                "output_index": 0,
                "content_index": 0,
            }
            events += [added, delta | {"item_id": item["id"], "delta": step.text}]
            if not isinstance(step, Say):
                return response(200, "text/event-stream", _sse(events))[:-5]
            events.append(_done(item | {"content": [part]}))
        elif isinstance(step, Use) and step.tool == "apply_patch":
            patch: Event = {"type": "custom_tool_call", "call_id": f"call_{number}"}
            events.append(_done(patch | {"name": "apply_patch", "input": step.input["patch"]}))
        elif isinstance(step, Use):
            name, arguments = step.tool, json.dumps(step.input)
            called: Event = {"type": "function_call", "call_id": f"call_{number}"}
            called["arguments"] = arguments
            if name.startswith("mcp__"):
                server, _, name = name.rpartition("__")
                called["namespace"] = server
            events.append(_done(called | {"name": name}))
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        whole = {"id": f"resp_{number}", "status": "completed", "usage": usage}
        events.append({"type": "response.completed", "response": whole})
        return response(200, "text/event-stream", _sse(events))


def _done(item: Event) -> Event:
    return {"type": "response.output_item.done", "output_index": 0, "item": item}


def _sse(events: list[Event]) -> bytes:
    lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    return "".join(lines).encode()
