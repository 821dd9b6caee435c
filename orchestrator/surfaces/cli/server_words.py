"""ToolLock -> lines for the person who reads it: every word that a model will be shown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from orchestrator.domain.words import counted

if TYPE_CHECKING:
    from orchestrator.domain.tool_lock import Pinned, ToolLock

WORDS_CHARS = 96
"""Of one line: what stands behind a hundred blanks would be out of sight."""

EMPTY_LINES = 2
"""Of several in a row; that there are more is said. A thousand would push the rest out of sight."""

PARTS = (
    ("tool", "tools"),
    ("resource", "resources"),
    ("template", "templates"),
    ("prompt", "prompts"),
)


def lock_size(lock: ToolLock) -> str:
    """How many tools, and what they take of each request to a model."""
    tokens = sum(tool.tokens for tool in lock.tools)
    return f"{counted(len(lock.tools), 'tool')}, about {counted(tokens, 'token')}"


def hints(tool: Pinned) -> str:
    """What a server says of a tool, which is nothing that is relied on."""
    said = tool.definition.get("annotations")
    found = said if isinstance(said, dict) else {}
    words = (("readOnlyHint", "reads"), ("destructiveHint", "destroys"), ("openWorldHint", "open"))
    return ",".join(word for hint, word in words if found.get(hint) is True) or "-"


def definition_lines(lock: ToolLock, description: str = "") -> Iterator[str]:
    """All of it. `description` is that of server.yaml, which agents outside are shown."""
    yield f"{lock.server}, MCP {lock.protocol}"
    for heading, text in (("description", description), ("instructions", lock.instructions)):
        if text:
            yield from (f"{heading}:", *_said(text))
    for kind, part in PARTS:
        for item in getattr(lock, part):
            more = f"  ({item.tokens} tokens, hints: {hints(item)})" if kind == "tool" else ""
            yield from ("", f"{kind} {item.uri or item.name}{more}")
            yield from _field_lines(item, shown=item.uri or item.name)


def _field_lines(item: Pinned, *, shown: str) -> Iterator[str]:
    """Each field of a definition; its text without quotes, anything else as JSON."""
    for field, value in item.definition.items():
        if value == shown:
            continue
        if field != "description":
            yield f"  {field}:"
        if isinstance(value, str):
            yield from _said(value)
        else:
            yield from (f"    {piece}" for piece in _pieces(json.dumps(value, ensure_ascii=False)))


def _said(text: str) -> Iterator[str]:
    """What a server says, line by line; nothing of it is left out but empty lines, by number."""
    for empty, lines in groupby(text.splitlines(), key=lambda line: not line.strip()):
        some = list(lines)
        if empty and len(some) > EMPTY_LINES:
            yield f"  | ({len(some)} empty lines)"
            continue
        yield from (f"  | {piece}" for line in some for piece in _pieces(line))


def _pieces(line: str) -> Iterator[str]:
    return (line[at : at + WORDS_CHARS] for at in range(0, max(1, len(line)), WORDS_CHARS))


def diff_lines(old: ToolLock, new: ToolLock) -> Iterator[str]:
    """What of a server differs, word by word; nothing if it is the same."""
    for part in ("server", "protocol", "image", "instructions"):
        before, now = getattr(old, part), getattr(new, part)
        if before != now:
            yield f"{part}:"
            yield from (f"  - {line}" for line in before.splitlines())
            yield from (f"  + {line}" for line in now.splitlines())
    for _, part in PARTS:
        before = {item.uri or item.name: item for item in getattr(old, part)}
        now = {item.uri or item.name: item for item in getattr(new, part)}
        yield from (f"- {part} {name} is gone" for name in before if name not in now)
        yield from (f"+ {part} {name} is new" for name in now if name not in before)
        for name in before:
            if name in now and before[name].digest != now[name].digest:
                yield f"! {part} {name} has changed:"
                yield from _changed_words(before[name], now[name])


def _changed_words(old: Pinned, new: Pinned) -> Iterator[str]:
    before, now = (
        json.dumps(item.definition, indent=1, sort_keys=True, ensure_ascii=False).splitlines()
        for item in (old, new)
    )
    for line in difflib.unified_diff(before, now, lineterm="", n=1):
        if not line.startswith(("---", "+++", "@@")):
            yield f"    {line}"
