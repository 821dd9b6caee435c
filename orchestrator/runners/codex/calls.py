"""Items of a codex turn that call tools -> calls in the words of agent.md. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from orchestrator.runners.json_fields import bounded_dict_of, dict_of, dicts_of, name_of, text_of
from orchestrator.runners.rule_names import server_prefix
from orchestrator.runners.signs import ToolCalled, ToolReturned

_CODEX_SHELLS = ("bash", "sh", "zsh", "dash")


def called(item: Mapping[str, object], item_id: str) -> ToolCalled | None:
    """The call that an item is; None if it is none."""
    match item.get("type"):
        case "commandExecution":
            return ToolCalled(id=item_id, tool="Bash", input={"command": command_of(item)})
        case "fileChange":
            changes = dicts_of(item, "changes")
            adds = bool(changes) and all(_kind(change) == "add" for change in changes)
            given = bounded_dict_of({"input": {"changes": changes}}, "input")
            paths = paths_of(given)
            first = {"file_path": paths[0]} if paths else {}
            return ToolCalled(id=item_id, tool="Write" if adds else "Edit", input=first | given)
        case "mcpToolCall":
            server, own = name_of(item, "server"), name_of(item, "tool")
            tool = f"{server_prefix(server)}__{own}"
            given = bounded_dict_of(item, "arguments")
            return ToolCalled(id=item_id, tool=tool, input=given) if server and own else None
        case "imageView":
            return ToolCalled(id=item_id, tool="Read", input={"file_path": text_of(item, "path")})
    return None


def returned(item: Mapping[str, object], item_id: str) -> ToolReturned | None:
    """What came of a call; None if the item is none."""
    failed = item.get("status") in ("failed", "declined")
    match item.get("type"):
        case "commandExecution":
            text = text_of(item, "aggregatedOutput")
        case "fileChange" | "imageView":
            text = ""
        case "mcpToolCall":
            parts = dicts_of(dict_of(item, "result"), "content")
            text = "\n".join(text_of(part, "text") for part in parts if part.get("text"))
            text = text or text_of(dict_of(item, "error"), "message")
        case _:
            return None
    if item.get("status") == "declined":
        text = "declined"
    return ToolReturned(id=item_id, text=text, is_error=failed)


def command_of(said: Mapping[str, object]) -> str:
    """The command that was asked for, out of the shell that codex runs it in."""
    whole = text_of(said, "command")
    try:
        words = shlex.split(whole)
    except ValueError:
        return whole
    if len(words) == 3 and words[1] in ("-lc", "-c") and words[0].split("/")[-1] in _CODEX_SHELLS:
        return words[2]
    return whole


def paths_of(given: Mapping[str, object]) -> list[str]:
    """The files that a change is about, of all its parts."""
    found = []
    for change in dicts_of(given, "changes"):
        moved = text_of(dict_of(change, "kind"), "move_path")
        found += [path for path in (text_of(change, "path"), moved) if path]
    return found


def _kind(change: Mapping[str, object]) -> str:
    return text_of(dict_of(change, "kind"), "type")
