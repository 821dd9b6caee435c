"""A server of tools at a URL on loopback, with its own authorization server: for tests."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx

from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse

JSON = (("content-type", "application/json"),)
TOOL = {
    "name": "echo",
    "description": "Say it back.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


def answer(value: object, status: int = 200, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, (*JSON, *headers), json.dumps(value).encode())


class RemoteServer:
    """What a server and its authorization server do, and what they have seen."""

    def __init__(self) -> None:
        self.url = ""
        self.wants = ""
        """"": nobody is asked who they are; "oauth", or the value of the header authorization."""
        self.client_secret = "a-client-secret"
        self.expires_in = 3600
        self.tokens: dict[str, bool] = {}
        """Those that were given out, and whether they are still good."""
        self.refresh_tokens: set[str] = set()
        self.grants: list[str] = []
        self.scopes: list[str] = []
        self.codes: dict[str, str] = {}
        self.registered: list[dict[str, Any]] = []
        self.answers_with: HttpResponse | None = None
        """In the place of every answer of the server itself."""
        self.heard: list[str] = []

    async def handle(self, request: HttpRequest) -> HttpResponse:
        if request.path == "/mcp":
            return self._mcp(request)
        if request.path.startswith("/.well-known/oauth-protected-resource"):
            resource = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url]}
            return answer(resource | {"scopes_supported": ["everything"]})
        if request.path == "/.well-known/oauth-authorization-server":
            ends = {name: f"{self.url}/{path}" for name, path in ENDPOINTS.items()}
            more = {
                "code_challenge_methods_supported": ["S256"],
                "response_types_supported": ["code"],
            }
            return answer({"issuer": self.url, **ends, **more})
        if request.path == "/register":
            client = json.loads(request.body) | {"client_id": f"c{len(self.registered)}"}
            self.registered.append(client)
            return answer(client, 201)
        if request.path == "/authorize":
            return self._authorize(request)
        if request.path == "/token":
            return self._token(request)
        return answer({}, 404)

    def _mcp(self, request: HttpRequest) -> HttpResponse:
        self.heard.append(request.header("authorization"))
        if self.answers_with is not None:
            return self.answers_with
        if not self._knows(request.header("authorization")):
            where = f'resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return answer({}, 401, ("www-authenticate", f'Bearer scope="tools:read", {where}'))
        if request.method != "POST":
            return answer({}, 405)
        message = json.loads(request.body)
        if "id" not in message:
            return HttpResponse(202)
        method, params = message["method"], message.get("params") or {}
        result: dict[str, Any]
        if method == "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                      "serverInfo": {"name": "remote", "version": "1"}}  # fmt: skip
        elif method == "tools/list":
            result = {"tools": [TOOL]}
        elif method == "tools/call":
            text = json.dumps({"given": params["arguments"], "as": request.header("authorization")})
            result = {"content": [{"type": "text", "text": text}]}
        else:
            error = {"code": -32601, "message": "no such method"}
            return answer({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return answer({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _knows(self, header: str) -> bool:
        if self.wants == "oauth":
            return self.tokens.get(header.removeprefix("Bearer "), False)
        return not self.wants or header == self.wants

    def _authorize(self, request: HttpRequest) -> HttpResponse:
        asked = {key: values[0] for key, values in parse_qs(request.query).items()}
        self.scopes.append(asked.get("scope", ""))
        code = secrets.token_hex(8)
        self.codes[code] = asked["code_challenge"]
        back = urlencode({"code": code, "state": asked["state"]})
        return HttpResponse(302, (("location", f"{asked['redirect_uri']}?{back}"),))

    def _token(self, request: HttpRequest) -> HttpResponse:
        given = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
        grant = given["grant_type"]
        self.grants.append(grant)
        if grant == "authorization_code":
            digest = hashlib.sha256(given["code_verifier"].encode()).digest()
            proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            good = self.codes.pop(given["code"], "") == proof
        elif grant == "refresh_token":
            good = given["refresh_token"] in self.refresh_tokens
            self.refresh_tokens.discard(given["refresh_token"])  # each is good for once
        else:
            basic = base64.b64encode(f"me:{self.client_secret}".encode()).decode()
            good = request.header("authorization") == f"Basic {basic}"
        if not good:
            return answer({"error": "invalid_grant"}, 400)
        token, refresh = f"at-{secrets.token_hex(12)}", f"rt-{secrets.token_hex(12)}"
        self.tokens = {**dict.fromkeys(self.tokens, False), token: True}
        said = {"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in}
        if grant != "client_credentials":
            self.refresh_tokens.add(refresh)
            said["refresh_token"] = refresh
        return answer(said)


ENDPOINTS = {
    "authorization_endpoint": "authorize",
    "token_endpoint": "token",
    "registration_endpoint": "register",
}


@asynccontextmanager
async def remote_server() -> AsyncIterator[RemoteServer]:
    server = RemoteServer()
    async with serve_on_loopback(server.handle) as server.url:
        yield server


async def browse(url: str) -> str:
    """What a browser does: follow the page to where it leads, which is ours to answer."""
    async with httpx.AsyncClient() as http:
        page = await http.get(url)
        there = page.headers["location"]
        assert urlsplit(there).hostname == "127.0.0.1"
        await http.get(there)
        return str(there)
