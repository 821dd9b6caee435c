"""Attacks on what is written down of money: estimates told as facts, and what others spent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from orchestrator.domain.events import Event, EventKind
from orchestrator.domain.result import RunResult, Usage
from orchestrator.domain.task import Task
from orchestrator.engine.run import conclude
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.gateway.model.bill import ModelRequestSeen
from orchestrator.gateway.model.upstream import UpstreamLost, UpstreamRequest, UpstreamResponse
from orchestrator.store.runs import Store
from orchestrator.surfaces.cli.run import summary
from orchestrator.surfaces.mcp.answers.answer import result_answer
from orchestrator.surfaces.text import costs
from tests.attacks.mark import attack
from tests.attacks.test_money import PDF, PDF_USD, SMALL, Api, send, turns
from tests.engine.scripted_runs import Process
from tests.gateway.model.model_stage import bound_access
from tests.gateway.near import Client, connection

pytestmark = pytest.mark.anyio


async def nothing() -> AsyncIterator[bytes]:
    yield b""


class Deaf:
    """An API that takes requests and hangs up before it has said a word."""

    def __init__(self) -> None:
        self.asked = 0

    @asynccontextmanager
    async def send(self, request: UpstreamRequest) -> AsyncIterator[UpstreamResponse]:
        self.asked += 1
        request.delivery.began = True
        if self.asked:
            raise UpstreamLost("hung up")
        yield UpstreamResponse(200, (), nothing())


@attack(
    "gateway abuse",
    "have an estimate pass for what was paid, or end an honest run, by answers that never come",
    "an estimate is called one, apart from the fact; requests never answered end no run",
)
async def test_an_estimate_is_no_fact_and_what_was_never_answered_ends_no_run() -> None:
    api, seen = Deaf(), list[ModelRequestSeen]()
    access = bound_access(api, budget_usd=0.5, on_request=seen.append)
    with anyio.fail_after(60):
        for _ in range(20):
            access.bill.told()  # or the turn would be ended
            async with connection(access.service) as stream:
                client = Client(stream)
                await send(access, client, [PDF], 10)
                assert (await client.answer()).status == 502
    usage = access.bill.usage
    assert api.asked == 20
    assert usage.cost_usd == usage.budgeted_usd == 0
    assert usage.unanswered_usd == usage.estimated_usd >= 20 * PDF_USD
    assert {(one.unanswered, one.cost_usd) for one in seen} == {(True, 0)}
    assert not access.bill.is_spent


async def test_of_a_stream_that_was_left_the_start_is_a_fact_and_the_rest_an_estimate() -> None:
    ended = anyio.Event()
    api = Api(SMALL)
    access = bound_access(api, budget_usd=0.5, on_request=lambda _: ended.set())
    with anyio.fail_after(60):
        async with connection(access.service) as stream:
            client = Client(stream)
            await send(access, client, "think hard", 32_000)
            await api.some_asked.wait()
            await turns()
            stream.end()
            await ended.wait()
    usage = access.bill.usage
    assert usage.cost_usd == pytest.approx(100 * 3e-6 + 15e-6)
    assert usage.unanswered_usd == 0
    assert usage.budgeted_usd == usage.cost_usd + usage.estimated_usd


OWN = Usage(requests=1, cost_usd=0.0004)
ONE = Usage(requests=3, cost_usd=0.02, estimated_usd=0.001)
TWO = Usage(requests=1, cost_usd=0.0024)


@attack(
    "gateway abuse",
    "spend through subagents, so that one's own envelope tells of next to nothing",
    "the envelope tells its own cost and its family's, each run counted once; so does each surface",
)
async def test_the_envelope_tells_what_a_family_has_spent(tmp_path: Path) -> None:
    process = Process(tmp_path, "a test", set())
    service = process.service
    live = await service.accept(Task(agent="worker", prompt="x"))
    child = await service.accept(Task(agent="worker", prompt="y"))
    grandchild = await service.accept(Task(agent="worker", prompt="z"))
    live.errands.append(child)
    child.errands.append(grandchild)
    live.usage, child.usage, grandchild.usage = OWN, ONE, TWO
    live.complete("done")
    result = await conclude(live)
    process.store.close()

    assert (result.cost_usd, result.estimated_usd) == (0.0004, 0)
    assert (result.family_usd, result.family_estimated_usd) == (0.0228, 0.001)
    said = "$0.0004 ($0.0228 and by estimate $0.0010 with its subagents)"
    assert costs(result) == said
    assert said in summary(result)
    failed = result.model_copy(update={"status": "failed", "reason": "budget"})
    assert said in str(result_answer(failed).content[0])
    assert (result_answer(result).structured_content or {})["family_usd"] == 0.0228


async def test_a_lost_run_tells_what_its_family_has_spent(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.sqlite", "gone")

    def event(of: str, seq: int, kind: EventKind, **data: object) -> Event:
        return Event(run_id=of, seq=seq, at=1.0, kind=kind, data=data)

    for run_id in ("r1", "r2", "r3"):
        await store.add_run(Task(agent="worker", prompt="x", run_id=run_id))
    await store.add_events(
        (
            event("r1", 1, "model_request", cost_usd=0.5),
            event("r1", 2, "delegated", run_id="r2"),
            event("r1", 3, "delegated", run_id="r1"),  # what is written there may be anything
            event("r2", 1, "model_request", cost_usd=0.25, estimated_usd=0.125, unanswered=True),
            event("r2", 2, "delegated", run_id="r3"),
            event("r3", 1, "model_request", cost_usd=1.0),
        )
    )
    found = {result.run_id: result for result in await settle_lost(store, lambda _: False)}
    store.close()
    told: Callable[[RunResult], tuple[float, float]] = lambda r: (r.cost_usd, r.family_usd)  # noqa: E731
    assert (told(found["r2"]), told(found["r3"])) == ((0.25, 1.25), (1.0, 1.0))
    assert found["r2"].usage.unanswered_usd == found["r2"].estimated_usd == 0.125
    assert found["r1"].family_usd == 1.75
