"""A run's time, which stands still while it waits for somebody."""

from __future__ import annotations

from math import inf

import anyio
import pytest

from orchestrator.engine.clock import Clock

TICK = 0.02


async def test_a_block_is_cancelled_when_its_time_is_used_up() -> None:
    clock = Clock(TICK)
    with anyio.fail_after(30):
        with clock.running() as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert clock.spent >= TICK


async def test_time_that_is_stopped_is_not_spent() -> None:
    clock = Clock(1000)
    with clock.running() as scope:
        with clock.stopped():
            before = clock.spent
            assert scope.deadline == inf
            await anyio.sleep(TICK)
            assert clock.spent == before
        await anyio.sleep(TICK)
        assert clock.spent > before


async def test_the_deadline_moves_by_as_long_as_the_clock_stood_still() -> None:
    clock = Clock(1000)
    with clock.running() as scope:
        first = scope.deadline
        began = anyio.current_time()
        with clock.stopped():
            await anyio.sleep(TICK)
            stood = anyio.current_time() - began
        moved = scope.deadline - first
        assert moved >= stood - 0.001  # the seconds in between are counted by one clock
        assert moved == pytest.approx(anyio.current_time() - began, abs=0.5)


async def test_stops_may_overlap_and_the_last_one_to_end_counts() -> None:
    clock = Clock(1000)
    with clock.running() as scope:
        first, second = clock.stopped(), clock.stopped()
        first.__enter__()
        second.__enter__()
        before = clock.spent
        first.__exit__(None, None, None)
        assert scope.deadline == inf
        await anyio.sleep(TICK)
        assert clock.spent == before
        second.__exit__(None, None, None)
        assert scope.deadline < inf


async def test_a_run_that_waits_longer_than_its_time_goes_on_afterwards() -> None:
    clock = Clock(20 * TICK)
    with anyio.fail_after(30), clock.running() as scope:
        with clock.stopped():
            await anyio.sleep(40 * TICK)
        assert not scope.cancel_called
    assert not scope.cancelled_caught


async def test_whoever_waits_for_a_time_at_work_waits_longer_while_it_stands_still() -> None:
    clock = Clock(1000)
    told: list[float] = []

    async def wait() -> None:
        await clock.until(2 * TICK)
        told.append(clock.spent)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            with clock.running():
                tasks.start_soon(wait)
                with clock.stopped():
                    await anyio.sleep(4 * TICK)
                    assert told == []
                await clock.until(2 * TICK)
    assert told[0] >= 2 * TICK


async def test_nothing_is_spent_before_the_run_or_after_it() -> None:
    clock = Clock(1000)
    with clock.stopped():
        pass
    assert clock.spent == 0
    with clock.running():
        await anyio.sleep(TICK)
    spent = clock.spent
    assert spent > 0
    with clock.stopped():
        await anyio.sleep(TICK)
    await anyio.sleep(TICK)
    assert clock.spent == spent


async def test_who_waits_for_a_run_that_waits_spends_no_time_either() -> None:
    outer = Clock(1000)
    inner = Clock(1000, outer=outer)
    with outer.running() as scope, inner.running():
        with inner.stopped():
            before = outer.spent
            assert scope.deadline == inf
            await anyio.sleep(TICK)
            assert outer.spent == before
        await anyio.sleep(TICK)
        assert outer.spent > before
