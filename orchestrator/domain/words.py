"""Small words that every part says alike."""

from __future__ import annotations

# Why runs are cancelled, as their results say it.

CANCELLED = "the caller cancelled the run"

STOPPED = "the orchestrator was stopped"

CLIENT_LEFT = "the client went away"

CONNECTION_CLOSED = "the connection was closed on which the caller waited for the run"
"""Where that is how a client takes a call back: it cannot be told from one that broke."""


def counted(number: int, noun: str) -> str:
    """1 file, 2 files."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ended_as(status: str, reason: str) -> str:
    """How a run stands, with its reason if that says more: failed (budget), cancelled."""
    return status if reason in ("", "ok", status) else f"{status} ({reason})"


def requirement(kind: str, said: str) -> str:
    """What a value must be: `kind` and `said` are those of a pydantic error, whose own sentences
    speak of strings, inputs and parsing.
    """
    bound = said.rpartition(" ")[2]
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is not known here"
        case "value_error" | "assertion_error":
            return said.partition(", ")[2]
        case "literal_error" | "enum":
            return f"must be {said.removeprefix('Input should be ')}"
        case "string_too_short":
            return "must not be empty"
        case "string_too_long":
            return "is too long"
        case "string_pattern_mismatch":
            return "is not written as it should be"
        case "greater_than":
            return f"must be more than {bound}"
        case "greater_than_equal":
            return f"must be at least {bound}"
        case "less_than" | "less_than_equal":
            return f"must be at most {bound}"
    for beginning, must in _KINDS.items():
        if kind.startswith(beginning):
            return f"must be {must}"
    return "is not what is wanted here"


_KINDS = {
    "string": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite": "a number",
    "path": "a path",
    **dict.fromkeys(("tuple", "list", "set"), "a list"),
    **dict.fromkeys(("dict", "model", "mapping", "json"), "an object: names with values"),
}
