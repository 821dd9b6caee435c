"""Answers as the APIs have streamed them -> what they used, which is what the API says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from orchestrator.gateway.model.formats.known import FORMATS
from orchestrator.gateway.model.money.metering import Meter, Tally
from orchestrator.gateway.model.request import Asked
from orchestrator.gateway.model.verdicts import ModelVerdict

RECORDED = Path(__file__).parent / "recorded"
RECORDINGS = sorted(path.stem for path in RECORDED.glob("*.sse"))


class Billed(NamedTuple):
    """As the API counts: no token is in two of these."""

    input: int
    output: int
    cached: int = 0
    verdict: ModelVerdict = ""


BILLED = {
    "anthropic-tool": Billed(565, 48),
    "anthropic-input-told-twice": Billed(61, 2),
    "anthropic-refusal": Billed(18, 5, verdict="refusal"),
    "responses-tool": Billed(45, 25),
    "chat-text": Billed(15, 5),
    "gemini-tool": Billed(29, 15 + 804),  # what it thought is beside the answer, and paid like it
    "gemini-cache-and-search": Billed(12 + 65 - 4, 71 + 89, cached=4),
    "gemini-blocked": Billed(9, 0, verdict="refusal"),
}


def metered(name: str, pieces: int) -> Tally:
    wire_format = next(each for each in FORMATS if name.startswith(each))
    data = (RECORDED / f"{name}.sse").read_bytes()
    asked = Asked(body_bytes=200, max_tokens=1000)
    meter = Meter(asked, FORMATS[wire_format].reading())
    meter.start(200, "text/event-stream")
    for at in range(0, len(data), pieces):
        meter.feed(data[at : at + pieces])
    assert not meter.broke_off
    return meter.tally()


def test_every_recording_and_every_format_is_there() -> None:
    assert set(RECORDINGS) == {*BILLED, "responses-failed"}
    assert {name.partition("-")[0] for name in BILLED} == set(FORMATS)


@pytest.mark.parametrize("pieces", [1, 7, 10**6])
@pytest.mark.parametrize("name", BILLED)
def test_told_usage_is_what_the_api_says(name: str, pieces: int) -> None:
    told = metered(name, pieces)
    used = (told.input_tokens, told.output_tokens, told.cache_read_tokens, told.verdict)
    assert used == BILLED[name]
    assert told.estimated_usd == 0, "all of it is known"
    assert (told.cost_usd > 0) is (told.input_tokens > 0)


def test_what_the_api_does_not_say_is_an_estimate_and_no_fact() -> None:
    told = metered("responses-failed", 10**6)
    assert (told.verdict, told.cost_usd) == ("rate_limit", 0)
    assert told.estimated_usd > 0


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_holds_nothing_like_a_key(name: str) -> None:
    text = (RECORDED / f"{name}.sse").read_text()
    assert not re.search(r"sk-|AIza|Bearer|[A-Za-z0-9_/+-]{40}", text)
