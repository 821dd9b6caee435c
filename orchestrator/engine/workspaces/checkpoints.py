"""What an agent has changed in its copy so far, saved now and then: its container or this process
may die before the changes are handed back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain.events import Event, EventKind
from orchestrator.engine.record import Record
from orchestrator.errors import OrchestratorError
from orchestrator.workspace.transfer import is_untouched

CHECKPOINT_SECONDS = 60.0
"""How often, besides when the agent waits for its caller or has to try again."""

SHARE = 0.1
"""The part of the time that may go into it: a large tree is saved less often."""

REST: frozenset[EventKind] = frozenset(("asked", "approval_asked", "schema_failed"))


async def keep_checkpoints(
    save: Callable[[], Awaitable[None]], container: Container, record: Record
) -> None:
    """Save for as long as the container lives, and nothing that is saved already.

    The run goes on when that fails; it is told once.
    """
    rest = asyncio.Event()

    def hear(event: Event) -> None:
        if event.kind in REST:
            rest.set()

    record.listen(hear)
    saved: float | None = None
    told = False
    while container.wire.ended is None:
        with anyio.move_on_after(CHECKPOINT_SECONDS):
            await rest.wait()
        rest.clear()
        began = anyio.current_time()
        try:
            if saved is None or not await is_untouched(container, began - saved):
                await save()
                saved = began
        except (OrchestratorError, OSError) as exc:
            if not told and container.wire.ended is None:
                record.note("warning", f"its changes so far could not be saved; it goes on: {exc}")
                told = True
        await anyio.sleep((anyio.current_time() - began) / SHARE)
