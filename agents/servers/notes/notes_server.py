"""Notes behind MCP at http://127.0.0.1:8791/mcp, in one file and with the standard library alone.

MCP's streamable HTTP at its smallest: one POST, one answer; nothing is kept between two of them.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = os.environ.get("NOTES_TOKEN", "notes-token-0000")

NOTES = {
    "notes://heating": "The heating is switched on in October. Ask Ada for the key.",
    "notes://coffee": "The coffee machine is cleaned on Fridays.",
    "notes://payroll": "Salaries are paid on the 25th.",
}

SEARCH = {
    "name": "search_notes",
    "description": "Find notes that hold a word; their addresses can be read.",
    "inputSchema": {
        "type": "object",
        "properties": {"word": {"type": "string", "minLength": 2}},
        "required": ["word"],
        "additionalProperties": False,
    },
    "annotations": {"readOnlyHint": True},
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "notes", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": [SEARCH]}
    if method == "tools/call":
        word = str(params.get("arguments", {}).get("word", "")).lower()
        found = [uri for uri, text in NOTES.items() if word in text.lower()]
        return {"content": [{"type": "text", "text": json.dumps(found)}]}
    if method == "resources/list":
        return {"resources": [{"uri": uri, "name": uri} for uri in NOTES]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": "notes://{name}", "name": "a note"}]}
    if method == "resources/read":
        return {"contents": [{"uri": params["uri"], "text": NOTES[params["uri"]]}]}
    if method == "ping":
        return {}
    raise LookupError(method)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("authorization") != f"Bearer {TOKEN}":
            self.say(401, {"error": "this is not the token"})
            return
        message = json.loads(body)
        if "id" not in message:
            self.say(202, None)
            return
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params") or {})
        except LookupError:
            reply["error"] = {"code": -32601, "message": "there is no such method or note"}
        self.say(200, reply)

    def do_GET(self) -> None:
        self.say(405, {"error": "nothing is sent unasked"})

    def say(self, status: int, value: object) -> None:
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8791
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_port}/mcp", flush=True)
    server.serve_forever()
