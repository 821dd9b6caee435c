"""Why a request was not answered, in words that no API owns: what the engine decides by. Pure."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

ModelVerdict = Literal[
    "",  # it was answered
    "quota",  # the account has nothing left; asking again does not help today
    "rate_limit",  # too many at once
    "overloaded",
    "auth",  # no credential, or one that is not accepted
    "context",  # the conversation is longer than the model can read
    "no_model",  # there is no such model, or not for this credential
    "cut",  # the answer broke off
    "unreachable",
    "length",  # answered, but cut at the length limit
    "refusal",  # answered, by declining or by a filter
    "error",  # anything else
]

SAID_CHARS = 300
"""Of what an API says of an error."""


class ApiError(NamedTuple):
    """An error as an API tells it."""

    kind: str = ""
    """Its word for it, such as "overloaded_error"."""
    code: str = ""
    """A second word, if it has one, such as "insufficient_quota"."""
    message: str = ""


_QUOTA_CODES = frozenset(
    (
        *("insufficient_quota", "usage_limit_reached", "usage_not_included", "billing_error"),
        *("billing_hard_limit_reached", "quota_exceeded", "credits_exhausted"),
    )
)
_OVERLOAD_CODES = frozenset(
    ("overloaded_error", "server_overloaded", "server_is_overloaded", "slow_down", "UNAVAILABLE")
)
_AUTH_CODES = frozenset(
    (
        *("authentication_error", "permission_error", "invalid_api_key", "invalid_issuer"),
        *("UNAUTHENTICATED", "PERMISSION_DENIED", "API_KEY_INVALID"),
    )
)
_RATE_CODES = frozenset(("rate_limit_error", "rate_limit_exceeded", "RESOURCE_EXHAUSTED"))
_CONTEXT_CODES = frozenset(
    ("context_length_exceeded", "request_too_large", "string_above_max_length")
)
_MODEL_CODES = frozenset(("model_not_found", "not_found_error", "NOT_FOUND"))

_QUOTA = re.compile(
    r"credit balance is too low|usage limit|exceeded your current quota, please check your plan"
    r"|PerDay|daily quota|quota.{0,40}(per|a) day|spend(ing)? limit",
    re.IGNORECASE,
)
_NO_CREDIT = "credit balance is too low"
"""All that is read of a 400: other words in one may be the request's own, told back."""

_CONTEXT = re.compile(
    r"prompt is too long|maximum context length|context window"
    r"|input token count.{0,40}exceeds|input is too long",
    re.IGNORECASE,
)
_AUTH = re.compile(r"api key not valid|api_key_invalid|api key expired", re.IGNORECASE)


def verdict_of(status: int, error: ApiError) -> ModelVerdict:
    """What an error means, by its status (200 for one in the middle of an answer) and its words.

    What it says is read only where APIs have no better word: Anthropic for want of money, and
    Google for a key that is none and for the kind of quota.
    """
    words = {error.kind, error.code}
    limited = status == 429 or not words.isdisjoint(_RATE_CODES)
    checks: tuple[tuple[bool, ModelVerdict], ...] = (
        (not words.isdisjoint(_QUOTA_CODES) or status == 402, "quota"),
        (limited and bool(_QUOTA.search(error.message)), "quota"),
        (status == 400 and _NO_CREDIT in error.message.lower(), "quota"),
        (status in (401, 403) or not words.isdisjoint(_AUTH_CODES), "auth"),
        (status == 400 and bool(_AUTH.search(error.message)), "auth"),
        (limited, "rate_limit"),
        (status in (503, 529) or not words.isdisjoint(_OVERLOAD_CODES), "overloaded"),
        (status == 413 or not words.isdisjoint(_CONTEXT_CODES), "context"),
        (status == 400 and bool(_CONTEXT.search(error.message)), "context"),
        (status == 404 or not words.isdisjoint(_MODEL_CODES), "no_model"),
    )
    return next((verdict for holds, verdict in checks if holds), "error")
