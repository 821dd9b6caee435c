"""A scripted model in OpenAI's Responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from orchestrator.gateway.model.voices.spoken import (
    AnswerPart,
    Means,
    Overheard,
    SaidCall,
    SaidText,
    Spoken,
    Uttered,
    event,
    new_id,
    objects,
    pieces,
    text_of,
    user_texts,
)

RESULTS = ("function_call_output", "custom_tool_call_output")

OPENAI_ERRORS: dict[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
    529: ("server_error", "server_is_overloaded"),
}

OPENAI_MEANT: dict[Means, tuple[str, str]] = {
    "quota": ("insufficient_quota", "insufficient_quota"),
    "context": ("invalid_request_error", "context_length_exceeded"),
}


def openai_error(status: int, message: str, means: Means) -> object:
    """As both of OpenAI's formats have it."""
    kind, code = (
        OPENAI_MEANT[means]
        if means
        else OPENAI_ERRORS.get(status, ("server_error", "server_error"))
    )
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class ResponsesVoice:
    """Voice (voices/spoken.py)."""

    def heard(self, asked: Mapping[str, object]) -> list[Overheard]:
        told = asked.get("input")
        if isinstance(told, str):
            return user_texts([told])
        found: list[Overheard] = []
        spoke = False  # all that a model says before something else comes is one answer
        for item in objects(told):
            kind, role = item.get("type", "message"), item.get("role")
            if kind == "message" and role == "user":
                found += user_texts([text_of(item.get("content"))])
            elif kind in RESULTS:
                found.append(Overheard("tool", text_of(item.get("output"))))
            elif role == "assistant" or kind in ("function_call", "custom_tool_call"):
                if not spoke:
                    found.append(Overheard("model"))
                spoke = True
                continue
            else:
                continue
            spoke = False
        return found

    def whole(self, spoken: Spoken, asked: Mapping[str, object]) -> dict[str, object]:
        output = [_item(block, asked) for block in spoken.blocks]
        return _response(spoken, output)

    def streamed(self, spoken: Spoken, asked: Mapping[str, object]) -> list[Uttered]:
        items = [_item(block, asked) for block in spoken.blocks]
        response = _response(spoken, items)
        begun = {**response, "status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        told: list[tuple[AnswerPart, dict[str, object]]] = [
            ("start", {"type": "response.created", "response": begun})
        ]
        for index, item in enumerate(items):
            told += _told(item, index)
        told.append(("end", {"type": f"response.{response['status']}", "response": response}))
        return [
            event(part, {**value, "sequence_number": number}, named=True)
            for number, (part, value) in enumerate(told)
        ]

    def error(self, status: int, message: str, means: Means) -> object:
        return openai_error(status, message, means)


def _response(spoken: Spoken, output: list[dict[str, object]]) -> dict[str, object]:
    reasons = {"max_tokens": "max_output_tokens", "refusal": "content_filter"}
    cut = reasons.get(spoken.stop)
    usage = spoken.usage
    whole = usage.input + usage.cache_read + usage.cache_write
    details = {"cached_tokens": usage.cache_read}
    if usage.cache_write:
        details["cache_write_tokens"] = usage.cache_write
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": 0,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": spoken.model,
        "output": output,
        "usage": {
            "input_tokens": whole,
            "input_tokens_details": details,
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": whole + usage.output,
        },
    }


def _item(block: SaidText | SaidCall, asked: Mapping[str, object]) -> dict[str, object]:
    if isinstance(block, SaidText):
        text = {"type": "output_text", "text": block.text, "annotations": []}
        return {
            "id": new_id("msg"),
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [text],
        }
    offered = {tool.get("name"): tool for tool in objects(asked.get("tools"))}
    call: dict[str, object] = {"call_id": new_id("call"), "status": "completed"}
    if offered.get(block.tool, {}).get("type") == "custom":
        text_input = block.input.get("input", "")
        named = {"id": new_id("ctc"), "type": "custom_tool_call", "name": block.tool}
        return {**named, **call, "input": str(text_input)}
    named = {"id": new_id("fc"), "type": "function_call", "name": block.tool}
    if block.tool not in offered and block.tool.startswith("mcp__"):
        # codex tells the model of these when it searches for them, by server.
        server, _, tool = block.tool.removeprefix("mcp__").partition("__")
        named |= {"name": tool, "namespace": f"mcp__{server}"}
    return {**named, **call, "arguments": json.dumps(block.input)}


def _told(item: dict[str, object], index: int) -> Iterator[tuple[AnswerPart, dict[str, object]]]:
    """The events of one item."""
    at = {"item_id": item["id"], "output_index": index}
    started = {**item, "status": "in_progress"}
    if item["type"] == "message":
        (part,) = objects(item["content"])
        key, kind, text = "content", "response.output_text", str(part["text"])
        here = {**at, "content_index": 0}
        started["content"] = []
        yield "start", _item_event("added", started, index)
        opened = {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
        yield "start", opened
        ends: tuple[dict[str, object], ...] = (
            {"type": f"{kind}.done", **here, "text": text},
            {"type": "response.content_part.done", **here, "part": part},
        )
    else:
        custom = item["type"] == "custom_tool_call"
        key = "input" if custom else "arguments"
        kind = f"response.{'custom_tool_call_input' if custom else 'function_call_arguments'}"
        text, here = str(item[key]), at
        started[key] = ""
        yield "start", _item_event("added", started, index)
        ends = ({"type": f"{kind}.done", **at, key: text},)
    for piece in pieces(text):
        yield "piece", {"type": f"{kind}.delta", **here, "delta": piece}
    for end in (*ends, _item_event("done", item, index)):
        yield "stop", end


def _item_event(what: str, item: dict[str, object], index: int) -> dict[str, object]:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}
