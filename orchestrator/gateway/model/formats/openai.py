"""What OpenAI's two formats share: tiers, usage, errors, headers."""

from __future__ import annotations

from typing import Literal

from orchestrator.gateway.model.formats.contract import ErrorKind, PassedHeaders
from orchestrator.gateway.model.money.metering import count
from orchestrator.gateway.model.money.prices import Used, price_of
from orchestrator.gateway.model.request import plain_name
from orchestrator.gateway.model.verdicts import SAID_CHARS, ApiError

SENT_HEADERS = PassedHeaders(frozenset(("accept", "user-agent")), ("x-stainless-",))
"""Not `openai-organization` and `openai-project`, which say who pays, and not what codex tells of
itself, by which the API may do more than the request says."""

PASSED_HEADERS = PassedHeaders(
    frozenset(("content-type", "retry-after", "retry-after-ms", "x-request-id", "x-should-retry")),
    ("x-ratelimit-",),
)

USUAL_TIERS = (None, "auto", "default", "flex")
"""Of service; any other costs more, and is left out."""

REFUSED_KEYS = (
    *("previous_response_id", "conversation", "prompt", "background"),
    "web_search_options",
)
"""What refers to something that the account keeps, or has the API do something by itself."""

OPENAI_KINDS: dict[ErrorKind, tuple[str, str | None]] = {
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "permission": ("invalid_request_error", "permission_denied"),
    "invalid": ("invalid_request_error", None),
    "rate_limit": ("rate_limit_error", "rate_limit_exceeded"),
    "overloaded": ("server_error", "server_is_overloaded"),
    "api": ("server_error", None),
}


def error_body(kind: ErrorKind, message: str) -> object:
    """An error in the form of both APIs."""
    shown, code = OPENAI_KINDS[kind]
    return {"error": {"message": message, "type": shown, "param": None, "code": code}}


def error_of(told: object) -> ApiError:
    """What either API says of an error, in the body of an answer or in an event."""
    if not isinstance(told, dict):
        return ApiError()
    code, kind = plain_name(told.get("code")), plain_name(told.get("type"))
    message = str(told.get("message"))[:SAID_CHARS]
    return ApiError(code or kind or "error", kind, message)


def used_of(usage: object, tier: object = None, searches: int = 0) -> Used | None:
    """What it says was used: tokens of the cache are part of those of the prompt, and those of
    reasoning part of those of the answer.
    """
    if not isinstance(usage, dict) or not usage:
        return None
    chat = "prompt_tokens" in usage
    whole = count(usage, "prompt_tokens" if chat else "input_tokens")
    details = usage.get("prompt_tokens_details" if chat else "input_tokens_details")
    read = min(count(details, "cached_tokens"), whole)
    written = min(count(details, "cache_write_tokens"), whole - read)
    lifetimes = details.get("cache_write_tokens_details") if isinstance(details, dict) else None
    return Used(
        input_tokens=whole - read - written,
        output_tokens=count(usage, "completion_tokens" if chat else "output_tokens"),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cache_write_hour_tokens=min(count(lifetimes, "ttl_12h_tokens"), written),
        web_searches=searches,
        tier=tier if isinstance(tier, str) else "",
    )


def caches(body: dict[str, object], model: str) -> Literal["", "minutes", "hour"]:
    """What all of a prompt may be written to: newer models do it by themselves, and bill it."""
    price = price_of(model, "openai")
    if price.cache_write <= price.input:
        return ""
    longer = body.get("prompt_cache_retention") or body.get("prompt_cache_options")
    return "hour" if longer else "minutes"


def refused_reference(body: dict[str, object]) -> str:
    """What of a request refers to the account; "" for nothing."""
    for key in REFUSED_KEYS:
        if body.get(key) not in (None, False, ""):  # an empty object asks for it, too
            return key
    if body.get("store") not in (None, False):
        return "store, which keeps the answer in the account,"
    return ""


def is_file(data: object) -> bool:
    """Whether what should be a file's contents is that; some providers take an address there."""
    return data is None or is_inline(data) or (isinstance(data, str) and "://" not in data)


def is_inline(address: object) -> bool:
    """Whether an address is the thing itself, so that nothing has to be fetched from anywhere."""
    return isinstance(address, str) and address.startswith("data:")
