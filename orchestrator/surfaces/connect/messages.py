"""Messages of JSON-RPC, as far as a relay has to understand them. Pure.

Of the two eras of MCP, the newer says with each request which version it speaks; the older begins
with a handshake, and the server then knows a session.
"""

from __future__ import annotations

import base64
import re
from typing import Any

Message = dict[str, Any]

VERSION_META = "io.modelcontextprotocol/protocolVersion"

KEY_META = "subagent-orchestrator/key"
"""In `_meta` of a call: however often one comes with the same key, it starts its runs once."""

NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Methods whose name, or address, is also in a header."""

INTERNAL_ERROR = -32603
CONNECTION_LOST = -32000

STARTING_TOOLS = frozenset(
    ("run_subagent", "run_subagents", "delegate_task", "dynamic_subagent_task")
)
"""Tools that start runs: under a key they can be asked for again."""

REPEATED_TOOLS = frozenset(
    (
        *("list_agents", "wait_for_tasks", "get_all_tasks", "get_task_details", "get_logs"),
        *("check_subagent_status", "check_status", "get_subagent_logs", "check_message_status"),
        "cancel_task",
    )
)
"""Tools that can be asked for again as they are."""

DIRECTORY_ARGUMENTS = ("workspace", "working_directory", "cwd")
"""Arguments of tools that name a directory."""


def is_request(message: Message) -> bool:
    return "method" in message and "id" in message


def is_answer(message: Message) -> bool:
    return "method" not in message and ("result" in message or "error" in message)


def params_of(message: Message) -> dict[str, Any]:
    params = message.get("params")
    return params if isinstance(params, dict) else {}


def version_of(message: Message) -> str:
    """The version that a request of the newer era speaks; "" of the older one."""
    meta = params_of(message).get("_meta")
    version = meta.get(VERSION_META) if isinstance(meta, dict) else None
    return version if isinstance(version, str) else ""


def headers_for(message: Message) -> dict[str, str]:
    """What a request of the newer era says in headers too, for what lies between."""
    version = version_of(message)
    if not version:
        return {}
    headers = {"mcp-protocol-version": version, "mcp-method": header_value(message["method"])}
    named = params_of(message).get(NAMED_BY.get(message["method"], ""))
    if isinstance(named, str):
        headers["mcp-name"] = header_value(named)
    return headers


def header_value(text: str) -> str:
    """A text as a header can hold it, by the protocol's rule."""
    plain = re.fullmatch(r"[\x20-\x7E]*", text) and text == text.strip()
    if plain and not re.fullmatch(r"=\?base64\?.*\?=", text):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def tool_of(message: Message) -> str:
    """The tool that a message calls; "" if it calls none."""
    name = params_of(message).get("name") if message.get("method") == "tools/call" else ""
    return name if isinstance(name, str) else ""


def with_key(message: Message, key: str) -> Message:
    """A call that starts runs, under a key of its own; any other as it is."""
    if tool_of(message) not in STARTING_TOOLS:
        return message
    params = params_of(message)
    meta = params.get("_meta")
    known = meta if isinstance(meta, dict) else {}
    return {**message, "params": {**params, "_meta": {KEY_META: key, **known}}}


def may_repeat(message: Message) -> bool:
    """Whether a request can be sent again that the server may have heard before."""
    tool = tool_of(message)
    return not tool or tool in REPEATED_TOOLS or tool in STARTING_TOOLS


def cancelled_id(message: Message) -> object:
    """The request that a notification takes back; None if it takes back none."""
    if message.get("method") != "notifications/cancelled":
        return None
    return params_of(message).get("requestId")


def directories_in(arguments: dict[str, Any]) -> set[str]:
    """The directories that the arguments of a tool name."""
    found = {arguments[name] for name in DIRECTORY_ARGUMENTS if _is_path(arguments.get(name))}
    for task in _tasks(arguments):
        found |= {task[name] for name in DIRECTORY_ARGUMENTS if _is_path(task.get(name))}
    return found


def with_directories(arguments: dict[str, Any], instead: dict[str, str]) -> dict[str, Any]:
    """The arguments with other names for these directories."""
    replaced = {
        name: instead[value]
        for name, value in arguments.items()
        if name in DIRECTORY_ARGUMENTS and _is_path(value)
    }
    changed = {**arguments, **replaced}
    if _tasks(arguments):
        changed["tasks"] = [
            with_directories(task, instead) if isinstance(task, dict) else task
            for task in arguments["tasks"]
        ]
    return changed


def _tasks(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    tasks = arguments.get("tasks")
    return [task for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []


def _is_path(value: object) -> bool:
    """Whatever else it is, the server says what is wrong with it."""
    return isinstance(value, str) and value.startswith("/")


def answered(message: Message, result: dict[str, Any]) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def failed(message: Message, text: str, code: int = INTERNAL_ERROR) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text}}


def tool_answer(
    text: str, document: dict[str, object], *, is_error: bool, modern: bool
) -> dict[str, Any]:
    """The result of a tool, as servers send it."""
    content = [{"type": "text", "text": text}]
    result: dict[str, Any] = {"content": content, "structuredContent": document}
    if modern:
        result["resultType"] = "complete"
    return {**result, "isError": True} if is_error else {**result, "isError": False}
