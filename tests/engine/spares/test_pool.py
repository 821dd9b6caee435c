"""What a pool of spares promises, on the engine and on the fake runtime alike."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import anyio
import anyio.lowlevel
import pytest

from orchestrator.app import open_runtime
from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.fake import FakeEngine, FakeRuntime, _MemoryLink
from orchestrator.domain.container import MIB, File, Launch
from orchestrator.engine.spares.shelf import (
    Gate,
    Maker,
    MemoryGuard,
    PoolLimits,
    available_bytes,
)
from orchestrator.engine.spares.spare import WaitingCli, read_memory_stat, spare_key
from orchestrator.errors import EngineRefused, NameTaken, WireLost
from orchestrator.settings import Settings
from tests.containers.docker.engine_proxy import engine_proxy
from tests.containers.fake_programs import PROGRAMS
from tests.engine.spares.pool_stage import CAT, Stage, say
from tests.engine.spares.pool_storm import Storm
from tests.engine.spares.watched_pool import PoolEvent, WatchedPool

PATIENCE = 100
STORM_CLAIMS = {"fake": 100, "docker": 8}
"""tests/soak has a thousand of them."""
STORM_SEED = 5

EAGER = PoolLimits(
    quiet_seconds=0,
    check_seconds=0.01,
    backoff_seconds=0.01,
    min_available_bytes=0,
    enough_available_bytes=0,
)
"""Waits for nobody."""

TIB = 1 << 40
SCARCE = EAGER.model_copy(
    update={"min_available_bytes": 100 * TIB, "enough_available_bytes": 200 * TIB}
)
"""On a machine large enough for a spare to make no difference."""


def docker_stage(runtime: DockerRuntime, image: str) -> Stage:
    async def kill(spare: WaitingCli) -> None:
        with suppress(EngineRefused, NameTaken):  # it is going already
            await runtime.engine.call(runtime.engine.api.kill, spare.name)

    return Stage(runtime, image, kill)


def fake_stage(image: str) -> Stage:
    async def kill(spare: WaitingCli) -> None:
        link = spare.container.wire._link
        assert isinstance(link, _MemoryLink)
        link.hang_up(137)

    engine = FakeEngine(images=frozenset({image}), programs=PROGRAMS)
    return Stage(FakeRuntime(engine), image, kill)


@pytest.fixture
def stage(request: pytest.FixtureRequest) -> Stage:
    """Without an engine, which keeps the same promises, unless a test says `both`."""
    if getattr(request, "param", "fake") == "fake":
        return fake_stage("image")
    return docker_stage(request.getfixturevalue("runtime"), request.getfixturevalue("image"))


both = pytest.mark.parametrize("stage", ["fake", "docker"], indirect=True)


@pytest.fixture
def fake() -> Stage:
    return fake_stage("image")


@pytest.fixture
def real(runtime: DockerRuntime, image: str) -> Stage:
    return docker_stage(runtime, image)


@asynccontextmanager
async def filled(
    stage: Stage, count: int, limits: PoolLimits = EAGER, **options: object
) -> AsyncIterator[WatchedPool[WaitingCli]]:
    """A pool with so many spares of one key."""
    async with WatchedPool[WaitingCli](limits, **options) as pool:  # type: ignore[arg-type]
        pool.want("key", count, stage.maker("key"))
        await pool.until(lambda state: state.waiting == count)
        yield pool


def never_ready(stage: Stage, begun: anyio.Event) -> Maker[WaitingCli]:
    """Makes a container, and then takes for ever."""

    @asynccontextmanager
    async def make() -> AsyncIterator[WaitingCli]:
        async with stage.maker("key")() as spare:
            begun.set()
            await anyio.sleep_forever()
            yield spare

    return make


# Claims


@both
async def test_a_claim_gets_a_spare_that_works_and_it_is_gone_afterwards_and_replaced(
    stage: Stage,
) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 1) as pool:
            async with pool.claimed("key", stage.maker("key")) as spare:
                await say(spare.process, b"hello")
            assert spare.name not in await stage.names()
            state = await pool.until(lambda state: state.waiting == 1)
            assert spare.name not in stage.spares

    assert (state.made, state.claimed, state.cold, state.in_use) == (2, 1, 0, 0)
    assert await stage.names() == set()


async def test_where_no_spare_waits_one_is_made_on_the_spot(stage: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with WatchedPool[WaitingCli](EAGER) as pool:
            async with pool.claim("key") as spare:
                assert spare is None
            async with pool.claimed("key", stage.maker("key")) as cold:
                await say(cold.process, b"hello")
                assert pool.state.in_use == 1
            assert await stage.names() == set()

    assert (pool.state.cold, pool.state.claimed, pool.state.in_use) == (1, 0, 0)


async def test_of_a_hundred_claims_at_once_each_of_three_spares_goes_to_one(stage: Stage) -> None:
    got: list[str] = []
    empty_handed = 0
    asked = anyio.Event()

    async def claim(pool: WatchedPool[WaitingCli]) -> None:
        nonlocal empty_handed
        async with pool.claim("key") as spare:
            if spare is None:
                empty_handed += 1
            else:
                got.append(spare.name)
                await say(spare.process, spare.name.encode())
            if len(got) + empty_handed == 100:
                asked.set()
            await asked.wait()

    with anyio.fail_after(PATIENCE):
        async with filled(stage, 3) as pool:
            with pool.gate.starting():  # so that none is made in between
                async with anyio.create_task_group() as tasks:
                    for _ in range(100):
                        tasks.start_soon(claim, pool)

    assert (len(got), len(set(got)), empty_handed) == (3, 3, 97)


@both
async def test_a_claim_that_is_cancelled_leaves_nothing_behind(stage: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 1) as pool:
            with anyio.CancelScope() as scope:
                async with pool.claimed("key", stage.maker("key")) as spare:
                    scope.cancel()
                    await anyio.sleep_forever()
            assert spare.name not in await stage.names()
            with anyio.CancelScope() as scope:
                scope.cancel()
                async with pool.claimed("key", stage.maker("key")):
                    pytest.fail("cancelled before")
            await pool.until(lambda state: state.waiting == 1 and not state.closing)
            assert await stage.names() == set(stage.spares)


async def test_an_error_in_the_block_comes_out_as_it_is(fake: Stage) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(KeyError):
        async with filled(fake, 1) as pool, pool.claimed("key", fake.maker("key")):
            raise KeyError("mine")

    assert await fake.names() == set()


@pytest.mark.waits
async def test_a_spare_that_somebody_froze_is_not_handed_out_and_goes(
    real: Stage, runtime: DockerRuntime
) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(real, 1) as pool:
            (frozen,) = real.spares
            await runtime.engine.call(runtime.engine.api.pause, frozen)
            async with pool.claim("key") as spare:
                assert spare is None or spare.name != frozen
            await pool.until(lambda state: not state.closing and state.waiting == 1)
            assert frozen not in await real.names()

    assert pool.state.discarded["silent"] == 1


# What happens to them while they wait


@both
async def test_a_spare_that_is_killed_from_outside_is_noticed_and_replaced(stage: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 2) as pool:
            victim = next(iter(stage.spares))
            await stage.kill(stage.spares[victim])
            state = await pool.until(lambda state: state.made == 3 and state.waiting == 2)
            assert victim not in stage.spares

    assert state.discarded == {"dead": 1}


async def test_a_spare_whose_cli_exits_is_noticed_and_replaced(real: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(real, 1) as pool:
            (spare,) = real.spares.values()
            spare.process.signal(signal.SIGKILL)
            state = await pool.until(lambda state: state.made == 2 and state.waiting == 1)

    assert state.discarded == {"dead": 1}


async def test_an_engine_whose_connections_all_break_takes_its_spares_and_they_are_made_again(
    runtime: DockerRuntime, image: str, settings: Settings
) -> None:
    with anyio.fail_after(PATIENCE):
        async with engine_proxy(runtime.engine.address) as proxy:
            await proxy.serve_tcp()
            through = settings.model_copy(update={"engine_candidates": (proxy.address,)})
            async with open_runtime(through) as other:
                stage = docker_stage(other, image)
                async with filled(stage, 2) as pool:
                    before = set(stage.spares)
                    for writer in [*proxy._writers]:
                        writer.transport.abort()
                    await pool.until(lambda state: state.discarded.get("dead") == 2)
                    await pool.until(lambda state: state.waiting == 2 and not state.closing)
                    assert await stage.names() == set(stage.spares)
                    assert not before & set(stage.spares)

    assert await runtime.list() == ()


async def test_spares_that_die_young_again_and_again_are_made_ever_more_slowly(
    fake: Stage,
) -> None:
    limits = EAGER.model_copy(update={"backoff_seconds": PATIENCE})
    with anyio.fail_after(PATIENCE):
        async with filled(fake, 1, limits) as pool:
            await fake.kill(*fake.spares.values())
            await pool.until(lambda state: state.made == 2 and state.waiting == 1)
            await fake.kill(*fake.spares.values())
            await pool.until(lambda state: state.discarded == {"dead": 2})
            for _ in range(100):
                await anyio.lowlevel.checkpoint()

    assert pool.state.made == 2


async def test_an_old_spare_is_replaced(stage: Stage) -> None:
    limits = EAGER.model_copy(update={"max_age_seconds": 0.3})
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 1, limits) as pool:
            await pool.until(lambda state: state.discarded.get("old", 0) >= 2)

    assert await stage.names() == set()


@both
async def test_forgotten_spares_go_and_no_claim_gets_one(stage: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 2) as pool:
            pool.forget("key")
            async with pool.claim("key") as spare:
                assert spare is None
            state = await pool.until(lambda state: not state.alive)
            assert await stage.names() == set()

    assert state.discarded == {"forgotten": 2}


async def test_a_spare_that_is_forgotten_while_it_is_made_is_never_offered(stage: Stage) -> None:
    begun = anyio.Event()

    with anyio.fail_after(PATIENCE):
        async with WatchedPool[WaitingCli](EAGER) as pool:
            pool.want("key", 1, never_ready(stage, begun))
            await begun.wait()
            pool.forget("key")
            await pool.until(lambda state: not state.making)
            assert await stage.names() == set()
            pool.want("key", 1, stage.maker("key"))
            await pool.until(lambda state: state.waiting == 1)

    assert (pool.state.made, pool.state.failed) == (1, 0)


async def test_fewer_that_are_wanted_are_fewer_that_wait(fake: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(fake, 3) as pool:
            oldest = list(fake.spares)[:2]
            pool.want("key", 1, fake.maker("key"))
            state = await pool.until(lambda state: state.alive == 1)

    assert state.discarded == {"surplus": 2}
    assert not set(oldest) & set(fake.spares)


# Making them


async def test_a_maker_that_fails_is_told_and_tried_again_and_no_run_hears_of_it(
    stage: Stage,
) -> None:
    failures = 2
    told: list[PoolEvent] = []

    @asynccontextmanager
    async def make() -> AsyncIterator[WaitingCli]:
        nonlocal failures
        if failures:
            failures -= 1
            raise EngineRefused("no room on the disk; make some")
        async with stage.maker("key")() as spare:
            yield spare

    with anyio.fail_after(PATIENCE):
        async with WatchedPool[WaitingCli](EAGER, on_event=told.append) as pool:
            pool.want("key", 1, make)
            await pool.until(lambda state: state.failed == 1)
            async with pool.claimed("key", stage.maker("key")) as cold:
                await say(cold.process, b"hello")
            await pool.until(lambda state: state.waiting == 1)

    failed = PoolEvent(kind="make_failed", key="key", text="no room on the disk; make some")
    assert [event for event in told if event.kind == "make_failed"] == [failed, failed]
    assert (pool.state.made, pool.state.failed, pool.state.cold) == (1, 2, 1)


async def test_a_maker_with_a_bug_does_not_end_the_pool_and_its_words_are_not_told(
    fake: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[PoolEvent] = []

    def broken() -> AbstractAsyncContextManager[WaitingCli]:
        raise KeyError("sk-secret")

    with anyio.fail_after(PATIENCE):
        async with filled(fake, 1, on_event=told.append) as pool:
            pool.want("broken", 1, broken)
            await pool.until(lambda state: state.failed >= 2)
            assert pool.state.waiting_by_key == {"key": 1, "broken": 0}

    texts = {event.text for event in told if event.kind == "make_failed"}
    assert texts == {"KeyError; the log says more"}


async def test_nothing_is_made_while_a_run_starts(fake: Stage) -> None:
    gate = Gate()
    with anyio.fail_after(PATIENCE):
        async with filled(fake, 1, gate=gate) as pool:
            with gate.starting():
                async with pool.claim("key") as spare:
                    assert spare is not None
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                assert (pool.state.making, pool.state.made) == (0, 1)
            await pool.until(lambda state: state.made == 2)


# Room


async def test_memory_that_runs_short_is_given_back_oldest_first_until_there_is_enough(
    stage: Stage,
) -> None:
    names: list[str] = []
    told: list[str] = []

    def available() -> int:
        if len(stage.spares) > 1 and short:
            return 50 * TIB
        return 150 * TIB  # above the floor, but not yet enough

    def listen(event: PoolEvent) -> None:
        told.append(event.kind)
        if event.kind == "discarded":
            names.append(event.name)

    short = False
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 3, SCARCE, available_bytes=available, on_event=listen) as pool:
            made = list(stage.spares)
            short = True
            state = await pool.until(lambda state: state.alive == 1)
            assert names == made[:2]
            assert state.memory_short
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert pool.state.made == 3
            assert told.count("memory_short") == 1

    assert pool.state.discarded == {"memory": 2, "closing": 1}


def test_short_memory_is_over_when_there_is_enough_and_not_before() -> None:
    available = 0
    room = MemoryGuard(SCARCE, lambda: available * TIB)

    def look(now: int) -> tuple[bool, bool]:
        nonlocal available
        available = now
        return room.look(), room.short

    seen = [look(now) for now in (150, 99, 150, 199, 200, 150)]
    assert seen == [
        (False, False),
        (True, True),
        (False, True),
        (False, True),
        (False, False),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("count", "held", "expected", "fits"),
    [(7, 0, 0, True), (8, 0, 0, False), (1, 60, 40, True), (1, 60, 41, False), (0, 0, 51, False)],
    ids=["below", "too many", "just right", "too much", "more than is left"],
)
def test_one_more_fits_below_every_cap(count: int, held: int, expected: int, fits: bool) -> None:
    limits = EAGER.model_copy(update={"max_memory_bytes": 100, "min_available_bytes": 100})

    assert MemoryGuard(limits, lambda: 150).fits(count, held, expected) is fits


def test_a_machine_that_does_not_tell_how_much_is_left_has_its_caps_only() -> None:
    def unknown() -> int:
        raise OSError("no /proc here")

    room = MemoryGuard(EAGER, unknown)

    assert not room.look()
    assert room.fits(0, 0, MIB)


async def test_all_keys_together_stay_below_the_cap_and_share_it(fake: Stage) -> None:
    limits = EAGER.model_copy(update={"max_spares": 4})
    with anyio.fail_after(PATIENCE):
        async with WatchedPool[WaitingCli](limits) as pool:
            for key in ("a", "b"):
                pool.want(key, 4, fake.maker(key))
            state = await pool.until(lambda state: state.waiting == 4)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            assert pool.state.made == 4

    assert state.waiting_by_key == {"a": 2, "b": 2}


async def test_spares_stay_below_the_cap_on_their_memory(real: Stage) -> None:
    limits = EAGER.model_copy(update={"max_memory_bytes": 1})
    with anyio.fail_after(PATIENCE):
        async with WatchedPool[WaitingCli](limits) as pool:
            pool.want("key", 2, real.maker("key"))
            await pool.until(lambda state: state.discarded.get("memory") == 1 and not state.alive)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()

    assert pool.state.made == 1


async def test_a_spare_tells_what_memory_it_takes(real: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(real, 1) as pool:
            assert MIB < pool.state.memory_bytes < 64 * MIB


def test_memory_is_what_goes_back_to_the_machine_in_either_cgroup_version() -> None:
    v1 = b"cache 900\nrss 5\nshmem 2\ntotal_cache 900\ntotal_rss 50\ntotal_shmem 20\n"
    v2 = b"anon 70\nfile 900\nshmem 8\n"

    assert [read_memory_stat(text) for text in (v1, v2, b"", b"anon many\n\xff")] == [70, 78, 0, 0]


def test_this_machine_tells_how_much_memory_is_available() -> None:
    assert available_bytes() > MIB


# The end


@pytest.mark.parametrize(
    ("stage", "when"),
    [("fake", "making"), ("fake", "waiting"), ("fake", "claimed"), ("docker", "making")],
    indirect=["stage"],
)
async def test_a_pool_that_ends_takes_everything_with_it(stage: Stage, when: str) -> None:
    with anyio.fail_after(PATIENCE):
        async with filled(stage, 2) as pool:
            if when == "making":
                begun = anyio.Event()
                pool.want("key", 3, never_ready(stage, begun))
                await begun.wait()
            elif when == "claimed":
                async with pool.claim("key") as spare:
                    assert spare is not None
                    await pool.__aexit__()
                    with pytest.raises((WireLost, OSError)):
                        await say(spare.process, b"hello")

        assert await stage.names() == set()
    assert pool.state.alive == pool.state.making == 0


async def test_a_pool_whose_owner_is_cancelled_takes_everything_with_it(stage: Stage) -> None:
    with anyio.fail_after(PATIENCE):
        with anyio.CancelScope() as scope:
            async with filled(stage, 2):
                scope.cancel()
                await anyio.sleep_forever()

        assert await stage.names() == set()


# Pausing


async def test_a_paused_spare_is_stopped_until_it_is_claimed(real: Stage) -> None:
    limits = EAGER.model_copy(update={"pause_after_seconds": 0})
    with anyio.fail_after(PATIENCE):
        async with filled(real, 1, limits) as pool:
            (waiting,) = real.spares.values()
            while await _state(waiting) != "T":
                pass
            async with pool.claim("key") as spare:
                assert spare is waiting
                await say(spare.process, b"hello")
                assert await _state(spare) in "SR"


async def test_a_paused_spare_that_is_killed_is_noticed_and_replaced(real: Stage) -> None:
    limits = EAGER.model_copy(update={"pause_after_seconds": 0})
    with anyio.fail_after(PATIENCE):
        async with filled(real, 1, limits) as pool:
            (spare,) = real.spares.values()
            while await _state(spare) != "T":
                pass
            spare.process.signal(signal.SIGKILL)
            await pool.until(lambda state: state.made == 2 and state.waiting == 1)


async def test_an_orchestrator_that_is_killed_leaves_no_paused_spare(
    runtime: DockerRuntime, image: str, settings: Settings
) -> None:
    argv = [sys.executable, "-m", "tests.engine.spares.pool_holder", str(settings.state_dir), image]
    with anyio.fail_after(PATIENCE):
        async with await anyio.open_process(argv, stderr=None) as holder:
            assert holder.stdout is not None
            try:
                assert (await holder.stdout.receive()).startswith(b"paused")
                held = await runtime.list()
                fates = [runtime.events.watch(info.id) for info in held]
                assert [info.status for info in held] == ["running", "running"]
            finally:
                holder.kill()
            for fate in fates:
                await fate.gone.wait()
            while await runtime.list():
                await anyio.sleep(0.05)


async def _state(spare: WaitingCli) -> str:
    """Of the CLI's process, by the kernel's word: T is stopped."""
    path = f"/proc/{spare.process.pid}/stat"
    done = await spare.container.run(Launch(argv=("cat", path)))
    return done.stdout.decode().rpartition(")")[2].split()[0]


# Keys


def test_a_key_is_the_same_for_spares_that_can_stand_in_for_each_other(fake: Stage) -> None:
    spec = fake.spec
    file = File(path="/tmp/a", content=b"\xff")
    launch = Launch(argv=("cat",), env={"A": "1", "B": "2"}, files=(file,))
    same = Launch(argv=("cat",), env={"B": "2", "A": "1"}, files=(file,))
    others = [
        spare_key(spec, launch, "2"),
        spare_key(spec, CAT, "1"),
        spare_key(spec.model_copy(update={"lease_seconds": 9.0}), launch, "1"),
        spare_key(spec, launch.model_copy(update={"files": ()}), "1"),
    ]

    assert spare_key(spec, launch, "1") == spare_key(spec, same, "1")
    assert len({*others, spare_key(spec, launch, "1")}) == 5


# All at once


@both
async def test_a_storm_of_claims_and_faults_leaves_no_leak_and_reuses_nothing(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    claims = STORM_CLAIMS[request.node.callspec.params["stage"]]
    with anyio.fail_after(2 * PATIENCE):
        state = await Storm(stage, STORM_SEED, None).blow(claims)

    assert state.claimed > claims // 4
