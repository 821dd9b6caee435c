"""JSON-RPC over HTTP as MCP's streamable HTTP has it: one POST, one answer. Both of our servers for
agents speak it by hand (decisions/0012, 0050); what comes in is a stranger's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.gateway.http.headers import Headers
from orchestrator.gateway.http.server import HttpRequest, HttpResponse, plain_response
from orchestrator.runners.json_fields import has_more_parts

HANDSHAKE_VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Of the protocol, the newest first, which a client that asks for another one is offered."""

MAX_MESSAGE_BYTES = 256 * 1024
"""One message; the longest question and its default answer fit, however they are escaped."""

MAX_MESSAGE_PARTS = 10_000
"""Texts, commas and brackets of a message, outside of texts."""

EVENT_STREAM: Headers = (("content-type", "text/event-stream"), ("cache-control", "no-store"))
JSON: Headers = (("content-type", "application/json"),)

PARSE_ERROR, INVALID_REQUEST, UNKNOWN_METHOD, INVALID_PARAMS = -32700, -32600, -32601, -32602

RpcObject = dict[str, object]
RpcNumber = int | str


class RpcMessage(NamedTuple):
    """What a client says."""

    method: str
    number: RpcNumber | None
    """None for a notification."""
    params: RpcObject


def read_message(body: bytes, most: int = MAX_MESSAGE_BYTES) -> RpcMessage | HttpResponse:
    """The message of a request's body; or what to answer at once."""
    if len(body) > most:
        return plain_response(413, f"a message has at most {most} bytes")
    try:
        text = body.decode()
        if has_more_parts(text, MAX_MESSAGE_PARTS):
            return plain_response(400, f"a message has at most {MAX_MESSAGE_PARTS} parts")
        value = json.loads(text)
    except (ValueError, RecursionError):
        return rpc_error(None, PARSE_ERROR, "that is no JSON", status=400)
    if isinstance(value, list):
        return rpc_error(None, INVALID_REQUEST, "send one message at a time", status=400)
    if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
        return rpc_error(None, INVALID_REQUEST, "that is no JSON-RPC 2.0", status=400)
    if "method" not in value and ("result" in value or "error" in value):
        return HttpResponse(202)  # an answer, though nothing was asked
    method, number, params = value.get("method"), value.get("id"), value.get("params", {})
    plain = isinstance(number, (int, str)) and not isinstance(number, bool)
    if not isinstance(method, str) or not (number is None or plain):
        return rpc_error(None, INVALID_REQUEST, "that is no JSON-RPC 2.0", status=400)
    if not isinstance(params, dict):
        return rpc_error(number, INVALID_PARAMS, "parameters are an object", status=400)
    return RpcMessage(method, number, params)


def object_at(values: Mapping[str, object], key: str) -> RpcObject:
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def request_key(request: HttpRequest, number: object) -> tuple[str, object]:
    """Which request is meant: two programs inside may both have a request 1."""
    return request.header("mcp-session-id"), number


def text_result(text: str, *, is_error: bool = False) -> RpcObject:
    """The result of a tool that says something."""
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def reply(number: RpcNumber, result: RpcObject) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()


def rpc_result(number: RpcNumber, result: RpcObject, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(200, (*JSON, *headers), reply(number, result))


def error_reply(
    number: RpcNumber | None, code: int, why: str, data: RpcObject | None = None
) -> bytes:
    error: RpcObject = {"code": code, "message": why} | ({} if data is None else {"data": data})
    return json.dumps({"jsonrpc": "2.0", "id": number, "error": error}).encode()


def rpc_error(
    number: RpcNumber | None,
    code: int,
    why: str,
    *,
    status: int = 200,
    data: RpcObject | None = None,
) -> HttpResponse:
    return HttpResponse(status, JSON, error_reply(number, code, why, data))


def event(message: bytes) -> bytes:
    """A message, as one of a stream of events."""
    return b"event: message\ndata: " + message + b"\n\n"


def progress(token: object, done: float, total: float | None = None, text: str = "") -> bytes:
    """A sign that something goes on, as an event; a comment, if the client named no token."""
    if isinstance(token, bool) or not isinstance(token, (int, str)):
        return b": waiting\n\n"
    params: RpcObject = {"progressToken": token, "progress": done}
    params |= ({} if total is None else {"total": total}) | ({"message": text} if text else {})
    return event(notification("notifications/progress", params))


def notification(method: str, params: RpcObject) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode()
