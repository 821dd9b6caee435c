"""A run's time, which stands still while it waits for somebody."""

from __future__ import annotations

from math import inf

import anyio
import anyio.lowlevel
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


async def test_a_run_that_has_waited_too_long_spends_time_while_it_still_waits() -> None:
    clock = Clock(1000, may_stop_seconds=TICK)
    with anyio.fail_after(30), clock.running() as scope, clock.stopped():
        await clock.until(2 * TICK)
        assert clock.stands_still()
        assert clock.spent >= 2 * TICK
        left = scope.deadline - anyio.current_time()
        assert clock.spent + left == pytest.approx(1000, abs=1)


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


async def test_time_goes_on_while_the_agent_works_although_somebody_is_waited_for() -> None:
    clock = Clock(1000)
    with clock.running() as scope, clock.stopped():
        with clock.at_work():
            assert not clock.stands_still()
            assert scope.deadline < inf
            before = clock.spent
            await anyio.sleep(TICK)
            assert clock.spent > before
        assert clock.stands_still()
        assert scope.deadline == inf


async def test_an_agent_that_works_now_and_then_while_it_waits_uses_up_its_time() -> None:
    clock = Clock(5 * TICK)
    with anyio.fail_after(30):
        with clock.running() as scope, clock.stopped():
            for _ in range(1000):
                await anyio.sleep(TICK)
                with clock.at_work():
                    await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert clock.spent >= 5 * TICK


async def test_a_late_sign_of_work_costs_no_more_than_may_have_gone_into_it() -> None:
    clock = Clock(1000)
    with clock.running(), clock.stopped():
        await anyio.sleep(5 * TICK)
        before, began = clock.spent, anyio.current_time()
        clock.seen_at_work(TICK)
        assert clock.spent == pytest.approx(before + TICK)
        clock.seen_at_work(TICK)
        between = anyio.current_time() - began  # no more than that has gone by since the first
        assert clock.spent <= before + TICK + between + 0.001


async def test_a_sign_of_work_costs_nothing_while_nobody_is_waited_for() -> None:
    clock = Clock(1000)
    clock.seen_at_work()
    with clock.running():
        with clock.stopped():
            await anyio.sleep(5 * TICK)
        began = anyio.current_time()
        before = clock.spent
        clock.seen_at_work()
        assert clock.spent - before <= anyio.current_time() - began + 0.001
    clock.seen_at_work()


async def test_a_run_goes_on_while_one_that_works_for_it_does_whatever_it_asks() -> None:
    outer = Clock(1000)
    first, second = Clock(1000, outer=outer), Clock(1000, outer=outer)
    with outer.running(), outer.stopped():
        assert outer.stands_still()
        with first.running(), second.running():
            assert not outer.stands_still()
            with first.stopped():
                assert not outer.stands_still()
                with second.stopped():
                    assert outer.stands_still()
                    with second.at_work():
                        assert not outer.stands_still()
        assert outer.stands_still()
    assert not outer.stands_still()


async def test_whoever_waits_for_a_time_hears_of_work_that_is_seen_later() -> None:
    clock = Clock(1000)
    with anyio.fail_after(30), clock.running(), clock.stopped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.until, 2 * TICK)
            await anyio.sleep(3 * TICK)
            clock.seen_at_work()
