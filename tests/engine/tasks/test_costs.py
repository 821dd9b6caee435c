"""What a run is told to have cost, however its model's answer ends: facts and estimates apart.

The script's API charges what `usage` says for an answer that came to its end; for one that was cut
it has counted what went in and what it had written by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.engine.tasks.lost import settle_lost
from orchestrator.engine.tasks.tasks import Tasks
from tests.engine.harness import Harness, HeldModel, Steps

PATIENCE = 170

USAGE = {"input_tokens": 10_000, "output_tokens": 1_000}
IN_USD = 10_000 * 2 / 1e6
WHOLE_USD = IN_USD + 1_000 * 10 / 1e6
"""Of claude-sonnet-5-5, the agent's model."""

LAST_WORD_USD = 0.001
"""What a short answer of the script costs at most."""

SILENT: Steps = [{"text": "never", "delay_seconds": 3600, "usage": USAGE}]
HALTING: Steps = [{"text": "a long answer " * 50, "pause_seconds": 3600, "usage": USAGE}]
WHOLE: Steps = [{"text": "done", "usage": USAGE}]
AFTERWARDS: Steps = [*HALTING, {"text": "done", "usage": USAGE}]


@pytest.fixture
async def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> AsyncIterator[Harness]:
    harness = Harness(runtime, image, tmp_path)
    async with harness.sessions:
        yield harness


async def asked(harness: Harness, run_id: str, model: HeldModel, *, saying: bool) -> None:
    """Until the model has been asked; and, if it says something, until that has been heard."""
    await model.asked.wait()
    while saying:
        events = [event.kind for event in await harness.store.events(run_id)]
        if "saying" in events:
            break
        await anyio.sleep(0.05)


async def ended(tasks: Tasks, run_id: str) -> RunResult:
    view = await tasks.book.until_ended(run_id, "main", seconds=PATIENCE)
    assert view.result is not None
    return view.result


End = Callable[[Tasks, Harness, str], Awaitable[RunResult]]


async def by_itself(tasks: Tasks, _: Harness, run_id: str) -> RunResult:
    return await ended(tasks, run_id)


async def by_cancel(tasks: Tasks, _: Harness, run_id: str) -> RunResult:
    await tasks.cancel(run_id, "main")
    return await ended(tasks, run_id)


async def by_steering(tasks: Tasks, _: Harness, run_id: str) -> RunResult:
    await tasks.say(run_id, "Finish.", "main", now=True)
    return await ended(tasks, run_id)


async def by_kill(_: Tasks, harness: Harness, run_id: str) -> RunResult:
    (result,) = await settle_lost(harness.store, lambda _: False)
    assert result.run_id == run_id
    return result


CASES = [
    # Whose answer, how it ended, what the API has charged, at least and at most, told as a fact.
    pytest.param(WHOLE, by_itself, WHOLE_USD, WHOLE_USD, True, id="whole"),
    pytest.param(SILENT, by_cancel, 0, 0, False, id="cancelled before the first byte"),
    pytest.param(HALTING, by_cancel, IN_USD, WHOLE_USD, False, id="cancelled in the middle"),
    pytest.param(SILENT, by_itself, 0, 0, False, id="out of time before the first byte"),
    pytest.param(HALTING, by_itself, IN_USD, WHOLE_USD, False, id="out of time in the middle"),
    pytest.param(AFTERWARDS, by_steering, IN_USD, WHOLE_USD, False, id="steered in the middle"),
    pytest.param(SILENT, by_kill, 0, 0, False, id="killed before the first byte"),
]


ALIKE = ("cancelled before the first byte", "out of time before the first byte")
"""As "killed before the first byte": `make soak` has them."""


@pytest.mark.parametrize(
    ("steps", "end", "least", "most", "fact"), [each for each in CASES if each.id not in ALIKE]
)
async def test_what_is_not_known_is_told_as_an_estimate(
    harness: Harness, steps: Steps, end: End, least: float, most: float, fact: bool
) -> None:
    await is_told(harness, steps, end, least, most, fact)


async def is_told(
    harness: Harness, steps: Steps, end: End, least: float, most: float, fact: bool
) -> None:
    limit = 12_000 if end is by_itself and steps is not WHOLE else 120_000
    service = harness.service(steps, model="claude-sonnet-5-5", timeout_ms=limit)
    model = HeldModel(service)
    model.may_answer.set()
    saying = steps in (HALTING, AFTERWARDS)
    with anyio.fail_after(PATIENCE):
        async with Tasks(service) as tasks:
            run_id = await tasks.start(Task(agent="worker", prompt="Do it."))
            if end is not by_itself:
                await asked(harness, run_id, model, saying=saying)
            result = await end(tasks, harness, run_id)
            if end is by_kill:
                await tasks.cancel(run_id, "main")
    # The answer that came instead: when it was told something, or that its time is nearly up.
    after = WHOLE_USD if end is by_steering else LAST_WORD_USD if end is by_itself else 0.0
    told = f"${result.cost_usd:.4f} and by estimate ${result.estimated_usd:.4f}"
    print(f"\n{end.__name__}: charged ${least:.4f} to ${most:.4f}, told {told}")
    assert result.cost_usd <= most + after + 1e-9, "no fact is more than was charged"
    if fact:
        assert result.cost_usd == pytest.approx(WHOLE_USD)
        assert result.estimated_usd == 0
    elif least:
        assert result.cost_usd + result.estimated_usd >= least - 1e-9
        assert result.estimated_usd > 0
    else:
        assert result.cost_usd <= after, "what never answered is no fact"
        assert result.estimated_usd < 0.1, "and no whole answer of the longest kind"
