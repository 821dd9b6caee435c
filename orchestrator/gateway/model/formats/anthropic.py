"""Anthropic's Messages.

An API behind ANTHROPIC_BASE_URL may be a proxy that knows more than the real one: a key, an address
or a list of callbacks, in the request or in its metadata, that it uses in place of the operator's.
And the real one can search the web, fetch pages, pictures and documents, call MCP servers and run
code by itself. For an agent without a network each of these would be a way out: the address of a
picture that the API fetches carries whatever an agent writes into it.
"""

from __future__ import annotations

import re
from typing import Literal

from orchestrator.gateway.model.formats.contract import (
    ErrorKind,
    Looked,
    ModelCall,
    PassedHeaders,
    Rules,
)
from orchestrator.gateway.model.given import IsOffered, every_tool
from orchestrator.gateway.model.money.metering import Reading, count
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.money.prices import Used
from orchestrator.gateway.model.request import (
    Asked,
    kept_parts,
    most_output,
    objects_of,
    plain_name,
    sent_in_place,
    shown_names,
)
from orchestrator.gateway.model.verdicts import SAID_CHARS, ApiError, ModelVerdict
from orchestrator.runners.contract import WireFormat

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

MESSAGES_KEYS = frozenset(
    (
        *("model", "messages", "system", "max_tokens", "stream", "metadata"),
        *("tools", "tool_choice", "stop_sequences", "temperature", "top_k", "top_p"),
        *("thinking", "context_management", "output_config", "output_format", "cache_control"),
        *("service_tier", "speed", "inference_geo", "safeguards"),
        # These are refused, if they hold anything, and not only left out.
        *("mcp_servers", "container"),
    )
)
"""What the API documents and claude 2.1.325 sends. Any other part is left out, so that a newer CLI
goes on to work as it does with an older API."""

METADATA_KEYS = frozenset(("user_id",))
"""The API knows no other; proxies do."""

REMOTE_KEYS = ("mcp_servers", "container")
"""Parts of a request that have the API reach out, or run something, by itself."""

_LOCAL_TOOL = re.compile(
    r"custom|(bash|text_editor|memory|computer)_\d{8}|tool_search_tool_(regex|bm25)(_\d{8})?",
    re.ASCII,
)
"""Types of tools that the client carries out, or that only search what the request holds. By their
whole names: "bash_" may be how the name of another tool begins that the API carries out."""

_DATED = re.compile(r"(?P<name>[a-z_]+?)(_\d{8})?", re.ASCII)

LOCAL_SOURCES = ("base64", "text", "content")
"""Where a picture or a document may come from: the request itself. Not from a URL, and not from
the account's files, which belong to others as well."""

ANTHROPIC_KINDS: dict[ErrorKind, str] = {
    "authentication": "authentication_error",
    "permission": "permission_error",
    "invalid": "invalid_request_error",
    "rate_limit": "rate_limit_error",
    "overloaded": "overloaded_error",
    "api": "api_error",
}

_ENDINGS: dict[object, ModelVerdict] = {"max_tokens": "length", "refusal": "refusal"}


class AnthropicFormat:
    """Format (formats/contract.py)."""

    name: WireFormat = "anthropic"
    provider: ProviderName = "anthropic"
    paths = (MESSAGES, COUNT_TOKENS)
    """All that an agent needs. Files, batches and the like belong to the account, not to a run."""
    sent_headers = PassedHeaders(
        frozenset(("accept", "user-agent", "x-app", "x-client-request-id")),
        ("anthropic-", "x-stainless-", "x-claude-code-"),
    )
    passed_headers = PassedHeaders(
        frozenset(
            ("content-type", "retry-after", "retry-after-ms", "request-id", "x-should-retry")
        ),
        ("anthropic-ratelimit-",),
    )

    def call(self, path: str, query: str) -> ModelCall | None:
        if path not in self.paths or not re.fullmatch(r"[A-Za-z0-9_.=&-]*", query):
            return None
        target = f"{path}?{query}" if query else path
        return ModelCall(target, is_free=path == COUNT_TOKENS)

    def look(self, body: dict[str, object], size: int, call: ModelCall, rules: Rules) -> Looked:  # noqa: ARG002 the path says nothing
        refused = remote_features(body, rules.server_tools)
        return Looked(refused, asked_for(body, size, rules.is_offered))

    def reading(self) -> Reading:
        return _MessageReading()

    def error(self, status: int, kind: ErrorKind, message: str) -> object:  # noqa: ARG002 it is not in the body
        return {"type": "error", "error": {"type": ANTHROPIC_KINDS[kind], "message": message}}


