"""When the orchestrator dies, its containers go: the short version of tests/soak."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.soak.deadman import Engine, How, open_engine, try_holder, try_reaper

CONTAINERS = 7
"""One for each kind of mischief."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with open_engine() as opened:
        yield opened


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_holder_that_goes_away_leaves_no_container(engine: Engine, how: How) -> None:
    trial = try_holder(engine, how, CONTAINERS)

    assert trial.left == ()
    assert len(trial.gone) == CONTAINERS


def test_a_holder_that_hangs_loses_its_containers_when_the_lease_runs_out(engine: Engine) -> None:
    trial = try_holder(engine, "hung", CONTAINERS, lease_seconds=5.0)

    assert trial.left == ()
    assert len(trial.gone) == CONTAINERS


def test_what_a_holder_left_that_was_killed_while_starting_is_reaped(engine: Engine) -> None:
    assert try_reaper(engine, CONTAINERS) == ()
