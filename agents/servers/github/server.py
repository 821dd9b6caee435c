"""A little of GitHub's API behind MCP, in one file and with the standard library alone.

It has no token: requests go to the gateway on loopback, which adds it where server.yaml says.
"""

import json
import os
import sys
import urllib.error
import urllib.request

API = os.environ.get("GITHUB_API", "http://127.0.0.1:8082/api.github.com")

REPOSITORY = {"owner": {"type": "string"}, "repo": {"type": "string"}}
NUMBER = {"number": {"type": "integer", "minimum": 1}}
STATE = {"state": {"enum": ["open", "closed", "all"]}}


def tool(name: str, description: str, reads: bool = True, **properties: dict) -> dict:
    needed = ["owner", "repo", *(key for key in ("number", "title") if key in properties)]
    return {
        "name": name,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {**REPOSITORY, **properties},
            "required": needed,
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": reads},
    }


TOOLS = [
    tool("get_repository", "What a repository is: its description, its default branch."),
    tool("list_issues", "The newest issues of a repository.", **STATE),
    tool("get_issue", "One issue, with its text.", **NUMBER),
    tool("list_pulls", "The newest pull requests of a repository.", **STATE),
    tool("get_pull", "One pull request, with its text.", **NUMBER),
    tool(
        "create_issue",
        "Open an issue.",
        reads=False,
        title={"type": "string", "maxLength": 256},
        body={"type": "string", "maxLength": 20000},
    ),
]

SHOWN = ("number", "title", "state", "body", "full_name", "description", "default_branch")


def ask(method: str, path: str, body: dict | None = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    headers = {"accept": "application/vnd.github+json", "content-type": "application/json"}
    request = urllib.request.Request(API + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def short(value: object) -> object:
    if isinstance(value, list):
        return [short(item) for item in value]
    if isinstance(value, dict):
        kept = {key: value[key] for key in SHOWN if value.get(key) is not None}
        return {**kept, "url": value.get("html_url", "")}
    return value


def call(name: str, given: dict) -> object:
    base = f"/repos/{given['owner']}/{given['repo']}"
    what = "pulls" if "pull" in name else "issues"
    if name == "get_repository":
        return ask("GET", base)
    if name == "create_issue":
        said = {key: given[key] for key in ("title", "body") if key in given}
        return ask("POST", f"{base}/issues", said)
    if name.startswith("list_"):
        return ask("GET", f"{base}/{what}?per_page=20&state={given.get('state', 'open')}")
    return ask("GET", f"{base}/{what}/{given['number']}")


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-11-25"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "github", "version": "1.0"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        try:
            said, failed = short(call(params["name"], params.get("arguments") or {})), False
        except urllib.error.HTTPError as exc:
            said, failed = f"GitHub answers {exc.code}: {exc.read().decode()[:500]}", True
        except OSError as exc:
            said, failed = f"GitHub cannot be reached: {exc}", True
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
