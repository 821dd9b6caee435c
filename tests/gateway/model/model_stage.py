"""Around a model access: an API to stand behind it, and a container that asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import OnRequest
from orchestrator.gateway.model.credential import Credential
from orchestrator.gateway.model.scripted import Script
from orchestrator.gateway.model.upstream import HttpUpstream, Upstream
from tests.gateway.near import Answer, Client, connection

KEY = "sk-ant-the-real-key"
CREDENTIAL = Credential(kind="api_key", secret=SecretStr(KEY))
HELLO = Script.model_validate(
    {"steps": [{"text": "hello", "usage": {"input_tokens": 1000, "output_tokens": 200}}] * 3}
)
ASKED = {"model": "claude-sonnet-4-5", "messages": [{"role": "user", "content": "hi"}]}


def body(**more: object) -> bytes:
    return json.dumps({**ASKED, **more}).encode()


def bound_access(
    upstream: Upstream,
    credential: Credential | None = None,
    *,
    budget_usd: float | None = None,
    on_request: OnRequest | None = None,
) -> ModelAccess:
    """An access that a run has."""
    access = ModelAccess(upstream, credential)
    access.bind(budget_usd=budget_usd, on_request=on_request)
    return access


async def post(access: ModelAccess, token: str | None = None, **more: object) -> Answer:
    headers = {"x-api-key": access.token if token is None else token}
    async with connection(access.service) as stream:
        return await Client(stream).ask("POST", "/v1/messages?beta=true", headers, body(**more))


def error_of(answer: Answer) -> str:
    shape = json.loads(answer.body)
    assert shape["type"] == "error"
    assert shape["error"]["message"]
    return str(shape["error"]["type"])


@asynccontextmanager
async def http_upstream(url: str) -> AsyncIterator[HttpUpstream]:
    upstream = HttpUpstream(url)
    try:
        yield upstream
    finally:
        await upstream.aclose()


@asynccontextmanager
async def api(answer: HttpResponse) -> AsyncIterator[str]:
    """An API on loopback that always says the same."""

    async def handler(_: HttpRequest) -> HttpResponse:
        return answer

    async with serve_on_loopback(handler) as url:
        yield url
