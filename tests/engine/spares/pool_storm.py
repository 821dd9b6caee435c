"""A storm: claims and returns, many at once, while spares are killed, forgotten and fail."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from orchestrator.engine.spares.shelf import Maker, PoolLimits
from orchestrator.engine.spares.spare import WaitingCli
from orchestrator.errors import OperatorError, OrchestratorError, WireLost
from tests.engine.spares.pool_stage import Stage, say
from tests.engine.spares.watched_pool import PoolEvent, PoolState, WatchedPool

AGENTS = ("reader", "writer", "tester")
SPARES = 2
"""Wanted of each."""
AT_ONCE = 4
"""Claims."""
PLENTY = 1 << 40

MAKE_FAILS = 0.05
"""Of all attempts."""
FAULTS_PER_CLAIM = 0.3
KILLED_IN_USE = 0.05
IN_A_HURRY = 0.2
"""Claims that do not wait for a spare to be there."""
MEMORY_COMES_BACK = 0.5
"""With each claim."""
WAIT_SECONDS = 10.0
"""For the others: memory may be short just now."""


class MadeToFail(OperatorError):
    """What a maker raises now and then."""


class Storm:
    """Claims from one pool, does harm to it, and checks what every claim got."""

    def __init__(self, stage: Stage, seed: int, restart: Callable[[], Awaitable[None]] | None):
        self._stage = stage
        self._random = random.Random(seed)
        self._restart = restart
        self._available = PLENTY
        self._generation = dict.fromkeys(AGENTS, 0)
        self._left = 0
        self._restarts = 0
        self._engine_is_away = False
        self._harmed: set[str] = set()
        self._used: set[str] = set()
        self.got = 0
        self.refused = 0
        """Claims that failed as they were meant to: the maker did."""
        self.lost = 0
        """Claims whose container was killed while they had it."""
        self.events: list[PoolEvent] = []

    async def blow(self, claims: int) -> PoolState:
        """So many claims; returns what the pool said when all was quiet again, and is gone."""
        self._left = claims
        limits = PoolLimits(quiet_seconds=0, check_seconds=0.02, backoff_seconds=0.02)
        pool = WatchedPool[WaitingCli](
            limits, available_bytes=lambda: self._available, on_event=self.events.append
        )
        async with pool:
            for agent in AGENTS:
                self._want(pool, agent)
            async with anyio.create_task_group() as tasks:
                for _ in range(AT_ONCE):
                    tasks.start_soon(self._claim_on, pool)
            self._available = PLENTY
            state = await pool.until(_at_rest)
            assert await self._stage.names() == set(self._stage.spares)
            assert len(self._stage.spares) == state.alive == SPARES * len(AGENTS)
        self._check(pool.state)
        assert await self._stage.names() == set()
        return pool.state

    def _check(self, state: PoolState) -> None:
        kinds = [event.kind for event in self.events]
        assert state.alive == state.making == 0
        assert state.made == state.claimed + sum(state.discarded.values())
        assert state.claimed + state.cold == self.got == len(self._used)
        assert (state.made, state.claimed) == (kinds.count("made"), kinds.count("claimed"))
        assert state.failed == kinds.count("make_failed")
        assert self._restarts or "close_failed" not in kinds

    async def _claim_on(self, pool: WatchedPool[WaitingCli]) -> None:
        while self._left > 0:
            self._left -= 1
            agent = self._random.choice(AGENTS)
            if self._random.random() < FAULTS_PER_CLAIM:
                await self._do_harm(pool)
            if self._random.random() < MEMORY_COMES_BACK:
                self._available = PLENTY
            if self._random.random() > IN_A_HURRY:
                with anyio.move_on_after(WAIT_SECONDS):
                    await pool.until(self._could_be_claimed(agent))
            key, restarts = self._key(agent), self._restarts
            try:
                async with pool.claimed(key, self._maker(key)) as spare:
                    await self._use(key, spare)
            except MadeToFail:
                self.refused += 1
            except OrchestratorError:  # there was no engine to make one
                assert self._restarts > restarts or self._engine_is_away
                self.refused += 1
            _check_sum(pool.state)

    async def _use(self, key: str, spare: WaitingCli) -> None:
        assert spare.name not in self._used, "used twice"
        assert self._stage.made_for[spare.name] == key, "made for another"
        self._used.add(spare.name)
        self.got += 1
        restarts = self._restarts
        if self._random.random() < KILLED_IN_USE and not self._engine_is_away:
            self._harmed.add(spare.name)
            await self._stage.kill(spare)
        try:
            await say(spare.process, spare.name.encode())
        except (WireLost, OSError, EOFError):
            reason = spare.name in self._harmed or self._restarts > restarts
            assert reason or self._engine_is_away, "lost without a reason"
            self.lost += 1

    async def _do_harm(self, pool: WatchedPool[WaitingCli]) -> None:
        match self._random.choice(("kill", "kill", "forget", "memory", "restart")):
            case "kill" if self._stage.spares and not self._engine_is_away:
                victim = self._random.choice(sorted(self._stage.spares))
                self._harmed.add(victim)
                await self._stage.kill(self._stage.spares[victim])
            case "forget":
                agent = self._random.choice(AGENTS)
                pool.forget(self._key(agent))
                self._generation[agent] += 1
                self._want(pool, agent)
            case "memory":
                self._available = 0
            case "restart" if self._restart is not None and not self._engine_is_away:
                self._harmed |= set(self._stage.spares)
                self._restarts += 1
                self._engine_is_away = True
                try:
                    await self._restart()
                finally:
                    self._engine_is_away = False

    def _could_be_claimed(self, agent: str) -> Callable[[PoolState], bool]:
        return lambda state: state.memory_short or state.waiting_by_key[self._key(agent)] > 0

    def _key(self, agent: str) -> str:
        return f"{agent}-{self._generation[agent]}"

    def _want(self, pool: WatchedPool[WaitingCli], agent: str) -> None:
        key = self._key(agent)
        pool.want(key, SPARES, self._maker(key))

    def _maker(self, key: str) -> Maker[WaitingCli]:
        @asynccontextmanager
        async def make() -> AsyncIterator[WaitingCli]:
            if self._random.random() < MAKE_FAILS:
                raise MadeToFail("this one was to fail; try again")
            async with self._stage.maker(key)() as spare:
                yield spare

        return make


def _at_rest(state: PoolState) -> bool:
    _check_sum(state)
    return not (state.making or state.closing or state.in_use) and all(
        count == SPARES for count in state.waiting_by_key.values()
    )


def _check_sum(state: PoolState) -> None:
    """What a pool says of itself adds up, at every moment."""
    assert state.made == state.claimed + sum(state.discarded.values()) + state.waiting
