"""A stage: a container with an agent's CLI in it, and what the two can reach, for a run to use.

It may be made for one run, wait for one as a spare, or serve one after another in a session.
"""

from __future__ import annotations

import time

from orchestrator.containers import exhaustion
from orchestrator.containers.exhaustion import DiskWatch, Hit, Strain
from orchestrator.containers.runtime import Container
from orchestrator.engine.conversation import Conversation
from orchestrator.engine.spares.spare import WaitingCli
from orchestrator.gateway.reach import Reach


class LimitCounter:
    """Which limits of a container were hit, run by run: the kernel only ever counts on."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._before = Strain()

    async def hits(self) -> tuple[Hit, ...]:
        """Limits that were hit since the last `take_hits`. Bounded, and raises nothing."""
        return self._new(await exhaustion.ask(self._container))

    async def take_hits(self) -> tuple[Hit, ...]:
        """The same, and the next call tells only of what is hit after this one."""
        strain = await exhaustion.ask(self._container)
        hits, self._before = self._new(strain), strain
        return hits

    def _new(self, strain: Strain) -> tuple[Hit, ...]:
        return exhaustion.hits(strain.since(self._before), self._container.spec)


class Stage:
    """A container and its CLI, which can be spoken to."""

    def __init__(
        self,
        container: Container,
        conversation: Conversation,
        reach: Reach,
        *,
        limits: LimitCounter | None = None,
        waited: bool = False,
    ) -> None:
        self.container = container
        self.conversation = conversation
        self.reach = reach
        self.limits = limits or LimitCounter(container)
        """The container's own: in a session it outlives the CLI."""
        self.waited = waited
        """The CLI was ready before the run: skip checks that would delay the answer."""
        self.made_at = time.monotonic()
        self._disk_seen = False

    async def until_disk_is_full(self, limit_bytes: int) -> Hit:
        """Measure the container's volumes now and then; returns when they hold too much.

        The first run on a stage measures at once, the next ones after a while.
        """
        at_once, self._disk_seen = not self._disk_seen, True
        return await DiskWatch(self.container, limit_bytes).until_full(at_once=at_once)


class WaitingStage(WaitingCli):
    """A spare: a stage that no run has claimed yet."""

    def __init__(self, stage: Stage, memory_bytes: int) -> None:
        super().__init__(stage.container, stage.conversation.process, memory_bytes)
        self.stage = stage
