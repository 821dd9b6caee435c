"""What a server answers -> what an agent is shown of it: bounded, and in a fence. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import NamedTuple

from orchestrator import output
from orchestrator.gateway.rpc import RpcObject
from orchestrator.runners.json_fields import dicts_of

MAX_BLOCKS = 100
"""Parts of one answer."""

PICTURE_BYTES = 4 * 1024 * 1024
"""All pictures of one answer, as base64; the model API takes no larger ones."""

PICTURE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

PROGRESS_CHARS = 500
"""Of what a server says of how far it is."""

SPILL_BYTES = 8 * 1024 * 1024
"""What of a long answer is put into a file."""


class ShownAnswer(NamedTuple):
    """An answer, ready to be sent to an agent."""

    result: RpcObject
    whole: str
    """What a file is to hold, if that is more than the agent is shown; else ""."""
    size: int
    """Of its text, in bytes."""


def shown_result(
    answer: Mapping[str, object],
    *,
    server: str,
    name: str,
    limit: int,
    file: str = "",
    fenced: bool = True,
) -> ShownAnswer:
    """The answer of a tool as an agent may see it; `file` is where the whole of it will be. For
    programs it is not `fenced`.

    Structured content is for programs that trust a schema. The agent gets it as text, if the
    server gave it no other.
    """
    content = dicts_of(answer, "content")
    parts = [_part(block) for block in content[:MAX_BLOCKS]]
    if not any(isinstance(part, str) for part in parts) and "structuredContent" in answer:
        parts.append(json.dumps(answer["structuredContent"], ensure_ascii=False))
    if len(content) > MAX_BLOCKS:
        parts.append(f"(and {len(content) - MAX_BLOCKS} parts more)")
    whole = "\n\n".join(part for part in parts if isinstance(part, str))
    size = len(whole.encode(errors="replace"))
    left, pictures = limit, PICTURE_BYTES
    shown: list[RpcObject] = []
    for part in parts:
        if not isinstance(part, str):
            pictures -= len(str(part["data"]))
            fits = pictures >= 0
            shown.append(part if fits else _text("(a picture that is too large to be shown)"))
            continue
        if left > 0:
            head = part.encode(errors="replace")[:left].decode(errors="ignore")
            left -= len(part.encode(errors="replace"))
            if fenced:
                head = output.fence(head, "tool-result", server=server, tool=name)
            shown.append(_text(head))
    kept = ""
    if size > limit:
        rest = "the rest cannot be shown"
        if file:
            # What is read from there is the same stranger's words.
            head = whole.encode(errors="replace")[:SPILL_BYTES].decode(errors="ignore")
            kept = output.fence(head, "tool-result", server=server, tool=name)
            part = "all of it is" if size <= SPILL_BYTES else f"its first {SPILL_BYTES} are"
            rest = f"{part} in the file {file}, between the first and the last line"
        shown.append(_text(f"(cut after {limit} of {size} bytes; {rest})"))
    return ShownAnswer({"content": shown, "isError": answer.get("isError") is True}, kept, size)


def with_file(shown: ShownAnswer, file: str, problem: str) -> RpcObject:
    """The same result, where the file could not be written."""
    content = shown.result["content"]
    assert isinstance(content, list)  # noqa: S101 shown_result made it
    told = _text(f"(cut; {file} could not be written: {problem})")
    return {**shown.result, "content": [*content[:-1], told]}


def _text(text: str) -> RpcObject:
    return {"type": "text", "text": text}


def _part(block: Mapping[str, object]) -> str | RpcObject:
    """One part of an answer: a picture, or text."""
    match block.get("type"):
        case "text":
            return _whole(str(block.get("text", "")))
        case "image":
            kind, data = block.get("mimeType"), block.get("data")
            if kind in PICTURE_TYPES and isinstance(data, str) and _is_base64(data):
                return {"type": "image", "mimeType": kind, "data": data}
            return "(a picture of a kind that cannot be shown)"
        case "resource":
            inner = block.get("resource")
            text = inner.get("text") if isinstance(inner, dict) else None
            uri = inner.get("uri") if isinstance(inner, dict) else ""
            return (
                _whole(f"{uri}\n{text}")
                if isinstance(text, str)
                else f"(a file, {_whole(str(uri))})"
            )
        case "resource_link":
            return _whole(f"{block.get('name', '')}: {block.get('uri', '')}")
        case kind:
            return f"(something of the kind {_whole(str(kind))[:40]} that cannot be shown)"


def _whole(text: str) -> str:
    """Text that UTF-8 can carry: in JSON, "\\ud800" is half a character."""
    return text.encode(errors="replace").decode()


def _is_base64(text: str) -> bool:
    try:
        base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return False
    return True


def one_line(text: str, chars: int) -> str:
    """Words of a stranger's for a place that holds one line. Secrets are taken out before: what is
    cut in two is not known any more.
    """
    return "".join(char if char.isprintable() else " " for char in text)[:chars]
