"""Attacks on the budget: requests that look cheap, and answers that nobody waits for.

The container's side is a connection to the gateway; the API behind it knows what was truly used.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.upstream import UpstreamRequest, UpstreamResponse
from tests.attacks.mark import attack
from tests.gateway.model.model_stage import body, bound_access, post
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio

BUDGET_USD = 0.5
PDF_USD = 1_000_000 * 3e-6
"""Of one that fills the context, for the model asked for here."""

BYTES = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
PDF = {"type": "document", "source": BYTES}
IN_A_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [PDF]}
IN_TWO = {"type": "tool_result", "tool_use_id": "t", "content": [IN_A_RESULT]}
PICTURES = [{"type": "image", "source": {**BYTES, "media_type": "image/png"}}] * 200
SMALL = {"input_tokens": 100, "output_tokens": 1}


class Api:
    """Says what a request has read, then thinks without showing it, until it is let or left."""

    def __init__(self, usage: object, *between: object, clock: Clock | None = None) -> None:
        self._events = [
            {"type": "message_start", "message": {"model": "claude-sonnet-4-5", "usage": usage}},
            *between,
        ]
        self._usage = usage
        self._clock = clock
        self.asked = 0
        self.some_asked = anyio.Event()
        self.go_on = anyio.Event()

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.asked += 1
        self.some_asked.set()
        yield UpstreamResponse(200, (("content-type", "text/event-stream"),), self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for event in self._events:
            yield line(event)
        if self._clock is not None:
            self._clock.now += 12
        yield line({"type": "ping"})
        await self.go_on.wait()
        yield line({"type": "message_delta", "usage": self._usage})


class Clock:
    """Stands still but for what is told it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def line(event: object) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


async def turns() -> None:
    """Enough for whatever can happen now to happen."""
    for _ in range(300):
        await anyio.lowlevel.checkpoint()


async def send(access: ModelAccess, client: Client, content: object, most: int) -> None:
    messages = [{"role": "user", "content": content}]
    asked = body(max_tokens=most, stream=True, messages=messages)
    await client.send("POST", "/v1/messages", {"x-api-key": access.token}, asked)


@attack(
    "gateway abuse",
    "send 15 requests at once that look small and hold PDFs or pictures, some inside results",
    "they wait for each other: one is answered, and those after the last dollar are refused",
)
@pytest.mark.parametrize(
    "content",
    [[PDF], [IN_A_RESULT], [IN_TWO], PICTURES],
    ids=["document", "in a result", "in two", "pictures"],
)
async def test_documents_do_not_go_beyond_the_budget_together(content: list[object]) -> None:
    api = Api({"input_tokens": 1_000_000, "output_tokens": 1})
    access = bound_access(api, budget_usd=BUDGET_USD)
    with anyio.fail_after(60):
        async with AsyncExitStack() as held:
            clients = []
            for _ in range(15):
                client = Client(await held.enter_async_context(connection(access.service)))
                await send(access, client, content, 10)
                clients.append(client)
            await api.some_asked.wait()
            await turns()
            assert api.asked == 1
            api.go_on.set()
            answers = [(await client.answer()).status for client in clients]
    assert sorted(answers) == [200] + [400] * 14
    assert api.asked == 1
    assert BUDGET_USD < access.bill.usage.cost_usd < PDF_USD + 0.01


INTERIM = ({"type": "message_delta", "usage": SMALL},)
THINKING = ({"type": "content_block_start", "content_block": {"type": "thinking"}},)


@attack(
    "gateway abuse",
    "have the model think for 12 s without showing it, and hang up before it says what it used",
    "the seconds are on the bill as tokens, also where a first count came in between",
)
@pytest.mark.parametrize(
    "between", [THINKING, INTERIM + THINKING], ids=["thinking", "after a first count"]
)
async def test_hidden_thinking_is_not_free(
    between: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("orchestrator.gateway.model.exchange.time", clock)
    ended = anyio.Event()
    api = Api(SMALL, *between, clock=clock)
    access = bound_access(api, budget_usd=0.02, on_request=lambda _: ended.set())
    with anyio.fail_after(60):
        async with connection(access.service) as stream:
            client = Client(stream)
            await send(access, client, "think hard", 32_000)
            async for _ in client.events():
                if b"ping" in client.raw:
                    break
            stream.end()
            await ended.wait()
        assert 12 * 100 <= access.bill.usage.output_tokens <= 32_000
        async with connection(access.service) as stream:
            client = Client(stream)
            await send(access, client, "think hard", 32_000)
            assert (await client.answer()).status == 400
    assert api.asked == 1


@attack(
    "gateway abuse",
    "send a PDF and hang up before the API says what it read",
    "a document that fills the context is on the bill",
)
async def test_a_document_that_no_client_waits_for_is_not_free() -> None:
    arrived, ended = anyio.Event(), anyio.Event()

    class Silent:
        @asynccontextmanager
        async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
            arrived.set()
            await anyio.sleep_forever()
            yield UpstreamResponse(200, (), empty())

    async def empty() -> AsyncIterator[bytes]:
        yield b""

    access = bound_access(Silent(), budget_usd=BUDGET_USD, on_request=lambda _: ended.set())
    with anyio.fail_after(60):
        async with connection(access.service) as stream:
            await send(access, Client(stream), [IN_A_RESULT], 10)
            await arrived.wait()
            stream.end()
            await ended.wait()
    assert access.bill.usage.estimated_usd >= PDF_USD
    assert access.bill.is_spent


DISGUISED = (
    *("bash_code_execution_20250825", "text_editor_code_execution_20250825", "customs"),
    *("memory_sync_20250818", "computer_remote_20250124", "tool_search_tool_web_20251119"),
)


@attack(
    "gateway abuse",
    "ask for tools of the API whose names begin as those of the client's own",
    "403: a tool is known by its whole name; the API is not asked",
)
@pytest.mark.parametrize("kind", DISGUISED)
async def test_a_tool_of_the_api_is_not_taken_for_a_local_one(kind: str) -> None:
    api = Api(SMALL)
    api.go_on.set()
    access = bound_access(api)
    answer = await post(access, stream=True, tools=[{"type": kind, "name": "x"}])
    assert (answer.status, answer.headers.get("x-orchestrator-denied")) == (403, "server_tool")
    assert api.asked == 0
