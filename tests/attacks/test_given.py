"""Attacks on what an agent was given of its model: other parts, another model, more requests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from orchestrator.containers.runtime import Runtime
from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.given import may_use, most_requests
from orchestrator.gateway.model.scripted import ScriptedModel
from orchestrator.gateway.model.upstream import Upstream, UpstreamRequest, UpstreamResponse
from tests.attacks.mark import attack
from tests.engine.harness import Harness, bash
from tests.gateway.model.model_stage import HELLO, post

pytestmark = pytest.mark.anyio

PROXY_KEYS: dict[str, object] = {
    "api_base": "http://evil.example",
    "api_key": "sk-mine",
    "base_url": "http://evil.example",
    "custom_llm_provider": "openai",
    "extra_headers": {"x": "y"},
    "extra_body": {"a": 1},
    "fallbacks": [{"model": "claude-opus-5", "api_base": "http://evil.example"}],
    "callbacks": ["webhook"],
    "success_callback": ["http://evil.example"],
    "mock_response": "all is well",
    "litellm_metadata": {"tags": ["x"]},
    "litellm_credential_name": "other",
    "user_config": {"model_list": []},
    "router_settings": {"x": 1},
    "guardrails": [],
    "vector_store_ids": ["vs_1"],
    "aws_role_name": "admin",
    "no-log": True,
    "cache": {"namespace": "others"},
    "thread": {"id": "t1"},
    "half \ud800": "a character",
}
METADATA = {"user_id": "u", "user_api_key": "sk-other", "trace_id": "x", "headers": {"a": "b"}}


class Listening:
    """An API that keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self._model: Upstream = ScriptedModel(HELLO).upstream()

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.bodies.append(json.loads(request.body))
        async with self._model.send(request) as answer:
            yield answer


@attack(
    "gateway abuse",
    "add what only a proxy in front of the API knows: keys, addresses, callbacks, credentials",
    "parts that the API does not document are left out, and the record names them",
)
async def test_parts_that_only_a_proxy_knows_are_left_out() -> None:
    api, seen = Listening(), list[ModelRequestSeen]()
    access = ModelAccess(api)
    access.bind(budget_usd=None, on_request=seen.append, model="sonnet")
    answer = await post(access, None, **PROXY_KEYS, metadata=METADATA, temperature=0.5, system="é")

    assert answer.status == 200
    (sent,) = api.bodies
    assert set(sent) == {"model", "messages", "metadata", "temperature", "system"}
    assert (sent["metadata"], sent["system"]) == ({"user_id": "u"}, "é")
    assert seen[0].left_out[:2] == ("api_base", "api_key")


OTHER_MODELS: tuple[object, ...] = (
    *("claude-opus-5-5", "opus", "gpt-5", "openai/claude-sonnet-5", "bedrock/sonnet", "sonnet2"),
    *("claude-sonnet-5-5\u200b", "claude-sonnet-5-5\n", "claude-opus-sonnetlike", "", None, 7),
    *(["claude-sonnet-5-5"], {"a": 1}, "http://evil.example/claude-sonnet-5", "*", "claude-"),
)


@attack(
    "gateway abuse",
    "ask for another model than agent.md gives, by name, alias, prefix or shape (17 ways)",
    "400 that names the one it was given; the API is not asked",
)
@pytest.mark.parametrize("model", OTHER_MODELS, ids=repr)
async def test_another_model_is_refused(model: object) -> None:
    api = Listening()
    access = ModelAccess(api)
    access.bind(budget_usd=None, on_request=None, model="sonnet")
    answer = await post(access, model=model)
    assert (answer.status, answer.headers["x-orchestrator-denied"]) == (400, "model")
    assert b"gives this agent the model 'sonnet'" in answer.body
    assert api.bodies == []


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        *(("sonnet", "claude-sonnet-5-5"), ("sonnet", "claude-sonnet-4-5-20250929")),
        *(("sonnet[1m]", "claude-sonnet-5-5"), ("sonnet", "claude-haiku-5-5"), ("Opus", "opus")),
        *(("claude-opus-4-8", "claude-opus-4-8[1m]"), ("claude-opus-4-8", "claude-haiku-4-5")),
        *(("my-proxy/model", "my-proxy/model"), ("opusplan", "claude-sonnet-5-5")),
        *(("opusplan", "claude-opus-5-5"), ("fable", "claude-fable-5-2"), ("sonnet", "sonnet")),
    ],
)
def test_what_an_agent_was_given_it_may_use(given: str, asked: str) -> None:
    assert may_use(given, asked)


@attack(
    "gateway abuse",
    "ask the model without end from a program of one's own, past max_turns",
    "400 after so many requests as no CLI needs: the record says so, the API is not asked",
)
async def test_requests_end_where_turns_must_have_ended() -> None:
    agent = AgentSpec(name="a", description="x", prompt="y", max_turns=1, retries=0)
    most = most_requests(agent)
    assert most == 104
    api, seen = Listening(), list[ModelRequestSeen]()
    access = ModelAccess(api)
    access.bind(budget_usd=None, on_request=seen.append, model="sonnet", most_requests=most)
    answers = [(await post(access)).status for _ in range(most + 3)]
    assert answers[most:] == [400] * 3
    assert len(api.bodies) == most
    assert access.bill.out_of_turns
    assert [one.error_type for one in seen].count("too_many_requests") == 1


def test_agents_of_the_clis_own_need_more_requests() -> None:
    agent = AgentSpec(name="a", description="x", prompt="y", max_turns=10, retries=1)
    busy = agent.model_copy(update={"permissions": Permissions(allow=("Task",))})
    assert (most_requests(agent), most_requests(busy)) == (180, 900)


async def test_the_real_cli_is_not_hindered(runtime: Runtime, image: str, tmp_path: Path) -> None:
    harness = Harness(runtime, image, tmp_path)
    result = await harness.run([bash("true"), {"text": "done"}])
    harness.store.close()
    assert (result.status, result.result, result.usage.requests) == ("completed", "done", 2)
    asked = [event for event in harness.events if event.kind == "model_request"]
    assert [event.data["left_out"] for event in asked] == [[], []]
