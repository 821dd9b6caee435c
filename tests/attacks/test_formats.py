"""Attacks on the formats of other model APIs: what only they have of tools, references and paths.

The container's side is a connection to the gateway; the API behind it keeps what it was sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pydantic import SecretStr

from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import FAILURES_IN_A_ROW, ModelRequestSeen
from orchestrator.gateway.model.credential import Credential, CredentialKind
from orchestrator.gateway.model.request import MAX_BODY_PARTS
from orchestrator.gateway.model.scripted import Script, ScriptedModel
from orchestrator.gateway.model.upstream import UpstreamRequest, UpstreamResponse
from tests.attacks.mark import attack
from tests.gateway.model.formats.dialects import (
    CHAT,
    DIALECTS,
    GEMINI,
    OTHERS,
    RESPONSES,
    Dialect,
)
from tests.gateway.model.formats.test_look import REFUSED
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio

KEY = "sk-the-real-key-of-the-operator"
KEYS: dict[str, CredentialKind] = {
    "anthropic": "api_key",
    "responses": "openai_key",
    "chat": "openai_key",
    "gemini": "gemini_key",
}
SMALL = {"text": "hello", "usage": {"input_tokens": 10, "output_tokens": 5}, "repeat": True}


class Listening:
    """An API that keeps what it is sent."""

    def __init__(self, **step: object) -> None:
        script = Script.model_validate({"steps": [step or SMALL]})
        self._model = ScriptedModel(script).upstream()
        self.requests: list[UpstreamRequest] = []

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.requests.append(request)
        async with self._model.send(request) as answer:
            yield answer


def access_to(api: Listening, dialect: Dialect, model: str = "") -> ModelAccess:
    credential = Credential(kind=KEYS[dialect.name], secret=SecretStr(KEY))
    access = ModelAccess(api, credential, wire_format=dialect.name)
    access.bind(budget_usd=None, on_request=None, model=model)
    return access


@attack(
    "gateway abuse",
    "have OpenAI's or Google's API search, fetch, run code, call MCP servers, or read what the "
    "account keeps: responses, conversations, prompts, files, caches",
    "403 in the API's own form; the API is not asked",
)
@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
async def test_other_apis_do_nothing_elsewhere_for_an_agent(dialect: Dialect) -> None:
    api = Listening()
    access = access_to(api, dialect)
    cases = [more for each, more, _ in REFUSED if each is dialect]
    assert len(cases) > 8
    for more in cases:
        answer = await dialect.post(access, dialect.body(**more))
        assert (answer.status, answer.headers["x-orchestrator-denied"]) == (403, "server_tool")
        assert "refused by the orchestrator" in json.loads(answer.body)["error"]["message"]
    assert api.requests == []


MODELS: dict[str, tuple[object, ...]] = {
    "chat": (
        *("gpt-5.5-pro", "gpt-6-astra", "claude-opus-5-5", "ft:gpt-5.5:mine", "openai/gpt-5.5"),
        *("gpt-5.5\n", "gpt-5.5\u200b", "", None, ["gpt-5.5"], "gpt-audio-mini", "x-mini"),
        "gpt-4o-mini-search-preview",
    ),
    "gemini": (
        *("gemini-4-argon", "gemini-3.1-pro-preview", "claude-haiku-4-5", "gpt-5-mini"),
        *("gemini-2.5-flash-image", "gemini-2.5-flash-preview-tts", "gemini-live-2.5-flash"),
    ),
}
MODELS["responses"] = MODELS["chat"]


@attack(
    "gateway abuse",
    "ask OpenAI's or Google's API for another model than agent.md gives, by name, shape or path",
    "400 that names the one it was given; the API is not asked. Small ones for titles pass",
)
@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
async def test_another_model_of_other_apis_is_refused(dialect: Dialect) -> None:
    api = Listening()
    access = access_to(api, dialect, dialect.model)

    async def ask(model: object) -> tuple[int, str]:
        if dialect is GEMINI:
            path = dialect.path.replace(dialect.model, str(model))
            answer = await dialect.post(access, dialect.body(model=f"models/{dialect.model}"), path)
        else:
            answer = await dialect.post(access, dialect.body(model=model))
        return answer.status, answer.headers.get("x-orchestrator-denied", "")

    for model in MODELS[dialect.name]:
        assert await ask(model) == (400, "model"), model
    assert api.requests == []
    side = "gemini-2.5-flash-lite" if dialect is GEMINI else "gpt-5.4-mini"
    assert [await ask(model) for model in (dialect.model, side)] == [(200, "")] * 2
    if dialect is GEMINI:  # and the body does not say another one than the path
        assert b"models/" not in api.requests[0].body


GEMINI_PATHS = tuple(
    f"/v1beta/models/{rest}"
    for rest in (
        "gemini-2.5-pro:streamGenerateContent",
        "gemini-2.5-pro:streamGenerateContent?alt=json",
        "gemini-2.5-pro:streamGenerateContent?alt=sse&key=AIza",
        "gemini-2.5-pro:streamGenerateContent?key=AIza&alt=sse",
        "gemini-2.5-pro:streamGenerateContent?alt=sse&alt=json",
        "gemini-2.5-pro:streamGenerateContent?alt=sse&$httpMethod=DELETE",
        "gemini-2.5-pro:generateContent?access_token=x",
        "gemini-2.5-pro:batchGenerateContent",
        "gemini-2.5-pro:embedContent",
        "gemini-2.5-pro:predict",
        "gemini-2.5-pro:bidiGenerateContent",
        "gemini-2.5-pro:generateContent/..:predict",
        "../models/gemini-2.5-pro:generateContent",
        "..:generateContent",
        ".:generateContent",
        "gemini%2d2.5-pro:generateContent",
        "gemini-2.5-pro%3AgenerateContent",
        "gemini-2.5-pro%2f..%2f..%2ffiles:generateContent",
        "x/../gemini-2.5-pro:generateContent",
        "gemini-2.5-pro:x:generateContent",
        "gemini-2.5-pro;a=b:generateContent",
        "gemini-2.5-pro:generateContent#x",
        "gemini-2.5-pro:GENERATECONTENT",
        ":generateContent",
        "",
    )
)

PATHS = {
    "responses": (
        *(
            "/v1/responses/resp_1",
            "/v1/responses/",
            "/v1//responses",
            "/responses",
            "/v1/Responses",
        ),
        *("/v1/responses?x=1", "/v1/files", "/v1/conversations", "/v1/batches", "/v1/models"),
        *("/v1/responses%2f..%2ffiles", "/v1/../v1/responses", "/v1/chat/completions"),
        "/v1/messages",
    ),
    "chat": (
        *("/v1/chat/completions/x", "/v1/completions", "/v1/embeddings", "/v1/responses"),
        *("/v1/chat/completions?api-version=1", "/v1/chat/../files", "/v1/fine_tuning/jobs"),
    ),
    "gemini": (
        *GEMINI_PATHS,
        *("/v1beta/files", "/v1beta/cachedContents", "/v1beta/tunedModels/x:generateContent"),
        *(
            "/upload/v1beta/files",
            "/v1beta2/models/gemini-2.5-pro:generateContent",
            "/v1beta/models",
        ),
        *("//v1beta/models/gemini-2.5-pro:generateContent", "/v1/messages", "/v1/responses"),
        "/v1beta/projects/p/models/gemini-2.5-pro:generateContent",
        "/$discovery/rest",
    ),
}


@attack(
    "gateway abuse",
    "reach other paths of OpenAI's and Google's APIs: files, caches, batches, tuned models, keys "
    "and methods in the query, names in the path that lead elsewhere (over 50 ways)",
    "403; one format of one run opens its own few paths, in one spelling; the API is not asked",
)
@pytest.mark.parametrize("dialect", OTHERS, ids=lambda each: each.name)
async def test_other_paths_of_other_apis_are_refused(dialect: Dialect) -> None:
    api = Listening()
    access = access_to(api, dialect)
    for path in PATHS[dialect.name]:
        answer = await dialect.post(access, dialect.body(), path)
        assert (answer.status, answer.headers.get("x-orchestrator-denied")) == (403, "path"), path
    async with connection(access.service) as stream:
        asked = {dialect.header: f"Bearer {access.token}", "x-goog-api-key": access.token}
        answer = await Client(stream).ask("GET", dialect.path, asked)
    assert answer.status == 403
    assert api.requests == []


HEADERS = {
    "openai-organization": "org-other",
    "openai-project": "proj-other",
    "openai-beta": "assistants=v2",
    "x-goog-user-project": "other",
    "x-goog-request-params": "model=other",
    "x-http-method-override": "DELETE",
    "x-goog-api-key": "AIza-mine",
    "x-api-key": "sk-mine",
    "authorization": "Bearer sk-mine",
    "api-key": "azure",
    "cookie": "session=1",
    "content-encoding": "gzip",
    "content-type": "application/json; charset=utf-16",
    "accept-encoding": "gzip",
    "x-forwarded-for": "10.0.0.1",
    "x-forwarded-host": "evil.example",
    "x-codex-beta-features": "everything",
    "x-litellm-api-key": "sk-mine",
    "helicone-target-url": "http://evil.example",
    "transfer-encoding-x": "chunked",
}


@attack(
    "gateway abuse",
    "send headers along that change who pays, what is asked, or how it is read (20 of them)",
    "the API gets what clients tell of themselves, one credential, and the operator's it is",
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_headers_do_not_change_a_request(dialect: Dialect) -> None:
    api = Listening()
    access = access_to(api, dialect)
    more = {key: value for key, value in HEADERS.items() if key != dialect.header}
    answer = await dialect.post(access, dialect.body(), "", **more)
    assert answer.status == 200
    (request,) = api.requests
    sent = dict(request.headers)
    key = {"responses": "authorization", "chat": "authorization"}.get(dialect.name, dialect.header)
    assert len(sent) == len(request.headers)
    assert sent.pop(key).removeprefix("Bearer ") == KEY
    assert sent == {"content-type": "application/json", "accept-encoding": "identity"}
    assert access.token.encode() not in request.body + str(request.headers).encode()


@attack(
    "gateway abuse",
    "send bodies to every format that take long to read, are read in two ways, or are no JSON",
    "403; nothing is sent on, and the gateway goes on",
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_bodies_that_are_none_are_refused_in_every_format(dialect: Dialect) -> None:
    api = Listening()
    access = access_to(api, dialect)
    deep = json.dumps(dialect.plain)[:-1].encode() + b',"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    nested: Any = {"text": "x"}
    spaces: Any = {"type": "function", "name": "x"}
    for _ in range(300):
        nested = {"functionResponse": {"parts": [nested]}}
        spaces = {"type": "namespace", "name": "n", "tools": [spaces]}
    bodies = (
        deep,
        dialect.body()[:-1] + b',"model":"a","model":"b"}',
        dialect.body(x=[1] * (MAX_BODY_PARTS + 1)),
        dialect.body()[:-1] + b',"x":' + b"9" * 5000 + b"}",
        dialect.body().decode().encode("utf-16"),
        *(b"", b"[]", b"null", b'"x"', b"{", b"\xff", b"\x1f\x8b\x08\x00"),
    )
    with anyio.fail_after(120):
        for body in bodies:
            answer = await dialect.post(access, body)
            assert (answer.status, answer.headers["x-orchestrator-denied"]) == (403, "server_tool")
        assert api.requests == []
        tall = dialect.body(contents=[{"parts": [nested]}], tools=[spaces])
        assert (await dialect.post(access, tall)).status in (200, 403)
        assert (await dialect.post(access, dialect.body())).status == 200


@attack(
    "gateway abuse",
    "ask again without end after answers that broke off, as one CLI does 16 times a second",
    "after three, a 400 that ends the turn in every CLI; the API is not asked again",
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_a_repeat_storm_ends(dialect: Dialect) -> None:
    api, seen = Listening(text="half", cut="clean", repeat=True), list[ModelRequestSeen]()
    access = access_to(api, dialect)
    access.bind(budget_usd=None, on_request=seen.append)
    statuses = [(await dialect.post(access, dialect.body())).status for _ in range(100)]
    passed = FAILURES_IN_A_ROW
    assert statuses == [200] * passed + [400] * (100 - passed)
    assert (len(api.requests), len(seen)) == (passed, passed + 1)


@attack(
    "gateway abuse",
    "have a stream not tell its usage, or an answer be kept in the account, by leaving it unsaid",
    "the gateway says it in every request: include_usage, and store: false",
)
async def test_what_a_request_leaves_unsaid_is_said() -> None:
    api = Listening()
    bare: dict[str, Any] = {"stream_options": {"include_usage": False}}
    access = access_to(api, CHAT)
    assert (await CHAT.post(access, CHAT.body(**bare))).status == 200
    assert access.bill.usage.cost_usd > 0 == access.bill.usage.estimated_usd
    body = {key: value for key, value in RESPONSES.plain.items() if key != "store"}
    access = access_to(api, RESPONSES)
    assert (await RESPONSES.post(access, json.dumps(body).encode())).status == 200
    chat, responses = (json.loads(request.body) for request in api.requests)
    assert chat["stream_options"] == {"include_usage": True}
    assert responses["store"] is False


@attack(
    "secret hunting",
    "have OpenAI's or Google's API repeat the operator's key in an error",
    "the key is taken out of what the agent reads, and of what is written down",
)
@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: each.name)
async def test_a_key_in_an_error_is_not_passed_on(dialect: Dialect) -> None:
    api = Listening(error=401, message=f"Incorrect API key provided: {KEY}")
    access = access_to(api, dialect)
    answer = await dialect.post(access, dialect.body())
    assert (answer.status, KEY.encode() in answer.body) == (401, False)
    assert b"[redacted]" in answer.body
    assert KEY not in access.bill.last.said
    assert "[redacted]" in access.bill.last.said
