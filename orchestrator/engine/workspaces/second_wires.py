"""Sockets, FIFOs and devices in a workspace that an agent is shown while it works.

Those that were there at the start are covered. One that appears later can be reached: it is told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from orchestrator.domain.container import Bind, Cover
from orchestrator.engine.record import Record
from orchestrator.errors import MountRefused
from orchestrator.plan import Plan
from orchestrator.workspace.special_files import covers, in_a_sentence

SECOND_LOOK_SECONDS = 5.0
"""How often a workspace is looked through."""

SECOND_LOOK_SHARE = 0.05
"""The part of the time that may go into it: a large workspace is looked through less often."""


class SecondWires:
    """What of the kind is known of one run's workspace."""

    def __init__(self, plan: Plan, record: Record) -> None:
        mounts = plan.container.mounts
        self._binds = tuple(m for m in mounts if isinstance(m, Bind) and m.identity)
        self._covered = tuple(mount for mount in mounts if isinstance(mount, Cover))
        self._known = {cover.target: cover.over for cover in self._covered}
        self._record = record
        self._unseen = False

    @asynccontextmanager
    async def told(self) -> AsyncIterator[None]:
        """Tell what is covered; in the end, what has appeared."""
        if self._covered:
            self._record.note(
                "warning",
                f"the agent cannot reach {in_a_sentence(self._covered)}: covered, since whatever "
                "listens there would be a way out",
            )
        try:
            yield
        finally:
            if self._binds:
                with anyio.CancelScope(shield=True):  # bounded by what a look goes through
                    await self._look()

    async def keep_looking(self) -> None:
        """Tell what appears meanwhile, for as long as this is not cancelled."""
        took = 0.0
        while self._binds:
            await anyio.sleep(max(SECOND_LOOK_SECONDS, took / SECOND_LOOK_SHARE))
            began = anyio.current_time()
            await self._look()
            took = anyio.current_time() - began

    async def _look(self) -> None:
        try:
            # The end of a run waits for the last look alone.
            found = await anyio.to_thread.run_sync(covers, self._binds, abandon_on_cancel=True)
        except MountRefused as exc:
            if not self._unseen:
                self._unseen = True
                self._record.note("warning", f"sockets may have appeared unseen: {exc}")
            return
        new = [cover for cover in found if self._known.get(cover.target) != cover.over]
        self._known |= {cover.target: cover.over for cover in new}
        if new:
            self._record.note(
                "warning",
                f"{in_a_sentence(new)} appeared while the agent was at work, which could reach "
                "whatever listens there; look into what did, and stop it before the next run or "
                "use `workspace: copy`",
            )
