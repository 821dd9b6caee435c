"""Who may ask the model, and what for."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from orchestrator.domain.result import Usage
from orchestrator.gateway.model import access as model_access
from orchestrator.gateway.model.access import (
    LOOK_BYTES,
    LOOKING_SHARE,
    ModelAccess,
    look_through,
    rest_seconds,
)
from orchestrator.gateway.model.formats.contract import Looked
from orchestrator.gateway.model.scripted import ScriptedModel
from tests.gateway.model.model_stage import CREDENTIAL, HELLO, KEY, body, error_of, post
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio


async def test_a_bearer_token_is_as_good_as_a_key() -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    headers = {"authorization": f"Bearer {access.token}"}
    async with connection(access.service) as stream:
        answer = await Client(stream).ask("POST", "/v1/messages", headers, body())
    assert answer.status == 200


@pytest.mark.parametrize("token", ["", "run-wrong", KEY])
async def test_a_wrong_token_opens_nothing(token: str) -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream(), CREDENTIAL)
    answer = await post(access, token)
    assert (answer.status, error_of(answer)) == (401, "authentication_error")
    assert access.bill.usage == Usage()


async def test_a_token_is_revoked_with_its_run() -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    assert (await post(access)).status == 200
    access.revoke()
    assert (await post(access)).status == 401


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/messages/"),
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/messages/../files"),
        ("POST", "/v1/messages/%2e%2e/files"),
        ("POST", "//v1/messages"),
        ("POST", "/v1/files"),
        ("GET", "/v1/models"),
        ("POST", "/v1/messages?x=%0d%0a"),
        ("POST", "/v1/messages?a#b"),
        ("POST", "http://elsewhere/v1/messages"),
        ("CONNECT", "elsewhere:443"),
        ("OPTIONS", "*"),
    ],
)
async def test_other_paths_are_refused_by_name(method: str, target: str) -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    async with connection(access.service) as stream:
        answer = await Client(stream).ask(method, target, {"x-api-key": access.token})
    assert (answer.status, error_of(answer)) == (403, "permission_error")
    assert answer.headers["x-orchestrator-denied"] == "path"
    assert b"refused by the orchestrator" in answer.body
    assert access.bill.usage == Usage()


@pytest.mark.parametrize(
    "more",
    [
        {"mcp_servers": [{"type": "url", "url": "http://example.invalid", "name": "x"}]},
        {"container": "c1"},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"name": "a"}, {"type": "web_fetch_20250910", "name": "web_fetch"}]},
        {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
        {"tools": ["?"]},
    ],
)
async def test_the_api_is_not_asked_to_reach_out_for_an_agent_without_network(
    more: dict[str, object],
) -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    answer = await post(access, None, **more)
    assert (answer.status, error_of(answer)) == (403, "permission_error")
    assert access.bill.usage.requests == 0


async def test_tools_that_the_client_carries_out_are_passed_on() -> None:
    tools = [{"name": "Bash", "input_schema": {}}, {"type": "custom", "name": "x"}]
    search = [{"type": "web_search_20250305", "name": "web_search"}]
    access = ModelAccess(ScriptedModel(HELLO).upstream(), server_tools=frozenset({"web_search"}))
    assert (await post(access, tools=tools)).status == 200
    assert (await post(access, tools=search)).status == 200


async def test_the_cli_may_look_whether_anybody_is_there() -> None:
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    async with connection(access.service) as stream:
        assert (await Client(stream).ask("HEAD", "/")).status == 200


async def test_a_large_request_is_looked_through_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def look(request: bytes, *rules: Any) -> Looked:
        threads.append(threading.get_ident())
        return look_through(request, *rules)

    monkeypatch.setattr(model_access, "look_through", look)
    access = ModelAccess(ScriptedModel(HELLO).upstream())
    assert (await post(access)).status == 200
    assert (await post(access, system="x" * LOOK_BYTES)).status == 200
    assert (await post(access, system="x" * LOOK_BYTES, mcp_servers=[1])).status == 403

    small, *others = threads
    assert small == threading.get_ident()
    assert len(others) == 2
    assert threading.get_ident() not in others


def test_large_requests_are_looked_at_for_no_more_than_their_share_of_the_time() -> None:
    assert 2.0 / (2.0 + rest_seconds(2.0)) == pytest.approx(LOOKING_SHARE)


async def test_a_request_whose_run_ends_while_it_is_looked_through_goes_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ScriptedModel(HELLO)
    access = ModelAccess(model.upstream())

    def look(request: bytes, *rules: Any) -> Looked:
        access.bind(budget_usd=None, on_request=None)
        return look_through(request, *rules)

    monkeypatch.setattr(model_access, "look_through", look)
    answer = await post(access, system="x" * LOOK_BYTES)
    assert (answer.status, error_of(answer)) == (401, "authentication_error")
    assert access.bill.usage == Usage()
