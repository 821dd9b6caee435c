"""Which runs are removed: those that ended too long ago, too many, or too large together."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.domain import Frozen
from orchestrator.domain.container import MIB
from orchestrator.engine.tasks.lost import end_lost
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.errors import ApplyRefused, OrchestratorError, StoreFailed
from orchestrator.store.runs import EndedRun, Store

log = logging.getLogger(__name__)

DAY_SECONDS = 86400.0

AT_ONCE = 100
"""Runs that are removed in one transaction: other orchestrators want to write in between."""

MAX_DECISIONS_KEPT = 200_000
"""In the audit, some 60 MB; older ones go, and those that are as old as the runs that go."""

PAUSE_SECONDS = 3600.0
"""Between two looks for old runs, by all orchestrators of a state directory together."""


class Keep(Frozen):
    """Which of the runs that have ended stay; None sets no limit."""

    days: float | None = None
    """Runs that ended longer ago are removed."""
    count: int | None = None
    """Of the others, so many stay: those that ended last."""
    total_bytes: int | None = None
    """And of these, as many as fit, counting their changes to copies of workspaces: of the agent
    whose runs take most, the oldest go first."""


class Pruned(Frozen):
    """What was removed, or would be."""

    run_ids: tuple[str, ...] = ()
    """The oldest first."""
    freed_bytes: int = 0
    """Roughly."""


class Retention:
    """Removes runs from the store, and their changes from the disk."""

    def __init__(self, store: Store, copies: Copies) -> None:
        self._store = store
        self._copies = copies

    async def trim_audit(self, keep: Keep) -> None:
        """Remove decisions that are older than runs get."""
        if keep.days is not None:
            await self._store.audit.remove_before(time.time() - keep.days * DAY_SECONDS)
        await self._store.audit.keep_last(MAX_DECISIONS_KEPT)

    async def prune(self, keep: Keep, *, dry_run: bool = False) -> Pruned:
        """Remove all but what is to be kept; runs that waiting runs are to follow stay as well."""
        if keep.days is not None and not dry_run:
            await self._end_forgotten(time.time() - keep.days * DAY_SECONDS)
        ended = await self._ended()
        too_old = _surplus(ended, keep, now=time.time())
        for at in range(0, 0 if dry_run else len(too_old), AT_ONCE):
            await self._remove([run.run_id for run in too_old[at : at + AT_ONCE]])
        return Pruned(
            run_ids=tuple(run.run_id for run in too_old),
            freed_bytes=sum(run.size_bytes for run in too_old),
        )

    async def _end_forgotten(self, before: float) -> None:
        """End the runs that no process has, and that nobody has answered since then."""
        for record in await self._store.unfinished():
            if record.suspended is not None and record.suspended < before:
                await end_lost(self._store, record, self._copies.kept.recall)

    async def compact(self) -> None:
        """Give the room back to the disk, unless the store is in use; later runs would reuse it."""
        with suppress(StoreFailed):
            await self._store.database.compact()

    async def _ended(self) -> list[EndedRun]:
        """The runs that may go, the oldest first, with what they and their changes take."""
        ended = await self._store.removable()
        sizes = await anyio.to_thread.run_sync(self._copies.kept.sizes)
        return [
            run.model_copy(update={"size_bytes": run.size_bytes + sizes.get(run.run_id, 0)})
            for run in ended
        ]

    async def _remove(self, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:  # before its row goes, without which its folder is never found
            with suppress(ApplyRefused):  # it never had one
                await anyio.to_thread.run_sync(self._copies.kept.remove, run_id)
        await self._store.remove(run_ids)


@asynccontextmanager
async def kept_tidy(
    opened: Callable[[], AbstractContextManager[Retention]], keep: Keep, mark: Path
) -> AsyncIterator[None]:
    """Prune in the background while the block lasts, at its beginning and then now and then.

    The mark is a file whose time says when an orchestrator last did it. The store is opened anew:
    on the connection of the runs they would wait until all of it has been read.
    """
    scope = anyio.CancelScope()

    async def look() -> None:
        with scope:
            while True:
                try:
                    if _is_due(mark):
                        with opened() as retention:
                            await retention.prune(keep)
                            await retention.trim_audit(keep)
                except (OrchestratorError, OSError) as exc:
                    log.warning("old runs cannot be removed: %s", exc)
                except Exception:
                    log.exception("old runs cannot be removed")
                await anyio.sleep(PAUSE_SECONDS)

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(looking, return_exceptions=True)


def _surplus(ended: Sequence[EndedRun], keep: Keep, now: float) -> list[EndedRun]:
    """Of runs in the order they ended, those that ended too long ago, are too many or take too
    much. Pure.

    Where all take too much together, the agent goes first whose runs take most: one that fills the
    record must not have the runs of the others removed for it.
    """
    too_old = [
        run
        for number, run in enumerate(ended)
        if (keep.days is not None and run.ended < now - keep.days * DAY_SECONDS)
        or (keep.count is not None and len(ended) - number > keep.count)
    ]
    of_agent: dict[str, deque[EndedRun]] = defaultdict(deque)
    for run in ended[len(too_old) :]:
        of_agent[run.agent].append(run)
    taken = {agent: sum(run.size_bytes for run in runs) for agent, runs in of_agent.items()}
    too_much: list[EndedRun] = []
    while keep.total_bytes is not None and sum(taken.values()) > keep.total_bytes:
        largest = max(taken, key=taken.__getitem__)
        run = of_agent[largest].popleft()
        too_much.append(run)
        taken[largest] -= run.size_bytes
        if not of_agent[largest]:
            del taken[largest]
    return too_old + sorted(too_much, key=lambda run: run.ended)


def _is_due(mark: Path) -> bool:
    try:
        if time.time() - mark.stat().st_mtime < PAUSE_SECONDS:
            return False
    except FileNotFoundError:
        mark.touch(mode=0o600)
        return True
    os.utime(mark)
    return True


def keep_of(days: int, megabytes: int) -> Keep:
    """The operator's settings -> which runs stay."""
    return Keep(days=days, total_bytes=megabytes * MIB)
