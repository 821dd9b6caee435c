"""OpenAI's Chat Completions, which other providers offer as well."""

from __future__ import annotations

from orchestrator.gateway.model.formats import openai
from orchestrator.gateway.model.formats.contract import ErrorKind, Looked, ModelCall, Rules
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

CHAT_KEYS = frozenset(
    (
        *("model", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("tools", "tool_choice", "parallel_tool_calls", "response_format", "stop", "seed"),
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("logprobs", "top_logprobs", "reasoning_effort", "verbosity", "user", "store"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
        *("safety_identifier", "service_tier"),
        # Of compatible providers: whether the model thinks.
        *("reasoning", "thinking", "enable_thinking"),
        *openai.REFUSED_KEYS,
    )
)
"""Not `n`, `prediction`, `modalities` and `audio`: an agent has no use for several answers, or for
one that is spoken, and they cost more than the tokens of one."""

CHAT_TOOLS = frozenset(("function", "custom"))
CHAT_PARTS = frozenset(("text", "refusal", "image_url", "file", "thinking"))
"""Not `input_audio`, which is billed by other prices."""


class ChatFormat:
    """Format (formats/contract.py)."""

    name: WireFormat = "chat"
    provider: ProviderName = "openai"
    paths = ("/v1/chat/completions",)
    sent_headers = openai.SENT_HEADERS
    passed_headers = openai.PASSED_HEADERS

    def call(self, path: str, query: str) -> ModelCall | None:
        return ModelCall("/chat/completions") if path in self.paths and not query else None

    def look(self, body: dict[str, object], size: int, call: ModelCall, rules: Rules) -> Looked:  # noqa: ARG002 the path says nothing
        refused = openai.refused_reference(body) or _remote_tool(body.get("tools"))
        return Looked(refused or _remote_message(body.get("messages")), _asked(body, size, rules))

    def reading(self) -> Reading:
        return _CompletionReading()

    def error(self, status: int, kind: ErrorKind, message: str) -> object:  # noqa: ARG002 it is not in the body
        return openai.error_body(kind, message)


def _asked(body: dict[str, object], size: int, rules: Rules) -> Asked:
    kept, left_out = kept_parts(body, CHAT_KEYS)
    if body.get("service_tier") not in openai.USUAL_TIERS:
        del kept["service_tier"]
        left_out.append("service_tier")
    streams = body.get("stream") is True
    if streams:  # otherwise the API does not tell what it used
        options = body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        kept["stream_options"] = {**options, "include_usage": True}
    tools = body.get("tools")
    if isinstance(tools, list):
        kept["tools"] = [tool for tool in tools if rules.is_offered(_name_of(tool))]
    model = plain_name(body.get("model"))
    objects = list(objects_of(body))
    most = (body.get("max_completion_tokens"), body.get("max_tokens"))
    return Asked(
        provider="openai",
        model=model,
        plain_model=model == body.get("model", ""),
        left_out=shown_names(left_out),
        sent=sent_in_place(body, kept),
        body_bytes=size,
        max_tokens=most_output(model, "openai", *most),
        stream=streams,
        pictures=sum("image_url" in each for each in objects),
        documents=any("file_data" in each for each in objects),
        caches=openai.caches(body, model),
        offers_tools=bool(tools),
    )


def _name_of(tool: object) -> str:
    """A tool's, which stands in an object with the name of its type."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    told = tool.get(kind) if isinstance(tool, dict) and isinstance(kind, str) else None
    name = told.get("name") if isinstance(told, dict) else None
    return name if isinstance(name, str) else ""


def _remote_tool(tools: object) -> str:
    if tools is not None and not isinstance(tools, list):
        return "a list of tools that is none"
    for tool in tools or ():
        kind = tool.get("type") if isinstance(tool, dict) else "?"
        if not isinstance(kind, str) or kind not in CHAT_TOOLS:
            return f"the tool {str(kind)[:60]!r}"
    return ""


def _remote_message(messages: object) -> str:
    """What of a conversation is not in it."""
    if messages is not None and not isinstance(messages, list):
        return "messages that are no list"
    for message in messages or ():
        if not isinstance(message, dict):
            return "a message that is no object"
        if message.get("audio"):
            return "an answer that the account keeps"
        content = message.get("content")
        for part in content if isinstance(content, list) else (content,):
            if isinstance(part, dict) and (refused := _remote_part(part)):
                return refused
    return ""


def _remote_part(part: dict[str, object]) -> str:
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in CHAT_PARTS:
        return f"a part of the type {str(kind)[:60]!r}"
    picture = part.get("image_url")
    if picture is not None:
        address = picture.get("url") if isinstance(picture, dict) else picture
        if not openai.is_inline(address):
            return "a picture by its address"
    file = part.get("file")
    if file is not None and not (
        isinstance(file, dict)
        and file.keys() <= INLINE_FILE
        and openai.is_file(file.get("file_data"))
    ):
        return "a file of the account, or by its address,"
    return ""


INLINE_FILE = frozenset(("file_data", "filename"))
"""Of a file that is in the request itself."""


class _CompletionReading(Reading):
    """A stream ends with a chunk that has no choices and all of the usage. Compatible providers
    may send it along with every chunk, or never.
    """

    def on_event(self, event: dict[str, object], size: int) -> None:  # noqa: ARG002 it holds nothing that was found
        if isinstance(event.get("error"), dict):
            self.error = openai.error_of(event["error"])
        self._on_completion(event, "delta")

    def on_answer(self, answer: dict[str, object]) -> None:
        if isinstance(answer.get("error"), dict):
            self.error = openai.error_of(answer["error"])
            return
        self._on_completion(answer, "message")

    def _on_completion(self, told: dict[str, object], key: str) -> None:
        self.model = plain_name(told.get("model")) or self.model
        self.answer_id = plain_name(told.get("id")) or self.answer_id
        choices = told.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._on_choice(choice, choice.get(key))
        used = openai.used_of(told.get("usage"), told.get("service_tier"))
        if used is not None:
            self.said = used
        self.said_all = self.is_done and self.said is not None

    def _on_choice(self, choice: dict[str, object], said: object) -> None:
        for each in objects_of(said):
            for value in each.values():
                self.on_text(value)
            if each.get("refusal"):
                self.ending = "refusal"
        reason = choice.get("finish_reason")
        if isinstance(reason, str):
            self.is_done, self.stop = True, plain_name(reason)
            self.ending = "length" if reason == "length" else self.ending
            self.ending = "refusal" if reason == "content_filter" else self.ending
