"""Tool calls as ACP tells them -> the same in the words of agent.md. Pure.

The protocol has a title for people and a kind, and no name: gemini has that in the call's id,
opencode in the first title of the call.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from orchestrator.runners.json_fields import bounded_dict_of, dict_of, dicts_of, text_of
from orchestrator.runners.lines import event_of
from orchestrator.runners.rule_names import server_prefix

ID_CHARS = 64
"""Of the id of a call, as signs have it."""

LONGEST_ID = 1024
"""Of an id with the name of a tool in it; no rule can name a longer one."""

_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

_NAMED_TWICE = re.compile(r"(.+)__\1_\d+_\d+")
"""The id of a call that gemini gave it itself; otherwise the API's stands behind the name."""

_ACP_FIELDS = {
    "filePath": "file_path",
    "filepath": "file_path",
    "oldString": "old_string",
    "newString": "new_string",
}


class AcpWords(NamedTuple):
    """How one CLI names its tools."""

    built_in: Mapping[str, str]
    """Its name of a tool -> agent.md's."""
    server_prefix: str
    """What stands before the name of an MCP server in the names of its tools."""
    in_id: bool
    """The name of the tool is in the id of a call; otherwise it is its first title."""


def call_id(said: Mapping[str, object]) -> str:
    """The id of a call: as it is, or something as good in its place; "" if there is none."""
    given = text_of(said, "toolCallId")
    if not given or (len(given) <= ID_CHARS and _PLAIN_ID.fullmatch(given)):
        return given
    return hashlib.sha256(given.encode()).hexdigest()[:ID_CHARS]


def tool_of(said: Mapping[str, object], words: AcpWords, servers: Iterable[str]) -> str:
    """What agent.md calls the tool of a call; its own name, if no rule can name it."""
    name = text_of(said, "title")
    if words.in_id:
        number = text_of(said, "toolCallId")[:LONGEST_ID]  # to look for a name takes its square
        own = _NAMED_TWICE.fullmatch(number)
        name = own[1] if own else number.rpartition("__")[0]
    if name in words.built_in:
        return words.built_in[name]
    for server in sorted(servers, key=len, reverse=True):
        prefix = words.server_prefix + re.sub(r"[^A-Za-z0-9_-]", "_", server) + "_"
        if name.startswith(prefix) and len(name) > len(prefix):
            return f"{server_prefix(server)}__{name.removeprefix(prefix)}"[:128]
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:ID_CHARS] or "unknown"


def input_of(said: Mapping[str, object]) -> dict[str, object]:
    """The input of a call, as far as it is told."""
    if raw := dict_of(said, "rawInput"):
        given = bounded_dict_of(said, "rawInput")
        if set(raw) == {"cwd"}:
            return {}  # opencode, before it knows the command
        return {_ACP_FIELDS.get(key, key): value for key, value in given.items()}
    if said.get("kind") == "execute":
        return {"command": text_of(said, "title")}
    found: dict[str, object] = {}
    if said.get("status") in ("completed", "failed"):
        return found  # what follows is its output
    for content in dicts_of(said, "content"):
        if content.get("type") == "diff":
            changed = {"old_string": "oldText", "new_string": "newText", "file_path": "path"}
            found |= {key: text_of(content, theirs) for key, theirs in changed.items()}
        elif text := text_of(dict_of(content, "content"), "text"):
            found |= event_of(text) or {"said": text}
    for location in dicts_of(said, "locations")[:1]:
        found.setdefault("file_path", text_of(location, "path"))
    return bounded_dict_of({"found": found}, "found")


def output_of(said: Mapping[str, object]) -> str:
    """What a tool returned, as far as it is told."""
    texts = [text_of(dict_of(part, "content"), "text") for part in dicts_of(said, "content")]
    raw = dict_of(said, "rawOutput")
    told = "\n".join(text for text in texts if text) or text_of(raw, "output")
    return told or text_of(raw, "error") or (json.dumps(raw)[:ID_CHARS] if raw else "")