# What it asks for


def asked_for(body: dict[str, object], size: int, is_offered: IsOffered = every_tool) -> Asked:
    """What a body of that size asks for."""
    tools = body.get("tools")
    objects = list(objects_of(body))
    kept, left_out = narrowed(body, is_offered)
    model = plain_name(body.get("model"))
    return Asked(
        model=model,
        plain_model=model == body.get("model", ""),
        left_out=shown_names(left_out),
        sent=sent_in_place(body, kept),
        body_bytes=size,
        max_tokens=most_output(model, "anthropic", body.get("max_tokens")),
        stream=body.get("stream") is True,
        pictures=sum(each.get("type") == "image" for each in objects),
        documents=any(map(_is_document, objects)),
        server_tools=any(map(_is_server_tool, tools if isinstance(tools, list) else ())),
        caches=_longest_cache(objects),
        offers_tools=bool(tools),
        fast=body.get("speed") == "fast",
        us_only=body.get("inference_geo") == "us",
    )


def narrowed(
    body: dict[str, object], is_offered: IsOffered = every_tool
) -> tuple[dict[str, object], list[str]]:
    """A body without what does not pass, and the names of that. Of tools that the agent may not
    call the model is not told either; that is as it should be, and not worth a word.
    """
    kept, left_out = kept_parts(body, MESSAGES_KEYS)
    tools = body.get("tools")
    if isinstance(tools, list):
        kept["tools"] = [tool for tool in tools if is_offered(_name_of(tool))]
    metadata = body.get("metadata")
    if isinstance(metadata, dict):
        kept["metadata"], left_here = kept_parts(metadata, METADATA_KEYS, "metadata.")
        left_out += left_here
    return kept, left_out


def _name_of(tool: object) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


