"""What a run has used of its model, and what it may use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import anyio.lowlevel
import h11
import pytest

from orchestrator.domain.result import Usage
from orchestrator.gateway.model.access import MAX_UNDER_WAY, ModelAccess
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.scripted import ScriptedModel
from orchestrator.gateway.model.upstream import UpstreamRequest, UpstreamResponse
from tests.gateway.model.model_stage import HELLO, body, bound_access, error_of, post
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
    assert access.bill.usage.model_dump() == pytest.approx(counts.model_dump())
    expected = ModelRequestSeen(
        status=200,
        model="claude-sonnet-4-5",
        input_tokens=1000,
        output_tokens=200,
        cost_usd=one,
        provider="anthropic",
        asked_model="claude-sonnet-4-5",
        stop="end_turn",
    )
    varies = {"duration_ms": 0, "first_ms": 0, "answer_id": ""}
    assert [s.model_copy(update=varies) for s in seen] == [expected] * 2
    assert all(0 < s.first_ms <= max(1, s.duration_ms) and s.answer_id for s in seen)


async def test_a_spent_budget_refuses_the_next_request() -> None:
    seen: list[ModelRequestSeen] = []
    upstream = ScriptedModel(HELLO).upstream()
    access = bound_access(upstream, budget_usd=0.006, on_request=seen.append)
    assert (await post(access)).status == 200
    before = access.bill.exhausted
    refused = [await post(access), await post(access)]

    assert [(a.status, error_of(a)) for a in refused] == [(400, "invalid_request_error")] * 2
    assert refused[0].headers["x-orchestrator-denied"] == "budget"
    assert b"budget of $0.006 is spent" in refused[0].body
    assert (before, access.bill.exhausted) == (False, True)
    assert access.bill.usage.requests == 1
    assert [s.error_type for s in seen] == ["", "budget_exceeded"]


class Held:
    """A model that answers when it is let."""

    def __init__(self) -> None:
        self._model = ScriptedModel(HELLO).upstream()
        self.asked = 0
        self._changed = anyio.Condition()
        self._let = 0

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.asked += 1
        mine = self.asked
        async with self._changed:
            self._changed.notify_all()
            while self._let < mine:
                await self._changed.wait()
        async with self._model.send(request) as answer:
            yield answer

    async def let(self, number: int) -> None:
        """The first so many are answered."""
        async with self._changed:
            self._let = number
            self._changed.notify_all()

    async def was_asked(self, times: int) -> None:
        async with self._changed:
            while self.asked < times:
                await self._changed.wait()


@asynccontextmanager
async def asking(access: ModelAccess, times: int, max_tokens: int) -> AsyncIterator[list[Client]]:
    """Requests that have been sent, each on a connection of its own."""
    async with AsyncExitStack() as held:
        clients = []
        for _ in range(times):
            client = Client(await held.enter_async_context(connection(access.service)))
            headers = {"x-api-key": access.token}
            asked = body(max_tokens=max_tokens)
            await client.send("POST", "/v1/messages", headers, asked)
            clients.append(client)
        yield clients


async def turns(number: int = 50) -> None:
    """Enough for whatever can happen now to happen."""
    for _ in range(number):
        await anyio.lowlevel.checkpoint()


async def test_requests_at_once_do_not_go_beyond_the_budget_together() -> None:
    """64,000 tokens are $0.96: a second request that could cost as much does not fit beside it."""
    model = Held()
    access = bound_access(model, budget_usd=1.0)
    async with asking(access, 3, 64_000) as clients:
        await model.was_asked(1)
        await turns()
        assert model.asked == 1

        await model.let(1)
        assert (await clients[0].answer()).status == 200
        await model.was_asked(2)
        await turns()
        assert model.asked == 2

        await model.let(3)
        assert [(await client.answer()).status for client in clients[1:]] == [200, 200]
    assert access.bill.usage.requests == 3


async def test_requests_that_fit_together_do_not_wait() -> None:
    model = Held()
    access = bound_access(model, budget_usd=1.0)
    async with asking(access, 10, 1000) as clients:
        await model.was_asked(10)
        await model.let(10)
        assert {(await client.answer()).status for client in clients} == {200}


async def test_one_that_could_cost_more_than_the_budget_may_if_it_is_alone() -> None:
    access = bound_access(ScriptedModel(HELLO).upstream(), budget_usd=0.01)
    assert (await post(access, max_tokens=64_000)).status == 200
    assert (await post(access, max_tokens=64_000)).status == 200
    assert (await post(access, max_tokens=64_000)).status == 400


async def test_who_waits_for_a_budget_that_is_spent_meanwhile_is_told_so() -> None:
    model = Held()
    access = bound_access(model, budget_usd=0.006)
    async with asking(access, 3, 64_000) as clients:
        await model.was_asked(1)
        await model.let(1)
        answers = [await client.answer() for client in clients]
    assert [answer.status for answer in answers] == [200, 400, 400]
    assert model.asked == 1


async def test_who_hangs_up_while_waiting_makes_place_for_the_next() -> None:
    model = Held()
    access = bound_access(model, budget_usd=1.0)
    async with asking(access, 3, 64_000) as (first, second, third):
        await model.was_asked(1)
        second.stream.end()
        await turns()
        await model.let(3)
        assert (await first.answer()).status == 200
        assert (await third.answer()).status == 200
    assert (model.asked, access.bill.usage.requests) == (2, 2)


async def test_a_run_has_a_few_requests_under_way_and_no_more() -> None:
    model = Held()
    access = bound_access(model)
    async with asking(access, MAX_UNDER_WAY, 1000) as clients:
        await model.was_asked(MAX_UNDER_WAY)
        refused = await post(access)
        assert (refused.status, error_of(refused)) == (429, "rate_limit_error")
        assert b"16 requests of this run are under way" in refused.body
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["x-orchestrator-denied"] == "requests"

        await model.let(MAX_UNDER_WAY + 1)
        assert {(await client.answer()).status for client in clients} == {200}
        assert (await post(access)).status == 200


async def test_a_run_that_ends_has_its_requests_cut_and_on_its_bill_at_once() -> None:
    """One before its answer, one in the middle of it, one that waits for the budget."""
    seen: list[ModelRequestSeen] = []
    let_go: list[str] = []
    begun = anyio.Event()

    class Speaking:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            try:
                if b"later" in request.body:
                    await anyio.sleep_forever()
                headers = (("content-type", "text/event-stream"),)
                yield UpstreamResponse(200, headers, self.body())
            finally:
                let_go.append("one")

        async def body(self) -> AsyncIterator[bytes]:
            usage = {"input_tokens": 77, "output_tokens": 3}
            message = {"model": "claude-sonnet-4-5", "usage": usage}
            start = {"type": "message_start", "message": message}
            yield b"data: " + json.dumps(start).encode() + b"\n\n"
            begun.set()
            await anyio.sleep_forever()

    access = bound_access(Speaking(), budget_usd=1.0, on_request=seen.append)
    async with AsyncExitStack() as held:
        clients = []
        for system, most in (("now", 1000), ("later", 1000), ("waits", 66_000)):
            client = Client(await held.enter_async_context(connection(access.service)))
            asked = body(max_tokens=most, system=system)
            await client.send("POST", "/v1/messages", {"x-api-key": access.token}, asked)
            clients.append(client)
        await begun.wait()
        await turns()

        access.revoke()
        used = access.bill.usage

        assert access.is_idle
        assert used.requests == 2
        assert 1003 <= used.output_tokens <= 2000  # by how long the second has taken
        assert used.input_tokens >= 77
        assert [one.error_type for one in seen] == ["run_ended"] * 2
        for client in clients:
            with pytest.raises((ConnectionResetError, h11.RemoteProtocolError)):
                await client.answer()
        access.bind(budget_usd=1.0, on_request=None)
    assert let_go == ["one"] * 2
    assert (len(seen), access.bill.usage) == (2, Usage())


async def test_a_listener_that_fails_does_not_cost_the_answer() -> None:
    def fail(_: ModelRequestSeen) -> None:
        raise ValueError

    access = bound_access(ScriptedModel(HELLO).upstream(), on_request=fail)
    answer = await post(access)
    assert (answer.status, access.bill.usage.requests) == (200, 1)
