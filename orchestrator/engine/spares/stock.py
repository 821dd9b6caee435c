"""Spares for agents that ask for them: which are wanted, and how a run gets one."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio

from orchestrator.catalog import AgentsDir
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Bind
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.spares.pool import Pool
from orchestrator.engine.spares.spare import takes_spares
from orchestrator.engine.stage import WaitingStage
from orchestrator.errors import OrchestratorError

log = logging.getLogger(__name__)

STOCK_LOOK_SECONDS = 1.0
"""How often agents/ is looked at for spares that are wanted, or not any more."""

STOCK_SECONDS = 5.0
"""And how often all else that a spare is made of: an image may have another one's name now, and an
engine that was away be back."""

MAX_ALIKE = 4
"""Kinds of spares of one agent: with its usual spec, and with the last few workspaces."""

MAX_GOING = 8
"""Spares that have been used and go by themselves. With more of them, a run waits for its own."""


class MakeSpare(Protocol):
    """Makes a stage that waits; a rehearsed one answers sooner."""

    def __call__(
        self, prepared: Prepared, *, rehearse: bool
    ) -> AbstractAsyncContextManager[WaitingStage]: ...


class Stock:
    """The spares of all agents."""

    def __init__(
        self,
        pool: Pool[WaitingStage],
        usual: Callable[[AgentSpec], Awaitable[Prepared]],
        make: MakeSpare,
    ) -> None:
        self.pool = pool
        self._prepare = usual
        """What most runs of an agent need."""
        self._make = make
        self._wanted: dict[str, str] = {}
        """Spares that are kept: their key -> their agent, the oldest first."""
        self._stocked: dict[str, tuple[str, str]] = {}
        """What they are made of: the agent and its image, as of now."""
        self._going: set[asyncio.Task[None]] = set()
        self._said: dict[str, str] = {}
        """Why there are no spares, by agent."""

    def counts(self) -> Counter[tuple[str, str]]:
        """Spares by their agent and by what they do."""
        found = Counter[tuple[str, str]]()
        for key, states in self.pool.states().items():
            for state, count in states.items():
                found[self._wanted.get(key, ""), state] += count
        return found

    @asynccontextmanager
    async def claimed(self, prepared: Prepared) -> AsyncIterator[WaitingStage]:
        """A spare, or a stage made now. A spare that was used is removed in the background, unless
        what its processes still do could be seen outside; the pool does not end before that.
        """
        # From before the claim: a refill in the very same moment would slow down this run.
        self.pool.gate.hush(self.pool.limits.quiet_seconds)
        made_now = False
        over, scope = anyio.Event(), anyio.CancelScope()
        got: asyncio.Future[WaitingStage] = asyncio.get_running_loop().create_future()

        def make() -> AbstractAsyncContextManager[WaitingStage]:
            nonlocal made_now
            made_now = True
            return self._make(prepared, rehearse=False)

        async def hold() -> None:
            try:
                with scope:
                    async with self.pool.claimed(prepared.spare_key, make) as waiting:
                        got.set_result(waiting)
                        await over.wait()
            except Exception as exc:
                if got.done():
                    log.exception("a container of %s did not go as it should", prepared.agent.name)
                else:
                    got.set_exception(exc)

        host = asyncio.create_task(hold(), name="a claim")
        try:
            waiting = await asyncio.shield(got)
            self._want_again(prepared)
            yield waiting
        finally:
            over.set()
            if not got.done():
                scope.cancel()
            failed = got.done() and got.exception() is not None
            if got.done() and not (failed or made_now) and self._may_go(prepared, got.result()):
                self._going.add(host)
                host.add_done_callback(self._going.discard)
            else:
                with anyio.CancelScope(shield=True):  # bounded, by the pool and the runtime
                    await asyncio.wait({host})

    def _may_go(self, prepared: Prepared, used: WaitingStage) -> bool:
        """Whether all that a run did is known and done with, though its container still ends."""
        used.stage.reach.revoke()
        mounts = prepared.plan.container.mounts
        writes = any(isinstance(mount, Bind) and not mount.read_only for mount in mounts)
        return not writes and used.stage.reach.model.is_idle and len(self._going) < MAX_GOING

    async def keep_warm(self, agents: AgentsDir) -> None:
        """Have as many spares as the agents ask for, for ever."""
        seen: object = None
        stocked = -math.inf
        while True:
            catalog = agents.current()
            if catalog is not seen or anyio.current_time() - stocked > STOCK_SECONDS:
                seen, stocked = catalog, anyio.current_time()
                try:
                    await self._stock([a for a in catalog.agents.values() if takes_spares(a)])
                except Exception:  # the server, and all that runs in it, can do without spares
                    log.exception("no containers can be kept waiting for calls")
            await anyio.sleep(STOCK_LOOK_SECONDS)

    async def _stock(self, agents: Sequence[AgentSpec]) -> None:
        """Want spares for these agents, and for no others."""
        found = {agent.name: await self._usual(agent) for agent in agents}
        wanted: dict[str, str] = {}  # no await from here on: a claim must not see half of it
        for name, prepared in found.items():
            alike = [key for key, known in self._wanted.items() if known == name]
            if prepared is not None and prepared.spare_key not in alike:
                alike = [prepared.spare_key]  # it has changed: none of the old ones will do
            wanted |= dict.fromkeys(alike, name)
        for key in self._wanted.keys() - wanted.keys():
            self.pool.forget(key)
        self._wanted = wanted
        for name, prepared in found.items():
            if prepared is not None:
                self._stocked[name] = prepared.made_of
                self._want(prepared)

    async def _usual(self, agent: AgentSpec) -> Prepared | None:
        """What most runs of an agent need; None if that cannot be had now."""
        said = ""
        try:
            return await self._prepare(agent)
        except OrchestratorError as exc:
            said = str(exc)
            if self._said.get(agent.name) != said:  # once, not every few seconds
                log.warning("no container of %s waits for a call: %s", agent.name, said)
            return None
        finally:
            self._said[agent.name] = said

    def _want(self, prepared: Prepared) -> None:
        self._wanted[prepared.spare_key] = prepared.agent.name
        self.pool.want(
            prepared.spare_key, prepared.agent.warm, lambda: self._make(prepared, rehearse=True)
        )

    def _want_again(self, prepared: Prepared) -> None:
        """The next run may well be like this one: on the same workspace, for instance."""
        alike = [key for key, name in self._wanted.items() if name == prepared.agent.name]
        if not alike or prepared.spare_key in alike:
            return  # no spares are kept of it, or these are there already
        if prepared.made_of != self._stocked.get(prepared.agent.name):
            return  # the agent has changed since this run began
        for key in alike[1 : len(alike) + 2 - MAX_ALIKE]:
            del self._wanted[key]
            self.pool.forget(key)
        self._want(prepared)
