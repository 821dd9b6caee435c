"""Models on the loopback for the clients that call us, each in its client's own wire format.

They play the same scene: asked something, the model calls one tool; told what the tool answered, it
repeats that. Requests that offer no tools (titles, summaries) get a word.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.scripted import Script, ScriptedUpstream
from orchestrator.gateway.model.upstream import UpstreamRequest

Document = dict[str, Any]

SAID = "The tool said: "
"""Before what a tool answered, in the model's last words."""

IDLE = "ok"


class Played(Protocol):
    """One wire format."""

    async def answer(self, request: HttpRequest) -> HttpResponse: ...


@asynccontextmanager
async def played(model: Played) -> AsyncIterator[str]:
    """The URL of a model."""
    async with serve_on_loopback(model.answer) as url:
        yield url


class Messages:
    """Anthropic's Messages, for claude and copilot."""

    def __init__(self, tool: str, arguments: Mapping[str, object]) -> None:
        self._call: dict[str, object] = {"tool": tool, "input": dict(arguments)}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if not request.path.endswith("/v1/messages"):
            return HttpResponse(200 if request.method == "HEAD" else 404)
        asked = json.loads(request.body)
        heard = self._heard(asked)
        step: dict[str, object] = {"text": IDLE}
        if heard is not None:
            step = {"text": SAID + heard}
        elif asked.get("tools"):
            step = self._call
        upstream = ScriptedUpstream(Script.model_validate({"steps": [step]}))
        held = AsyncExitStack()
        sent = UpstreamRequest(request.method, request.target, request.headers, request.body)
        said = await held.enter_async_context(upstream.send(sent))
        return HttpResponse(said.status, said.headers, said.body, held.aclose)

    def _heard(self, asked: Document) -> str | None:
        for message in reversed(asked["messages"]):
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "tool_result":
                    return _text(block["content"])
        return None


class Responses:
    """OpenAI's Responses, for codex."""

    def __init__(self, namespace: str, tool: str, arguments: Mapping[str, object]) -> None:
        self._call = {"namespace": namespace, "name": tool, "arguments": json.dumps(arguments)}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if not request.path.endswith("/responses"):
            return HttpResponse(404)
        asked = json.loads(request.body)
        heard = [item for item in asked["input"] if item.get("type") == "function_call_output"]
        item: Document = {"type": "function_call", "id": "fc_1", "call_id": "call_1", **self._call}
        if heard or not asked.get("tools"):
            said = SAID + _text(heard[-1]["output"]) if heard else IDLE
            content = [{"type": "output_text", "text": said, "annotations": []}]
            item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
        usage: Document = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        usage |= {"input_tokens_details": {"cached_tokens": 0}}
        usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
        response = {"id": "resp_1", "object": "response", "status": "completed"}
        return _stream(
            {"type": "response.created", "response": {**response, "status": "in_progress"}},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {**response, "output": [], "usage": usage}},
        )


class GenerateContent:
    """Google's generateContent, for gemini."""

    def __init__(self, tool: str, arguments: Mapping[str, object]) -> None:
        self._call = {"name": tool, "args": dict(arguments)}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        if "enerateContent" not in request.path:
            return HttpResponse(404)
        asked = json.loads(request.body)
        heard = [
            part["functionResponse"]["response"]
            for content in asked["contents"]
            for part in content["parts"]
            if "functionResponse" in part
        ]
        part: Document = {"functionCall": self._call}
        if heard or not asked.get("tools"):
            part = {"text": SAID + _text(heard[-1]) if heard else IDLE}
        content = {"role": "model", "parts": [part]}
        counts = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
        said = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": counts,
        }
        if "streamGenerateContent" in request.path:
            return _stream(said)
        headers = (("content-type", "application/json"),)
        return HttpResponse(200, headers, json.dumps(said).encode())


def _text(content: object) -> str:
    """What a client tells its model of a tool's answer, as one text."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", part)) for part in content)
    return json.dumps(content, ensure_ascii=False)


def _stream(*events: Document) -> HttpResponse:
    sent = "".join(_server_sent(events)).encode()
    return HttpResponse(200, (("content-type", "text/event-stream"),), sent)


def _server_sent(events: tuple[Document, ...]) -> Iterator[str]:
    for event in events:
        kind = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{kind}data: {json.dumps(event)}\n\n"
