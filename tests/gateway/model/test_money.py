"""Random runs against an API that knows what each request truly costs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from random import Random

import anyio
import anyio.lowlevel
import pytest

from orchestrator.gateway.model.access import look_through
from orchestrator.gateway.model.bill import ModelBill, ModelRequestSeen
from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import OUTPUT_TOKENS_PER_SECOND, Meter
from orchestrator.gateway.model.money.price_table import CONTEXT_TOKENS
from orchestrator.gateway.model.money.prices import Used, cost_usd
from orchestrator.gateway.model.request import Asked
from tests.gateway.model.formats.tellers import TELLERS, Teller, Wanted

pytestmark = pytest.mark.anyio

RUNS = 400
PENNY = 1e-9
CUTS = ("client before the answer", "client", "upstream", "error", "no answer")
KINDS = {"none": ("",), "never answered": ("no answer",), "all": CUTS}
"""What may happen to a request; the first two are honest runs."""


@dataclass
class Request:
    """One request, and what the API makes of it."""

    teller: Teller
    body: bytes
    asked: Asked
    read: int
    cached: int
    """Of those, that were in the API's cache."""
    written: int
    """Tokens, if it is let."""
    per_second: float
    cut: str
    seconds: float
    """Until then."""
    steps: int
    """Turns of the event loop that it takes."""

    @property
    def output(self) -> int:
        """Tokens that were written until the cut; what is not streamed goes on without anybody."""
        if not self.cut or (not self.asked.stream and self.cut.startswith("client")):
            return self.written
        return max(1, min(self.written, int(self.seconds * self.per_second)))

    @property
    def true_usd(self) -> float:
        if self.cut == "no answer":
            return 0
        return self.asked.cost_usd(self.used)

    @property
    def used(self) -> Used:
        fresh = self.read - self.cached
        lasts = self.teller.cached_for(self.body, self.asked.model)
        return Used(
            input_tokens=0 if lasts else fresh,
            output_tokens=self.output,
            cache_read_tokens=self.cached,
            cache_write_tokens=fresh if lasts else 0,
            cache_write_hour_tokens=fresh if lasts == "hour" else 0,
        )

    def told(self) -> ModelRequestSeen:
        """What the gateway makes of what it sees."""
        meter = Meter(self.asked, FORMATS[self.teller.name].reading())
        whole = self.cut in ("", "error", "no answer")
        if self.cut not in ("no answer", "client before the answer"):
            kind = "text/event-stream" if self.asked.stream else "application/json"
            meter.start(200, kind)
            meter.feed(self._answer())
        tally = meter.tally(whole=whole, seconds=self.seconds)
        unanswered = self.cut == "no answer"
        return ModelRequestSeen(status=200, unanswered=unanswered, **tally.model_dump())

    def _answer(self) -> bytes:
        used = self.used
        if not self.asked.stream:
            text = json.dumps(self.teller.whole(self.asked.model, used)).encode()
            return text[: len(text) // 2] if self.cut else text
        # Of all that it thinks, nothing is shown.
        end = {"": "end", "error": "error"}.get(self.cut, "")
        events = self.teller.events(self.asked.model, used, end)
        return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)


def a_request(chance: Random, cuts: str, teller: Teller) -> Request:
    pictures = chance.choice((0, 0, 1, 3))
    pdf = chance.random() < 0.2
    text = "x" * chance.choice((10, 2000, 20_000))
    most = chance.choice((1000, 32_000, 128_000))
    model = chance.choice(teller.models)
    streams = chance.random() < 0.8
    told = teller.body(Wanted(chance, model, text, pictures, pdf, most, streams))
    body = json.dumps(told).encode()
    api = FORMATS[teller.name]
    call = api.call(*teller.place(model, streams))
    assert call is not None
    refused, asked = look_through(body, api=api, call=call)
    assert not refused
    assert (asked.pictures, asked.documents, asked.stream) == (pictures, pdf, streams)
    read = chance.randint(1, len(text) // 2) + pictures * chance.randint(50, 4800)
    read += chance.randint(50, CONTEXT_TOKENS - read) if pdf else 0
    return Request(
        teller,
        body,
        asked,
        read=read,
        cached=chance.choice((0, read // 3, read)),
        written=chance.randint(1, asked.max_tokens),
        per_second=chance.uniform(10, OUTPUT_TOKENS_PER_SECOND),
        cut=chance.choice(KINDS[cuts]) if chance.random() < 0.5 else "",
        seconds=chance.choice((0.01, 1, 12, 300)),
        steps=chance.randint(0, 6),
    )


@dataclass
class Run:
    bill: ModelBill
    budget: float
    cuts: str
    true_usd: float = 0
    largest_usd: float = 0
    """The ceiling of what was let through."""
    refused: int = 0
    wrongs: list[str] = field(default_factory=list)

    async def ask(self, request: Request) -> None:
        ceiling = request.asked.ceiling_usd
        if not await self.bill.admit(ceiling):
            self.refused += 1
            honest = self.cuts in ("none", "never answered")
            if honest and self.true_usd < self.budget - PENNY:
                self.wrongs.append(f"refused after ${self.true_usd} of ${self.budget}")
            return
        self.largest_usd = max(self.largest_usd, ceiling)
        for _ in range(request.steps):
            await anyio.lowlevel.checkpoint()
        told, true = request.told(), request.true_usd
        self.true_usd += true
        self.bill.count(told, ceiling)
        known, most = told.cost_usd, told.cost_usd + told.estimated_usd
        if true > ceiling + PENNY:
            self.wrongs.append(f"${true} is above its ceiling of ${ceiling}: {request}")
        if not request.cut and (told.estimated_usd or not math.isclose(known, true)):
            self.wrongs.append(f"${known} told of ${true}: {request}")
        if known > true + PENNY or most < true - PENNY:
            self.wrongs.append(f"${true} is not between ${known} and ${most}: {request}")


async def one_run(chance: Random, cuts: str, teller: Teller) -> Run:
    budget = chance.choice((0.05, 0.5, 3.0, 20.0))
    run = Run(ModelBill(budget), budget, cuts)
    for _ in range(chance.randint(1, 3)):
        async with anyio.create_task_group() as together:
            for _ in range(chance.randint(1, 5)):
                together.start_soon(run.ask, a_request(chance, cuts, teller))
    return run


@pytest.mark.parametrize("cuts", KINDS)
@pytest.mark.parametrize("teller", TELLERS, ids=lambda each: each.name)
async def test_no_run_goes_beyond_its_budget_and_no_honest_one_is_ended_early(
    cuts: str, teller: Teller
) -> None:
    refused = 0
    for seed in range(RUNS if cuts == "all" else RUNS // 2):
        run = await one_run(Random(f"{cuts} {seed}"), cuts, teller)
        assert run.wrongs == [], seed
        usage = run.bill.usage
        assert usage.cost_usd - PENNY <= run.true_usd <= usage.budgeted_usd + PENNY, seed
        assert run.true_usd <= run.budget + run.largest_usd + PENNY, seed
        refused += run.refused
    assert refused > RUNS / 20


def test_the_api_here_charges_as_the_real_one_does() -> None:
    asked = Asked(model="claude-sonnet-4-5", caches="hour")
    assert cost_usd(asked.model, asked.used(1_000_000, 0)) == pytest.approx(6)
    assert asked.used(5, 7) == Used(
        output_tokens=7, cache_write_tokens=5, cache_write_hour_tokens=5
    )
