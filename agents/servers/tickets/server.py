"""A ticket system behind MCP, in one file and with nothing but the standard library.

It speaks MCP's stdio transport by hand: a JSON-RPC message on each line. A real one would call an
API with its token; this one keeps its tickets in memory, and only shows that it has the token.
"""

import hashlib
import json
import os
import sys

TICKETS = {
    1: {"id": 1, "project": "acme", "title": "The printer is out of paper", "state": "open"},
    2: {"id": 2, "project": "acme", "title": "The door squeaks", "state": "closed"},
    3: {"id": 3, "project": "other", "title": "The roof leaks", "state": "open"},
}

PROJECT = {"type": "string", "description": "Whose tickets."}
TOOLS = [
    {
        "name": "list_tickets",
        "description": "List the tickets of a project.",
        "inputSchema": {
            "type": "object",
            "properties": {"project": PROJECT, "state": {"enum": ["open", "closed"]}},
            "required": ["project"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "create_ticket",
        "description": "Write a new ticket.",
        "inputSchema": {
            "type": "object",
            "properties": {"project": PROJECT, "title": {"type": "string", "maxLength": 200}},
            "required": ["project", "title"],
            "additionalProperties": False,
        },
    },
    {
        "name": "close_ticket",
        "description": "Close a ticket for good.",
        "inputSchema": {
            "type": "object",
            "properties": {"project": PROJECT, "id": {"type": "integer"}},
            "required": ["project", "id"],
            "additionalProperties": False,
        },
        "annotations": {"destructiveHint": True},
    },
    {
        "name": "login_check",
        "description": "Say which token the server has, by its fingerprint.",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": {"readOnlyHint": True},
    },
]


def call(name: str, given: dict) -> object:
    mine = [ticket for ticket in TICKETS.values() if ticket["project"] == given.get("project")]
    if name == "list_tickets":
        return [ticket for ticket in mine if given.get("state") in (None, ticket["state"])]
    if name == "create_ticket":
        ticket = {"id": max(TICKETS) + 1, "state": "open", **given}
        TICKETS[ticket["id"]] = ticket
        return ticket
    if name == "close_ticket":
        found = next(ticket for ticket in mine if ticket["id"] == given["id"])
        found["state"] = "closed"
        return found
    token = os.environ.get("TICKET_TOKEN", "")
    return {"token_sha256": hashlib.sha256(token.encode()).hexdigest()[:12]}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tickets", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        try:
            said, failed = call(params["name"], params.get("arguments") or {}), False
        except StopIteration:
            said, failed = "there is no such ticket in this project", True
        text = said if isinstance(said, str) else json.dumps(said)
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    if method == "ping":
        return {}
    raise LookupError(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params") or {})
    except LookupError:
        reply["error"] = {"code": -32601, "message": "there is no such method"}
    print(json.dumps(reply), flush=True)