def _is_document(block: dict[str, object]) -> bool:
    """A document that is not plain text, or whatever else, other than a picture, comes in bytes."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if block.get("type") == "document":
        return kind not in ("text", "content")
    return kind == "base64" and block.get("type") != "image"


def _is_server_tool(tool: object) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return not is_local_tool(kind)


def _longest_cache(objects: list[dict[str, object]]) -> Literal["", "minutes", "hour"]:
    wanted = [each["cache_control"] for each in objects if each.get("cache_control")]
    if not wanted:
        return ""
    short = all(isinstance(each, dict) and each.get("ttl") in (None, "5m") for each in wanted)
    return "minutes" if short else "hour"


# What it would have the API do elsewhere


def remote_features(asked: dict[str, object], allowed: frozenset[str]) -> str:
    """What a request's body asks the API to do elsewhere for it; "" for nothing.

    `allowed` are types of tools, such as "web_search", that the API may use.
    """
    for key in REMOTE_KEYS:
        if asked.get(key):
            return key
    return _remote_tool(asked.get("tools"), allowed) or _remote_content(asked)


def is_local_tool(kind: object) -> bool:
    """Whether the API leaves a tool of that type to the client."""
    return kind is None or (isinstance(kind, str) and _LOCAL_TOOL.fullmatch(kind) is not None)


def _remote_tool(tools: object, allowed: frozenset[str]) -> str:
    for tool in tools if isinstance(tools, list) else []:
        kind = tool.get("type") if isinstance(tool, dict) else "?"
        if is_local_tool(kind):
            continue
        dated = _DATED.fullmatch(str(kind))
        if dated is None or dated["name"] not in allowed:
            return f"the tool {str(kind)[:60]!r}"
    return ""


def _remote_content(asked: dict[str, object]) -> str:
    """Contents come in lists of blocks, and blocks may have contents."""
    messages = asked.get("messages")
    found = (
        [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    )
    waiting = [asked.get("system"), *(message.get("content") for message in found)]
    while waiting:
        content = waiting.pop()
        blocks = content if isinstance(content, list) else [content]
        for block in blocks:
            if not isinstance(block, dict):
                continue
            source = block.get("source")
            if "file_id" in block:
                return "a file of the account"
            if "image_url" in block:
                return "a picture by its address"
            if isinstance(source, dict):
                kind = source.get("type")
                if kind not in LOCAL_SOURCES:
                    return f"a picture or document by {str(kind)[:60]!r}"
                waiting.append(source.get("content"))
            waiting.append(block.get("content"))
    return ""


# What it has used


class _MessageReading(Reading):
    def __init__(self) -> None:
        super().__init__()
        self._usage: dict[str, object] = {}

    def on_event(self, event: dict[str, object], size: int) -> None:
        kind = event.get("type")
        if kind == "message_start":
            message = event.get("message")
            if isinstance(message, dict):
                self.model = plain_name(message.get("model"))
                self.answer_id = plain_name(message.get("id"))
                self._add(message.get("usage"))
        elif kind == "message_delta":
            delta = event.get("delta")
            self._end(delta.get("stop_reason") if isinstance(delta, dict) else None)
            if isinstance(event.get("usage"), dict):
                self._add(event["usage"])
                self.said_all = self.is_done = True
        elif kind == "content_block_start":
            self.said_all = self.is_done = False  # what was said before is not all
            self._on_block(event.get("content_block"), size)
        elif kind == "content_block_delta":
            delta = event.get("delta")
            for key, value in delta.items() if isinstance(delta, dict) else ():
                if key != "type":
                    self.on_text(value)
        elif kind == "error":
            self._on_error(event)

    def on_answer(self, answer: dict[str, object]) -> None:
        if answer.get("type") == "error":
            self._on_error(answer)
            return
        self.model = plain_name(answer.get("model"))
        self.answer_id = plain_name(answer.get("id"))
        self._end(answer.get("stop_reason"))
        if isinstance(answer.get("usage"), dict):
            self._add(answer["usage"])
            self.said_all = self.is_done = True

    def _end(self, stop_reason: object) -> None:
        self.stop = plain_name(stop_reason)
        self.ending = _ENDINGS.get(stop_reason, "") if isinstance(stop_reason, str) else ""

    def _on_block(self, block: object, size: int) -> None:
        """A block that may be the API's own doing: a search, or what one has found."""
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(block, dict) and kind == "server_tool_use":
            self.searches += block.get("name") == "web_search"
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            self.found_bytes += size

    def _on_error(self, event: dict[str, object]) -> None:
        error = event.get("error")
        if isinstance(error, dict):
            said = str(error.get("message"))[:SAID_CHARS]
            self.error = ApiError(plain_name(error.get("type")), message=said)

    def _add(self, usage: object) -> None:
        """Later counts replace earlier ones: they are totals."""
        if not isinstance(usage, dict) or not usage:
            return
        self._usage.update({k: v for k, v in usage.items() if v is not None})
        tools = self._usage.get("server_tool_use")
        self.said = Used(
            input_tokens=self._total("input_tokens"),
            output_tokens=self._total("output_tokens"),
            cache_read_tokens=self._total("cache_read_input_tokens"),
            cache_write_tokens=self._total("cache_creation_input_tokens"),
            cache_write_hour_tokens=self._total("ephemeral_1h_input_tokens", "cache_creation"),
            web_searches=count(tools, "web_search_requests"),
            fast=self._usage.get("speed") == "fast",
            us_only=self._usage.get("inference_geo") == "us",
        )

    def _total(self, key: str, within: str = "") -> int:
        """A count of the whole request. What the API compacts by itself is only in `iterations`,
        which has all steps: the larger of both sums counts.
        """
        steps = self._usage.get("iterations")
        counts: list[object] = [self._usage, *(steps if isinstance(steps, list) else [])]
        if within:
            counts = [each.get(within) if isinstance(each, dict) else None for each in counts]
        alone, *each_step = [count(each, key) for each in counts]
        return max(alone, sum(each_step))
