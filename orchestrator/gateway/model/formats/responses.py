"""OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.gateway.model.formats import openai
from orchestrator.gateway.model.formats.contract import (
    ErrorKind,
    Looked,
    ModelCall,
    Rules,
)
from orchestrator.gateway.model.given import IsOffered
from orchestrator.gateway.model.money.metering import Reading
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.request import (
    Asked,
    kept_parts,
    most_output,
    objects_of,
    plain_name,
    sent_in_place,
    shown_names,
)
from orchestrator.runners.contract import WireFormat

RESPONSES_KEYS = frozenset(
    (
        *("model", "input", "instructions", "max_output_tokens", "stream", "stream_options"),
        *("tools", "tool_choice", "parallel_tool_calls", "max_tool_calls", "include", "store"),
        *("reasoning", "text", "temperature", "top_p", "top_logprobs", "truncation", "user"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("safety_identifier", "service_tier"),
        *openai.REFUSED_KEYS,
    )
)
"""What the API documents; of the rest, what would be kept with the answer in the account is of no
use to an agent, and what only a proxy knows is none of its business."""

USUALLY_LEFT_OUT = ("client_metadata",)
"""What codex tells of itself in each request: not worth a word in each event."""

RESPONSES_TOOLS = frozenset(("function", "custom", "local_shell", "apply_patch", "tool_search"))
"""Types of tools that the client carries out, or that only search what the request holds."""

LOCAL_ITEMS = frozenset(
    (
        *("message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "tool_search_call", "tool_search_output"),
        *("local_shell_call", "local_shell_call_output", "apply_patch_call"),
        *("apply_patch_call_output", "web_search_call"),
        *("compaction", "compaction_summary", "compaction_trigger", "context_compaction"),
    )
)
"""What a conversation may be made of. Not of `item_reference`, which is something that the account
keeps, and not of calls that the API has carried out by itself in a place that it keeps."""

LOCAL_PARTS = frozenset(
    (
        *("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"),
        *("input_image", "input_file", "encrypted_content"),
    )
)

_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


class ResponsesFormat:
    """Format (formats/contract.py)."""

    name: WireFormat = "responses"
    provider: ProviderName = "openai"
    paths = ("/v1/responses",)
    sent_headers = openai.SENT_HEADERS
    passed_headers = openai.PASSED_HEADERS

    def call(self, path: str, query: str) -> ModelCall | None:
        return ModelCall("/responses") if path in self.paths and not query else None

    def look(self, body: dict[str, object], size: int, call: ModelCall, rules: Rules) -> Looked:  # noqa: ARG002 the path says nothing
        refused = openai.refused_reference(body) or _remote_tool(body.get("tools"), rules)
        refused = refused or _remote_item(body.get("input"), rules)
        return Looked(refused, _asked_for(body, size, rules))

    def reading(self) -> Reading:
        return _ResponseReading()

    def error(self, status: int, kind: ErrorKind, message: str) -> object:  # noqa: ARG002 it is not in the body
        return openai.error_body(kind, message)


def _asked_for(body: dict[str, object], size: int, rules: Rules) -> Asked:
    kept, left_out = kept_parts(body, RESPONSES_KEYS)
    left_out = [key for key in left_out if key not in USUALLY_LEFT_OUT]
    if body.get("service_tier") not in openai.USUAL_TIERS:
        del kept["service_tier"]
        left_out.append("service_tier")
    kept["store"] = False  # or the API keeps it
    tools = body.get("tools")
    tools = tools if isinstance(tools, list) else []
    if tools:
        kept["tools"] = list(_offered(tools, rules.is_offered))
    told = body.get("input")
    if isinstance(told, list):
        kept["input"] = [_with_offered(item, rules.is_offered) for item in told]
    model = plain_name(body.get("model"))
    objects = list(objects_of(body))
    return Asked(
        provider="openai",
        model=model,
        plain_model=model == body.get("model", ""),
        left_out=shown_names(left_out),
        sent=sent_in_place(body, kept),
        body_bytes=size,
        max_tokens=most_output(model, "openai", body.get("max_output_tokens")),
        stream=body.get("stream") is True,
        pictures=sum("image_url" in each for each in objects),
        documents=any("file_data" in each for each in objects),
        server_tools=not all(map(_is_local, tools)),
        caches=openai.caches(body, model),
        offers_tools=bool(tools),
    )


def _with_offered(item: object, is_offered: IsOffered) -> object:
    """An item of a conversation; one with tools that a search has found, with those of them."""
    tools = item.get("tools") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(tools, list):
        return item
    return {**item, "tools": list(_offered(tools, is_offered))}


def _offered(tools: list[object], is_offered: IsOffered, within: str = "") -> Iterator[object]:
    """The tools that the model is told of. A namespace has some of its own."""
    for tool in tools:
        name = tool.get("name") if isinstance(tool, dict) else None
        full = f"{within}{name}" if isinstance(name, str) else ""
        inner = tool.get("tools") if isinstance(tool, dict) else None
        if isinstance(tool, dict) and isinstance(inner, list):
            left = list(_offered(inner, is_offered, f"{full}__"))
            if left:
                yield {**tool, "tools": left}
        elif is_offered(full):
            yield tool


def _is_local(tool: object) -> bool:
    """Whether the API leaves a tool, and all that it is made of, to the client."""
    if not isinstance(tool, dict):
        return False
    kind = tool.get("type")
    if kind == "namespace":
        inner = tool.get("tools")
        return isinstance(inner, list) and all(map(_is_local, inner))
    return isinstance(kind, str) and kind in RESPONSES_TOOLS


def _remote_tool(tools: object, rules: Rules) -> str:
    if tools is not None and not isinstance(tools, list):
        return "a list of tools that is none"
    for tool in tools or ():
        kind = tool.get("type") if isinstance(tool, dict) else "?"
        if not _is_local(tool) and not (kind == "web_search" and kind in rules.server_tools):
            return f"the tool {str(kind)[:60]!r}"
    return ""


def _remote_item(told: object, rules: Rules) -> str:
    """What of a conversation is not in it, or was made where the API keeps things."""
    if told is None or isinstance(told, str):
        return ""
    if not isinstance(told, list):
        return "an input that is no list"
    for item in told:
        if not isinstance(item, dict):
            return "an item that is no object"
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in LOCAL_ITEMS:
            return f"an item of the type {str(kind)[:60]!r}"
        if kind == "reasoning" and not (item.get("encrypted_content") or item.get("content")):
            return "reasoning that is not in the request"
        if refused := _remote_tool(item.get("tools"), rules):  # that a search has found
            return refused
        for content in (item.get("content"), item.get("output"), item.get("summary")):
            if refused := _remote_part(content):
                return refused
    return ""


def _remote_part(content: object) -> str:
    for part in content if isinstance(content, list) else (content,):
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if "file_id" in part or "file_url" in part or not openai.is_file(part.get("file_data")):
            return "a file of the account, or by its address,"
        if "image_url" in part and not openai.is_inline(part["image_url"]):
            return "a picture by its address"
        if kind is not None and (not isinstance(kind, str) or kind not in LOCAL_PARTS):
            return f"a part of the type {str(kind)[:60]!r}"
    return ""


class _ResponseReading(Reading):
    def on_event(self, event: dict[str, object], size: int) -> None:
        kind = event.get("type")
        response = event.get("response")
        if kind in _ENDS:
            self._on_response(response)
            self.is_done = True
        elif isinstance(response, dict):  # created, in_progress, queued
            self.model = plain_name(response.get("model"))
        elif isinstance(kind, str) and kind.endswith(".delta"):
            self.on_text(event.get("delta"))
        elif kind == "response.output_item.added":
            self._on_item(event.get("item"))
        elif kind == "response.output_item.done":
            item = event.get("item")
            if isinstance(item, dict) and item.get("type") == "web_search_call":
                self.found_bytes += size
        elif kind == "error":
            nested = event.get("error")
            self.error = openai.error_of(nested if isinstance(nested, dict) else event)

    def on_answer(self, answer: dict[str, object]) -> None:
        if "output" not in answer and isinstance(answer.get("error"), dict):
            self.error = openai.error_of(answer["error"])
            return
        output = answer.get("output")
        for item in output if isinstance(output, list) else ():
            self._on_item(item)
        self._on_response(answer)
        self.is_done = True

    def _on_response(self, response: object) -> None:
        """A response as it is at its end."""
        if not isinstance(response, dict):
            return
        self.model = plain_name(response.get("model")) or self.model
        self.answer_id = plain_name(response.get("id"))
        self.stop = plain_name(response.get("status"))
        self.said = openai.used_of(
            response.get("usage"), response.get("service_tier"), self.searches
        )
        self.said_all = self.said is not None
        if isinstance(response.get("error"), dict):
            self.error = openai.error_of(response["error"])
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason is not None:
            self.ending = "refusal" if reason == "content_filter" else "length"
        elif any("refusal" in each for each in objects_of(response.get("output"))):
            self.ending = "refusal"

    def _on_item(self, item: object) -> None:
        self.searches += isinstance(item, dict) and item.get("type") == "web_search_call"
