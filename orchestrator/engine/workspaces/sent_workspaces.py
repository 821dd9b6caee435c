"""Workspaces that callers send, and changes that they fetch: what they may, written down, done."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread

from orchestrator.domain.audit import AuditEntry
from orchestrator.domain.result import FINAL, TRANSITIONS
from orchestrator.domain.task import Task
from orchestrator.engine.workspaces.copies import Copies, upload_owner
from orchestrator.errors import (
    CopyRefused,
    OrchestratorError,
    RunRefused,
    WorkspaceNotFound,
)
from orchestrator.store.runs import Store
from orchestrator.workspace.archives.kept_changes import changes_tar
from orchestrator.workspace.archives.uploads import UPLOAD_ID, Upload

STALLED_SECONDS = 60.0
"""For the next bytes of an archive to come."""

RECEIVED_AT_ONCE = 8
"""Archives, of all callers; each takes a thread."""

RECEIVED_OF_ONE = 2
"""Of them, of one caller, so that the others can send theirs."""

RECEIVE_SECONDS = 1800.0
"""For a whole archive to come."""

TIDY_UPLOADS_SECONDS = 300.0
"""How often uploads are looked at that nobody asks for."""

Pieces = Callable[[], Awaitable[bytes]]
"""The next bytes of an archive; b"" at its end."""


class SentWorkspaces:
    """Of the callers of one project."""

    def __init__(self, copies: Copies, store: Store, project: str) -> None:
        self._copies = copies
        self._uploads = copies.uploads
        self._store = store
        self._project = project
        self._threads = anyio.CapacityLimiter(RECEIVED_AT_ONCE)
        self._tidied = -inf
        self._receiving: Counter[str] = Counter()

    async def receive(self, caller: str, pieces: Pieces, *, gzipped: bool) -> Upload:
        """Take an archive as a workspace of this caller's; CopyRefused if it cannot be one."""
        if self._receiving[caller] >= RECEIVED_OF_ONE:
            raise RunRefused(
                f"{RECEIVED_OF_ONE} workspaces of yours are being received; wait for one of them"
            )
        await self._note(caller, "")
        self._receiving[caller] += 1
        try:
            return await self._received(caller, pieces, gzipped)
        except OrchestratorError as exc:
            await self._note(caller, "", exc)
            raise
        finally:
            self._receiving[caller] -= 1

    async def _received(self, caller: str, pieces: Pieces, gzipped: bool) -> Upload:
        add = partial(
            self._uploads.add,
            self._owner(caller),
            _from_thread(pieces, anyio.current_time() + RECEIVE_SECONDS),
            gzipped=gzipped,
            in_use=partial(anyio.from_thread.run, self._in_use),
        )
        return await anyio.to_thread.run_sync(add, limiter=self._threads)

    async def find(self, caller: str, workspace: str) -> Upload:
        """An upload of this caller's, which is then kept for another while."""
        find = partial(self._uploads.find, self._owner(caller), workspace)
        found = await anyio.to_thread.run_sync(find)
        if found is None:
            raise WorkspaceNotFound(
                f"there is no upload {workspace[:70]!r} of yours; POST /v1/workspaces takes one"
            )
        return found

    async def remove(self, caller: str, workspace: str) -> None:
        """Remove an upload of this caller's; RunRefused while a run is to work on it."""
        await self.find(caller, workspace)
        find = partial(self._uploads.tree, self._owner(caller), workspace)
        tree = await anyio.to_thread.run_sync(find)
        if tree in await self._in_use():
            raise RunRefused(
                f"a run that has not ended works on {workspace}; remove it when it has ended"
            )
        await self._note(caller, workspace)
        remove = partial(self._uploads.remove, self._owner(caller), workspace)
        await anyio.to_thread.run_sync(remove)

    async def placed(self, task: Task) -> Task:
        """A task whose workspace is named by the id of an upload, with the tree of that: the
        caller's own, or MountRefused. Any other as it is.
        """
        if task.workspace is None or not UPLOAD_ID.fullmatch(str(task.workspace)):
            return task
        find = partial(self._uploads.tree, self._owner(task.caller), str(task.workspace))
        return task.model_copy(update={"workspace": await anyio.to_thread.run_sync(find)})

    def shown(self, workspace: Path | None) -> str:
        """What callers are told that a run works on: of an upload its id, and not where it is."""
        if workspace is None:
            return ""
        return workspace.parent.name if self._uploads.holds(workspace) else str(workspace)

    async def changes(self, run_id: str) -> Iterator[bytes]:
        """What is kept of the changes of a run, as an archive. Reading on blocks."""
        return changes_tar(await anyio.to_thread.run_sync(self._copies.changes, run_id))

    async def tidy_now_and_then(self) -> None:
        """Remove what nobody has asked for in a while."""
        if anyio.current_time() - self._tidied < TIDY_UPLOADS_SECONDS:
            return
        self._tidied = anyio.current_time()
        await anyio.to_thread.run_sync(self._uploads.tidy, await self._in_use())

    async def _in_use(self) -> frozenset[Path]:
        """Workspaces of runs that have not ended, of all projects."""
        under_way = tuple(status for status in TRANSITIONS if status not in FINAL)
        found = await self._store.find_runs(statuses=under_way, limit=-1)
        return frozenset(run.workspace for run in found if run.workspace is not None)

    def _owner(self, caller: str) -> str:
        return upload_owner(self._project, caller)

    async def _note(
        self, caller: str, subject: str, refusal: OrchestratorError | None = None
    ) -> None:
        entry = AuditEntry.by(
            caller,
            "send",
            project=self._project,
            allowed=refusal is None,
            subject=subject,
            why="" if refusal is None else f"{refusal.code}: {refusal}",
        )
        await self._store.audit.note(entry)


def _from_thread(pieces: Pieces, deadline: float) -> Iterator[bytes]:
    """For a worker thread: what comes in on the event loop, until a deadline."""

    async def following() -> bytes:
        try:
            with anyio.fail_after(min(STALLED_SECONDS, deadline - anyio.current_time())):
                return await pieces()
        except TimeoutError as exc:
            raise CopyRefused(
                "the archive comes too slowly, or has stopped; send it again"
            ) from exc

    while piece := anyio.from_thread.run(following):
        yield piece


def pieces_of(stream: AsyncIterator[bytes]) -> Pieces:
    """A body that comes in -> its pieces, one at a time."""

    async def following() -> bytes:
        async for piece in stream:
            if piece:
                return piece
        return b""

    return following
