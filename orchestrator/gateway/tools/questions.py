"""What a server wants to know (elicitation) -> a question of the run, and the answer back. Pure."""

from __future__ import annotations

import json
import re

from orchestrator import output
from orchestrator.domain.tool_lock import JsonMap

DECLINE = "decline"

ELICITED_CHARS = 4000
"""Of what a server says with its question; a person has to read it."""

ELICITED_FIELDS = 20
"""What it may want to know at once."""

FIELD_NAME = r"[A-Za-z0-9_.-]{1,64}"
"""Of what a server wants to know."""


def question_of(server: str, message: str, schema: JsonMap) -> str | None:
    """What a server wants to know, as a question of the run; the words are a stranger's. None if
    what it calls a field is no name, which would stand outside the fence, or there are too many.
    """
    if len(message) > ELICITED_CHARS:
        message = f"{message[:ELICITED_CHARS]} …"
    said = output.fence(message, "question", server=server)
    fields = _fields(schema)
    if len(fields) > ELICITED_FIELDS:
        return None
    if not all(re.fullmatch(FIELD_NAME, name) for name in fields):
        return None
    if len(fields) == 1:
        how = "Answer with the value alone"
    else:
        how = f"Answer with a JSON object with {', '.join(fields)}"
    return f"The server {server} asks, in a call of the agent's:\n{said}\n{how}, or say {DECLINE}."


def answer_of(text: str, schema: JsonMap) -> JsonMap | None:
    """The content of an answer that was given in words; None if it is declined, or does not fit."""
    if text.strip().lower() == DECLINE:
        return None
    fields = _fields(schema)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.strip()
    if not isinstance(value, dict):
        if len(fields) != 1:
            return None
        ((name, part),) = fields.items()
        kind = part.get("type") if isinstance(part, dict) else "string"
        if kind == "boolean" and isinstance(value, str):
            value = {"yes": True, "no": False}.get(value.lower(), value)
        value = {name: str(text).strip() if kind == "string" else value}
    quick = not output.may_be_slow(text, schema)  # else the server will have to say
    return None if quick and output.violations(value, schema) else value


def _fields(schema: JsonMap) -> JsonMap:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
