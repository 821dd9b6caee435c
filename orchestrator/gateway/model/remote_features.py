"""A request to the model -> what it would have the API do elsewhere. Pure.

The API can search the web, fetch pages, pictures and documents, call MCP servers and run code by
itself. For an agent without a network each of these would be a way out: the address of a picture
that the API fetches carries whatever an agent writes into it.
"""

from __future__ import annotations

import re

REMOTE_KEYS = ("mcp_servers", "container")
"""Parts of a request that have the API reach out, or run something, by itself."""

_LOCAL_TOOL = re.compile(
    r"custom|(bash|text_editor|memory|computer)_\d{8}|tool_search_tool_(regex|bm25)(_\d{8})?",
    re.ASCII,
)
"""Types of tools that the client carries out, or that only search what the request holds. By their
whole names: "bash_" may be how the name of another tool begins that the API carries out."""

_DATED = re.compile(r"(?P<name>[a-z_]+?)(_\d{8})?", re.ASCII)

LOCAL_SOURCES = ("base64", "text", "content")
"""Where a picture or a document may come from: the request itself. Not from a URL, and not from
the account's files, which belong to others as well."""


def remote_features(asked: dict[str, object], allowed: frozenset[str]) -> str:
    """What a request's body asks the API to do elsewhere for it; "" for nothing.

    `allowed` are types of tools, such as "web_search", that the API may use.
    """
    for key in REMOTE_KEYS:
        if asked.get(key):
            return key
    return _remote_tool(asked.get("tools"), allowed) or _remote_content(asked)


def is_local_tool(kind: object) -> bool:
    """Whether the API leaves a tool of that type to the client."""
    return kind is None or (isinstance(kind, str) and _LOCAL_TOOL.fullmatch(kind) is not None)


def _remote_tool(tools: object, allowed: frozenset[str]) -> str:
    for tool in tools if isinstance(tools, list) else []:
        kind = tool.get("type") if isinstance(tool, dict) else "?"
        if is_local_tool(kind):
            continue
        dated = _DATED.fullmatch(str(kind))
        if dated is None or dated["name"] not in allowed:
            return f"the tool {str(kind)[:60]!r}"
    return ""


def _remote_content(asked: dict[str, object]) -> str:
    """Contents come in lists of blocks, and blocks may have contents."""
    messages = asked.get("messages")
    found = (
        [each for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    )
    waiting = [asked.get("system"), *(message.get("content") for message in found)]
    while waiting:
        content = waiting.pop()
        blocks = content if isinstance(content, list) else [content]
        for block in blocks:
            if not isinstance(block, dict):
                continue
            source = block.get("source")
            if "file_id" in block:
                return "a file of the account"
            if "image_url" in block:
                return "a picture by its address"
            if isinstance(source, dict):
                kind = source.get("type")
                if kind not in LOCAL_SOURCES:
                    return f"a picture or document by {str(kind)[:60]!r}"
                waiting.append(source.get("content"))
            waiting.append(block.get("content"))
    return ""
