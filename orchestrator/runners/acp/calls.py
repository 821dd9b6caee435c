"""Tool calls as ACP tells them -> the same in the words of agent.md. Pure.

The protocol has a title for people and a kind, and no name: gemini has that in the call's id,
opencode in the first title of the call.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeGuard

from orchestrator.domain.container import WORKSPACE
from orchestrator.runners.json_fields import bounded_dict_of, dict_of, dicts_of, text_of
from orchestrator.runners.lines import event_of
from orchestrator.runners.rule_names import server_prefix, spelled

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
    "workdir": "cwd",
}

_SAID_FOLDER = re.compile(r"\[(?:in|current working directory) ")
_FOLDER_ENDS = re.compile(r"\](?=$| \()")
"""How gemini says where a command runs; what for stands behind that."""


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
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:ID_CHARS]
    return server_tool(name, words, servers) or plain or "unknown"


def server_tool(name: str, words: AcpWords, servers: Iterable[str]) -> str | None:
    """What agent.md calls a tool of an MCP server; None if it is of none of these. No name of a
    server may begin with another's and "_" (launching.py refuses such).
    """
    for server in servers:
        prefix = f"{words.server_prefix}{spelled(server)}_"
        if name.startswith(prefix) and len(name) > len(prefix):
            return f"{server_prefix(server)}__{name.removeprefix(prefix)}"[:128]
    return None


def input_of(said: Mapping[str, object], session_folder: str) -> dict[str, object]:
    """The input of a call, as far as it is told. Of a command also where it runs, unless that is
    the workspace; by itself it runs in the folder of the session.
    """
    if raw := dict_of(said, "rawInput"):
        given = bounded_dict_of(said, "rawInput")
        if set(raw) == {"cwd"}:
            return {}  # opencode, before it knows the command
        if "workdir" in given:
            given.pop("cwd", None)
        given = {_ACP_FIELDS.get(key, key): value for key, value in given.items()}
        return _placed(given, session_folder) if said.get("kind") == "execute" else given
    if said.get("kind") == "execute":
        texts = [text_of(dict_of(part, "content"), "text") for part in dicts_of(said, "content")]
        told = {"command": text_of(said, "title"), "cwd": _said_folder("".join(texts[:1]))}
        return _placed(told, session_folder)
    found: dict[str, object] = {}
    if said.get("status") in ("completed", "failed"):
        return found  # what follows is its output
    for content in dicts_of(said, "content"):
        if content.get("type") == "diff":
            changed = {"old_string": "oldText", "new_string": "newText", "file_path": "path"}
            found |= {key: text_of(content, theirs) for key, theirs in changed.items()}
        elif text := text_of(dict_of(content, "content"), "text"):
            parsed = event_of(text)
            found |= {"said": text} if parsed is None else parsed
    for location in dicts_of(said, "locations")[:1]:
        found.setdefault("file_path", text_of(location, "path"))
    if said.get("kind") == "search" and "file_path" not in found:
        found |= {"said": text_of(said, "title"), "file_path": ""}  # where it looks is not told
    return bounded_dict_of({"found": found}, "found")


def _said_folder(text: str) -> str:
    """The folder that a text names; all of it, which is none, if that can be read in two ways."""
    begin = _SAID_FOLDER.match(text)
    ends = [found.start() for found in _FOLDER_ENDS.finditer(text.removesuffix(" [background]"))]
    return text[begin.end() : ends[0]] if begin and len(ends) == 1 else text


def _placed(given: Mapping[str, object], session_folder: str) -> dict[str, object]:
    """A command with the folder that it runs in."""
    told = given.get("cwd", "")
    folder = posixpath.normpath(posixpath.join(session_folder, told)) if _is_path(told) else told
    rest = {key: value for key, value in given.items() if key != "cwd"}
    return rest if folder == WORKSPACE else {**rest, "cwd": folder}


def _is_path(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and "\0" not in value and len(value) <= LONGEST_ID


def output_of(said: Mapping[str, object]) -> str:
    """What a tool returned, as far as it is told."""
    texts = [text_of(dict_of(part, "content"), "text") for part in dicts_of(said, "content")]
    raw = dict_of(said, "rawOutput")
    told = "\n".join(text for text in texts if text) or text_of(raw, "output")
    return told or text_of(raw, "error") or (json.dumps(raw)[:ID_CHARS] if raw else "")
