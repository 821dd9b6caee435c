"""Hundreds of containers, whose holder goes away in every way. SOAK_TRIALS, SOAK_CONTAINERS."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.soak.deadman import Engine, How, Trial, open_engine, summary, try_holder

TRIALS = int(os.environ.get("SOAK_TRIALS", "100"))
CONTAINERS = int(os.environ.get("SOAK_CONTAINERS", "20"))

GONE_SECONDS = 2.0
"""What we promise: so long after the holder is gone, nothing is left."""

LEASE_SECONDS = 2.0

pytestmark = pytest.mark.timeout(0)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


def test_a_killed_holder_leaves_no_container_two_seconds_later(engine: Engine) -> None:
    _repeat(engine, "killed", TRIALS, within=GONE_SECONDS)


def test_closed_wires_leave_no_container_two_seconds_later(engine: Engine) -> None:
    _repeat(engine, "closed", max(1, TRIALS // 5), within=GONE_SECONDS)


def test_a_hung_holder_leaves_no_container_two_seconds_after_the_lease(engine: Engine) -> None:
    _repeat(engine, "hung", max(1, TRIALS // 10), within=LEASE_SECONDS + GONE_SECONDS)


def _repeat(engine: Engine, how: How, times: int, *, within: float) -> None:
    lease_seconds = LEASE_SECONDS if how == "hung" else 60.0
    trials: list[Trial] = []
    for number in range(1, times + 1):
        trial = try_holder(engine, how, CONTAINERS, lease_seconds=lease_seconds)
        trials.append(trial)
        dead = "?" if trial.dead_seconds is None else f"{trial.dead_seconds:.2f}"
        print(f"{how} {number}/{times}: dead {dead} s, gone {trial.seconds:.2f} s", flush=True)
    print(summary(trials))
    late = [trial for trial in trials if trial.left or trial.seconds > within]
    assert late == []
