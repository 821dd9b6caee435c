"""A stage: a container with an agent's CLI in it, and what the two can reach, for a run to play on.

It may be made for one run, wait for one as a spare, or serve one after another in a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio

from orchestrator.containers.exhaustion import Strain
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import Launch
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.spares.spare import WaitingCli
from orchestrator.errors import WireLost
from orchestrator.gateway.reach import Reach
from orchestrator.wire.host import Process

READY_SECONDS = 120.0
"""For a CLI to start, on a machine under load."""


@dataclass
class Stage:
    """Ready to be spoken to."""

    container: Container
    process: Process
    conversation: Conversation
    reach: Reach
    strain: Strain = field(default_factory=Strain)
    """Limits that were hit in earlier runs, if there were any."""
    disk_seen: bool = False
    """A run before has looked at what its files take up; the next one need not do so at once."""
    waited: bool = False
    """It was there before the run, which is to be answered at once."""
    shared: bool = False
    """Others use it after this run: what it has used is known when the run ends, not later."""


class WaitingStage(WaitingCli):
    """A stage that nobody plays on yet: a spare."""

    def __init__(self, stage: Stage, memory_bytes: int) -> None:
        super().__init__(stage.container, stage.process, memory_bytes)
        self.stage = stage
        stage.waited = True


@asynccontextmanager
async def open_stage(
    held: AbstractAsyncContextManager[Container],
    launch: Launch,
    reach: Reach,
    *,
    initialize: bool = False,
    rehearse: bool = False,
) -> AsyncIterator[Stage]:
    """A stage in a container of its own; leaving the block leaves nothing of either."""
    async with held as container:
        await reach.offer(container)
        async with open_cli(
            container, launch, reach, initialize=initialize, rehearse=rehearse
        ) as stage:
            yield stage


@asynccontextmanager
async def open_cli(
    container: Container,
    launch: Launch,
    reach: Reach,
    *,
    initialize: bool = False,
    rehearse: bool = False,
) -> AsyncIterator[Stage]:
    """The CLI in a container that is there already; leaving the block ends the CLI."""
    async with container.spawn(launch) as process:
        conversation = Conversation(process)
        pump = asyncio.create_task(conversation.pump())
        try:
            if initialize:
                await _ready(container, conversation, rehearse)
            yield Stage(container, process, conversation, reach)
        finally:
            reach.revoke()
            pump.cancel()
            with anyio.CancelScope(shield=True), suppress(asyncio.CancelledError):
                await pump


async def _ready(container: Container, conversation: Conversation, rehearse: bool) -> None:
    try:
        with anyio.fail_after(READY_SECONDS):
            await conversation.initialize()
            if rehearse:
                await conversation.rehearse()
    except (TimeoutError, CliEnded) as exc:
        said = conversation.last_words() or "no last words"
        raise WireLost(f"the CLI in {container.name} did not get ready: {said}") from exc
