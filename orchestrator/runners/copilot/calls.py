"""The tools of copilot 1.0.102, and its calls in the words of agent.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.runners.contract import ToolNames
from orchestrator.runners.json_fields import bounded_dict_of, dict_of, id_of, name_of, text_of
from orchestrator.runners.lines import is_shown_whole
from orchestrator.runners.rule_names import server_prefix
from orchestrator.runners.signs import PermissionAsked, ToolCalled

BUILT_IN: dict[str, tuple[str, ...]] = {
    "Bash": ("bash", "read_bash", "stop_bash", "list_bash"),
    "Read": ("view",),
    "Edit": ("edit", "apply_patch"),
    "Write": ("create", "apply_patch"),
    "Glob": ("glob",),
    "Grep": ("grep", "rg"),
    "WebFetch": ("web_fetch",),
}
"""agent.md's word -> what the CLI calls it; which of those there are depends on the model.

Not write_bash: what is typed into a program is no command, so no rule could decide about it."""

COPILOT_TOOLS = ToolNames(version="copilot 1.0.102", built_in=frozenset(BUILT_IN))

_COPILOT_WORDS = {name: word for word, names in reversed(BUILT_IN.items()) for name in names}

_FILE_FIELDS = {"path": "file_path", "file_text": "content", "old_str": "old_string"}
_FILE_FIELDS |= {"new_str": "new_string"}
_FILE_WORDS = ("Read", "Edit", "Write")


def called(data: Mapping[str, object]) -> ToolCalled | None:
    """The call of a `tool.execution_start`."""
    call_id, tool = id_of(data, "toolCallId"), name_of(data, "toolName")
    server, own = name_of(data, "mcpConfigServerName"), name_of(data, "mcpToolName")
    if not call_id or not tool:
        return None
    given = bounded_dict_of(data, "arguments")
    if server and own:
        return ToolCalled(id=call_id, tool=f"{server_prefix(server)}__{own}", input=given)
    word = _COPILOT_WORDS.get(tool, tool)
    if word in _FILE_WORDS:
        given = {_FILE_FIELDS.get(key, key): value for key, value in given.items()}
    return ToolCalled(id=call_id, tool=word, input=given)


def asked(data: Mapping[str, object], call: ToolCalled | None) -> PermissionAsked | None:
    """What a `permission.requested` asks about; `call` is the one that it belongs to, if known."""
    request_id, request = id_of(data, "requestId"), dict_of(data, "permissionRequest")
    call_id = id_of(request, "toolCallId") or request_id
    if not request_id:
        return None
    tool, given = _asked_call(request, call)
    whole: object = given
    if request.get("kind") == "mcp":
        whole = request.get("args") or {}
    return PermissionAsked(
        request_id=request_id,
        call_id=call_id,
        tool=tool,
        input=given,
        is_whole=bool(given or request.get("kind") == "mcp") and is_shown_whole(given, whole),
    )


def _asked_call(
    request: Mapping[str, object], call: ToolCalled | None
) -> tuple[str, dict[str, object]]:
    match request.get("kind"):
        case "shell" if call is not None and call.tool != "Bash":
            return call.tool, call.input  # it runs no command of its own
        case "shell":
            # It leaves a `cd` to where the shell is out of what it asks about.
            told = text_of(call.input, "command") if call is not None else ""
            return "Bash", {"command": told or text_of(request, "fullCommandText")}
        case "read":
            return _tool_of(call, "Read", "Glob", "Grep"), {"file_path": _path(request, "path")}
        case "write":
            given: dict[str, object] = {
                "file_path": _path(request, "fileName"),
                "diff": text_of(request, "diff"),
            }
            return _tool_of(call, "Edit", "Write"), given
        case "url":
            return "WebFetch", {"url": text_of(request, "url")}
        case "mcp" if server := name_of(request, "serverName"):
            own = name_of(request, "toolName").removeprefix(f"{server}-")
            return f"{server_prefix(server)}__{own}", bounded_dict_of(request, "args")
        case other:
            return f"copilot {other}"[:64], {}  # no rule can name it


def _tool_of(call: ToolCalled | None, *tools: str) -> str:
    """The one of these that was called; the first, if that is not known."""
    return call.tool if call is not None and call.tool in tools else tools[0]


def _path(request: Mapping[str, object], key: str) -> str:
    return text_of(request, "resolvedPath") or text_of(request, key)
