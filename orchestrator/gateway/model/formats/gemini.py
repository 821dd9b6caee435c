"""Google's generateContent.

Its model is in the path. And its fields have two spellings each, `fileData` and `file_data`: here
they are all looked at in the first, and a body that has one of them in both is not passed on.
"""

from __future__ import annotations

import re

from orchestrator.gateway.model.formats.contract import (
    ErrorKind,
    Looked,
    ModelCall,
    PassedHeaders,
    Rules,
)
from orchestrator.gateway.model.given import IsOffered
from orchestrator.gateway.model.money.metering import Reading, count
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.money.prices import Used
from orchestrator.gateway.model.request import (
    Asked,
    Unreadable,
    kept_parts,
    most_output,
    objects_of,
    plain_name,
    sent_in_place,
    shown_names,
)
from orchestrator.gateway.model.verdicts import SAID_CHARS, ApiError
from orchestrator.runners.contract import WireFormat

_PATH = re.compile(
    r"/v1(beta|alpha)?/models/(?P<model>[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)"
    r":(?P<verb>generateContent|streamGenerateContent|countTokens)",
    re.ASCII,
)
"""A plain name, without anything that a server could read as another path. Tuned models, files and
caches belong to the account."""

GENERATE_KEYS = frozenset(
    (
        *("contents", "systemInstruction", "tools", "toolConfig", "safetySettings"),
        *("generationConfig", "cachedContent"),
    )
)
"""What the API documents. `cachedContent` is refused, if it holds anything."""

COUNT_KEYS = frozenset(("contents",))

GENERATION_KEYS = frozenset(
    (
        *("temperature", "topP", "topK", "seed", "stopSequences", "maxOutputTokens"),
        *("presencePenalty", "frequencyPenalty", "responseLogprobs", "logprobs"),
        *("responseMimeType", "responseSchema", "responseJsonSchema"),
        *("thinkingConfig", "mediaResolution"),
    )
)
"""Not `candidateCount` and `responseModalities`: several answers, or pictures and speech, cost more
than the tokens of one."""

GEMINI_TOOLS = frozenset(("functionDeclarations",))
"""What a tool may consist of: all else is done by the API itself."""

GEMINI_SEARCH = "googleSearch"

GEMINI_PARTS = frozenset(
    (
        *("text", "inlineData", "functionCall", "functionResponse", "thought", "thoughtSignature"),
        *("videoMetadata", "mediaResolution", "executableCode", "codeExecutionResult"),
    )
)
"""What a part may hold; not `fileData`, which is an address or a file of the account."""

GEMINI_KINDS: dict[ErrorKind, str] = {
    "authentication": "UNAUTHENTICATED",
    "permission": "PERMISSION_DENIED",
    "invalid": "INVALID_ARGUMENT",
    "rate_limit": "RESOURCE_EXHAUSTED",
    "overloaded": "UNAVAILABLE",
    "api": "INTERNAL",
}


