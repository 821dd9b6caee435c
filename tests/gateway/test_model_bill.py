"""What a run has used of its model, and what it may use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from orchestrator.domain.result import Usage
from orchestrator.gateway.model_bill import ModelRequestSeen
from orchestrator.gateway.scripted import ScriptedModel
from orchestrator.gateway.upstream import UpstreamRequest, UpstreamResponse
from tests.gateway.model_stage import HELLO, body, bound_access, error_of, post
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_run_used_is_counted_exactly(stream: bool) -> None:
    seen: list[ModelRequestSeen] = []
    access = bound_access(ScriptedModel(HELLO).upstream(), on_request=seen.append)
    await post(access, stream=stream)
    await post(access, stream=stream)
    async with connection(access.service) as near:
        headers = {"x-api-key": access.token}
        counted = await Client(near).ask("POST", "/v1/messages/count_tokens", headers, body())

    assert "input_tokens" in json.loads(counted.body)
    one = 1000 * 3e-6 + 200 * 15e-6
    counts = Usage(requests=2, input_tokens=2000, output_tokens=400, cost_usd=2 * one)
    assert access.usage.model_dump() == pytest.approx(counts.model_dump())
    expected = ModelRequestSeen(
        status=200,
        model="claude-sonnet-4-5",
        input_tokens=1000,
        output_tokens=200,
        cost_usd=one,
    )
    assert [s.model_copy(update={"duration_ms": 0}) for s in seen] == [expected] * 2


async def test_a_spent_budget_refuses_the_next_request() -> None:
    seen: list[ModelRequestSeen] = []
    upstream = ScriptedModel(HELLO).upstream()
    access = bound_access(upstream, budget_usd=0.006, on_request=seen.append)
    assert (await post(access)).status == 200
    before = access.budget_exhausted
    refused = [await post(access), await post(access)]

    assert [(a.status, error_of(a)) for a in refused] == [(400, "invalid_request_error")] * 2
    assert refused[0].headers["x-orchestrator-denied"] == "budget"
    assert b"budget of $0.006 is spent" in refused[0].body
    assert (before, access.budget_exhausted) == (False, True)
    assert access.usage.requests == 1
    assert [s.error_type for s in seen] == ["", "budget_exceeded"]


async def test_a_request_that_outlives_its_run_is_not_on_the_next_ones_bill() -> None:
    arrived, go_on = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(HELLO).upstream()

    class Slow:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            arrived.set()
            await go_on.wait()
            async with model.send(request) as answer:
                yield answer

    first: list[ModelRequestSeen] = []
    second: list[ModelRequestSeen] = []
    access = bound_access(Slow(), budget_usd=1.0, on_request=first.append)
    async with connection(access.service) as stream:
        client = Client(stream)
        await client.send("POST", "/v1/messages", {"x-api-key": access.token}, body())
        await arrived.wait()
        access.revoke()
        access.bind(budget_usd=0.001, on_request=second.append)
        go_on.set()
        assert (await client.answer()).status == 200
    while not access.is_idle:
        await anyio.lowlevel.checkpoint()

    assert [seen.input_tokens for seen in first] == [1000]
    assert (second, access.usage, access.budget_exhausted) == ([], Usage(), False)
    assert (await post(access)).status == 200  # nothing of the new budget is spent
    assert (len(first), len(second), access.usage.requests) == (1, 1, 1)


async def test_a_listener_that_fails_does_not_cost_the_answer() -> None:
    def fail(_: ModelRequestSeen) -> None:
        raise ValueError

    access = bound_access(ScriptedModel(HELLO).upstream(), on_request=fail)
    answer = await post(access)
    assert (answer.status, access.usage.requests) == (200, 1)
