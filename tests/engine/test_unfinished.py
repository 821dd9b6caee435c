"""What an agent is saying: bounded, seldom told, and never half a secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from orchestrator.domain.events import Event, said_so_far
from orchestrator.engine.live import LiveRun
from orchestrator.engine.record import MAX_TEXT, Record
from orchestrator.engine.turns import too_late
from orchestrator.engine.unfinished import UNFINISHED_CHARS, UnfinishedText
from orchestrator.store.runs import Store

SECRET = "sk-very-secret-0123456789"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
def record(tmp_path: Path, told: list[Event]) -> Iterator[Record]:
    store = Store(tmp_path / "runs.sqlite", "o1")
    try:
        yield Record("r1", store, [told.append], secrets=(SECRET,))
    finally:
        store.close()


def test_pieces_are_told_once_a_second_and_make_the_text_again(
    record: Record, told: list[Event], clock: Clock
) -> None:
    unfinished = UnfinishedText(clock)
    for number in range(30):
        unfinished.hear(f"word {number}, ", begins=number == 0)
        unfinished.tell(record)
        clock.now += 0.1
    unfinished.tell(record)
    whole = "".join(f"word {number}, " for number in range(30))
    assert [event.kind for event in told] == ["saying"] * len(told)
    assert len(told) <= 4
    assert whole.startswith(said_so_far(told))
    assert unfinished.text(record) == whole
    unfinished.hear("Something else", begins=True)
    clock.now += 1
    unfinished.tell(record)
    assert said_so_far(told) == "Something else"
    unfinished.end()
    assert unfinished.text(record) == ""
    record.note("text", "Something else entirely")
    assert said_so_far(told) == "Something else entirely"


@pytest.mark.parametrize("cut", range(1, len(SECRET)))
def test_a_secret_that_comes_in_pieces_is_not_told(
    record: Record, told: list[Event], clock: Clock, cut: int
) -> None:
    unfinished = UnfinishedText(clock)
    unfinished.hear(f"It is {SECRET[:cut]}", begins=True)
    unfinished.tell(record)
    clock.now += 1
    assert unfinished.text(record) in ("It is", "It is ")
    unfinished.hear(f"{SECRET[cut:]} and more.", begins=False)
    unfinished.tell(record)
    said = said_so_far(told)
    assert "It is " in said
    assert "sk-" not in said
    assert "0123456789" not in said


def test_a_secret_does_not_lie_across_two_events(
    record: Record, told: list[Event], clock: Clock
) -> None:
    unfinished = UnfinishedText(clock)
    unfinished.hear("x" * (MAX_TEXT - 5) + SECRET + "y" * MAX_TEXT, begins=True)
    unfinished.tell(record)
    assert len(told) > 1
    assert "very" not in said_so_far(told)


def test_what_is_kept_is_bounded(record: Record, told: list[Event], clock: Clock) -> None:
    unfinished = UnfinishedText(clock)
    for _ in range(3):
        unfinished.hear("z" * (2 * UNFINISHED_CHARS), begins=True)
        unfinished.hear("z" * 1000, begins=False)
        unfinished.tell(record)
        clock.now += 1
    assert UNFINISHED_CHARS - 100 < len(unfinished.text(record)) <= UNFINISHED_CHARS
    told_chars = sum(len(event.text) for event in told)
    assert UNFINISHED_CHARS - 100 < told_chars <= UNFINISHED_CHARS


@pytest.mark.parametrize("said", ["", "half an answer"])
def test_a_run_out_of_time_points_to_what_was_said_only_if_something_was(said: str) -> None:
    plan = SimpleNamespace(agent=SimpleNamespace(name="a", timeout_ms=3000), timeout_seconds=3.0)
    live = cast("LiveRun", SimpleNamespace(plan=plan, last_text=said))
    assert ("partial_text" in too_late(live)) == bool(said)