class GeminiFormat:
    """Format (formats/contract.py)."""

    name: WireFormat = "gemini"
    provider: ProviderName = "google"
    paths = (
        "/v1beta/models/MODEL:streamGenerateContent?alt=sse",
        "/v1beta/models/MODEL:generateContent",
        "/v1beta/models/MODEL:countTokens",
    )
    sent_headers = PassedHeaders(frozenset(("accept", "user-agent", "x-goog-api-client")))
    passed_headers = PassedHeaders(frozenset(("content-type", "retry-after", "x-request-id")))

    def call(self, path: str, query: str) -> ModelCall | None:
        found = _PATH.fullmatch(path)
        if found is None:
            return None
        streams = found["verb"] == "streamGenerateContent"
        # Any other query could be a key, or another form of the answer.
        if query != ("alt=sse" if streams else ""):
            return None
        target = f"{path}?{query}" if query else path
        return ModelCall(target, found["model"], streams, is_free=found["verb"] == "countTokens")

    def look(self, body: dict[str, object], size: int, call: ModelCall, rules: Rules) -> Looked:
        asked = Asked(provider="google", model=call.model or "")
        spelled = _respelled(body)
        refused = "cachedContent" if spelled.get("cachedContent") else ""
        refused = refused or _remote_tool(spelled.get("tools"), rules)
        refused = refused or _remote_content(spelled.get("contents"))
        refused = refused or _remote_content(spelled.get("systemInstruction"))
        kept, left_out = _narrowed(spelled, call, rules.is_offered)
        config = kept.get("generationConfig")
        most = config.get("maxOutputTokens") if isinstance(config, dict) else None
        tools = spelled.get("tools")
        told = {
            "left_out": shown_names(left_out),
            "sent": sent_in_place(body, kept),
            "body_bytes": size,
            "max_tokens": most_output(asked.model, "google", most),
            "stream": call.streams is True,
            "pictures": sum(_kind_of(each).startswith("image/") for each in objects_of(spelled)),
            "documents": any(_kind_of(each) == PDF for each in objects_of(spelled)),
            "offers_tools": bool(tools),
            "server_tools": any(GEMINI_SEARCH in each for each in objects_of(tools)),
        }
        return Looked(refused, asked.model_copy(update=told))

    def reading(self) -> Reading:
        return _CandidateReading()

    def error(self, status: int, kind: ErrorKind, message: str) -> object:
        return {"error": {"code": status, "message": message, "status": GEMINI_KINDS[kind]}}


# What it asks for


def _respelled(body: dict[str, object]) -> dict[str, object]:
    """A body with the fields of the API in one spelling; Unreadable if one of them is there twice.

    Not so what an agent's tools are made of and were called with: names in there are its own.
    """
    found = _in_one_spelling(body)
    return found if isinstance(found, dict) else {}


def _in_one_spelling(value: object) -> object:
    if isinstance(value, list):
        return [_in_one_spelling(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {_camel(key): each for key, each in value.items()}
    if len(found) < len(value):
        raise Unreadable("a body that can be read in two ways, since a key comes twice in it,")
    return {
        key: each if key in OWN_NAMES else _in_one_spelling(each) for key, each in found.items()
    }


OWN_NAMES = frozenset(
    (
        *("args", "response", "parameters", "parametersJsonSchema"),
        *("responseJsonSchema", "responseSchema"),
    )
)
"""Fields whose contents have names of the agent's own."""


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest) if first else key


def _narrowed(
    spelled: dict[str, object], call: ModelCall, is_offered: IsOffered
) -> tuple[dict[str, object], list[str]]:
    """A body without what does not pass, and the names of that."""
    kept, left_out = kept_parts(spelled, COUNT_KEYS if call.is_free else GENERATE_KEYS)
    config = kept.get("generationConfig")
    if isinstance(config, dict):
        kept["generationConfig"], left_here = kept_parts(
            config, GENERATION_KEYS, "generationConfig."
        )
        left_out += left_here
    tools = kept.get("tools")
    if isinstance(tools, list):
        kept["tools"] = [_offered(tool, is_offered) for tool in tools]
    return kept, left_out


def _offered(tool: object, is_offered: IsOffered) -> object:
    """A tool with those of its functions that the model is told of."""
    functions = tool.get("functionDeclarations") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(functions, list):
        return tool
    kept = [each for each in functions if is_offered(_name_of(each))]
    return {**tool, "functionDeclarations": kept}


def _name_of(function: object) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else ""


def _kind_of(part: dict[str, object]) -> str:
    """What a part holds, if it is bytes: a type such as "image/png"; "" for text and the like."""
    inline = part.get("inlineData")
    kind = inline.get("mimeType") if isinstance(inline, dict) else None
    return kind.lower() if isinstance(kind, str) else ""


# What of it is not in it, or is done elsewhere


def _remote_tool(tools: object, rules: Rules) -> str:
    if tools is not None and not isinstance(tools, list):
        return "a list of tools that is none"
    for tool in tools or ():
        if not isinstance(tool, dict):
            return "a tool that is no object"
        for name in tool:
            searches = name == GEMINI_SEARCH and "web_search" in rules.server_tools
            if name not in GEMINI_TOOLS and not searches:
                return f"the tool {name[:60]!r}"
    return ""


def _remote_content(told: object) -> str:
    for content in told if isinstance(told, list) else [told]:
        parts = content.get("parts") if isinstance(content, dict) else None
        if refused := _remote_part(parts):
            return refused
    return ""


def _remote_part(parts: object) -> str:
    for part in parts if isinstance(parts, list) else [parts]:
        if part is None:
            continue
        if not isinstance(part, dict):
            return "a part that is no object"
        for name in part:
            if name not in GEMINI_PARTS:
                return f"a part with {name[:60]!r}"
        if "inlineData" in part and not _KINDS_TAKEN.fullmatch(_kind_of(part)):
            return f"a part of the type {_kind_of(part)[:60]!r}"
        answer = part.get("functionResponse")
        if isinstance(answer, dict) and (refused := _remote_part(answer.get("parts"))):
            return refused
    return ""


PDF = "application/pdf"

_KINDS_TAKEN = re.compile(r"image/[a-z0-9.+-]+|application/pdf|text/[a-z0-9.+-]+", re.ASCII)
"""Of bytes in a request. Sound and films are billed by other prices, and are not passed on."""


# What it has used


class _CandidateReading(Reading):
    def on_event(self, event: dict[str, object], size: int) -> None:  # noqa: ARG002 it holds nothing that was found
        self.on_answer(event)

    def on_answer(self, answer: dict[str, object]) -> None:
        if isinstance(answer.get("error"), dict):
            self.error = _error_of(answer["error"])
            return
        self.model = plain_name(answer.get("modelVersion")) or self.model
        self.answer_id = plain_name(answer.get("responseId")) or self.answer_id
        candidates = answer.get("candidates")
        for candidate in candidates if isinstance(candidates, list) else ():
            if isinstance(candidate, dict):
                self._on_candidate(candidate)
        feedback = answer.get("promptFeedback")
        if isinstance(feedback, dict) and feedback.get("blockReason"):
            self.is_done, self.ending = True, "refusal"
        usage = answer.get("usageMetadata")
        if isinstance(usage, dict) and usage:
            self.said = _used_of(usage, self.searches)
        self.said_all = self.is_done and self.said is not None

    def _on_candidate(self, candidate: dict[str, object]) -> None:
        for each in objects_of(candidate.get("content")):
            for value in each.values():
                self.on_text(value)
        grounding = candidate.get("groundingMetadata")
        queries = grounding.get("webSearchQueries") if isinstance(grounding, dict) else None
        self.searches = max(self.searches, len(queries) if isinstance(queries, list) else 0)
        reason = candidate.get("finishReason")
        if isinstance(reason, str):
            self.is_done, self.stop = True, plain_name(reason)
            if reason == "MAX_TOKENS":
                self.ending = "length"
            elif reason in GEMINI_REFUSALS:
                self.ending = "refusal"


GEMINI_REFUSALS = frozenset(("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"))
"""Why an answer ended that the API did not let through."""


def _used_of(usage: dict[str, object], searches: int) -> Used:
    """Tokens of its cache are part of those of the prompt; those of thoughts, and of what its own
    tools have found, are beside the others.
    """
    prompt = count(usage, "promptTokenCount")
    read = min(count(usage, "cachedContentTokenCount"), prompt)
    return Used(
        input_tokens=prompt - read + count(usage, "toolUsePromptTokenCount"),
        output_tokens=count(usage, "candidatesTokenCount") + count(usage, "thoughtsTokenCount"),
        cache_read_tokens=read,
        web_searches=searches,
    )


def _error_of(error: object) -> ApiError:
    """What is special about it is told in its details: a reason, or which quota it was."""
    if not isinstance(error, dict):
        return ApiError()
    details = list(objects_of(error.get("details")))
    reasons = [plain_name(each.get("reason")) for each in details]
    quotas = [plain_name(each.get("quotaId")) for each in details]
    message = " ".join((str(error.get("message"))[:SAID_CHARS], *filter(None, quotas)))
    kind = plain_name(error.get("status")) or "error"
    return ApiError(kind, next(filter(None, reasons), ""), message[: 2 * SAID_CHARS])
