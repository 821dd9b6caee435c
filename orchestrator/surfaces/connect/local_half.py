"""What a relay does on this machine: pack and send directories, apply changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from orchestrator.errors import OrchestratorError

if TYPE_CHECKING:
    from orchestrator.client.api import OrchestratorClient
    from orchestrator.client.connection import ServerConnection
    from orchestrator.client.packing import PackedTree, SentPlaces
    from orchestrator.containers.mounts import MountPolicy
    from orchestrator.settings import Settings
    from orchestrator.workspace.applying.apply import Applied

log = logging.getLogger(__name__)

LEAVE_SECONDS = 1.0
"""For uploads to be removed when the client has left."""

TellClient = Callable[[str], Awaitable[None]]
"""Says what is being done, to a client that waits."""


class LocalHalf:
    """Directories of this machine, for one server. Most of it is loaded when first needed."""

    def __init__(self, settings: Settings, connection: ServerConnection) -> None:
        self._settings = settings
        self._connection = connection
        self._uploads: set[str] = set()
        """That we have sent."""

    async def sent(self, directories: set[str], tell: TellClient) -> dict[str, str]:
        """Directory -> the id by which the server has it. OrchestratorError if one cannot be."""
        return {each: await self._send(Path(each), tell) for each in sorted(directories)}

    async def _send(self, root: Path, tell: TellClient) -> str:
        from orchestrator.client.packing import packed_tree

        await tell(f"packing {root}")
        async with AsyncExitStack() as stack:
            block = packed_tree(root, self._policy())
            packed: PackedTree = await anyio.to_thread.run_sync(block.__enter__)
            stack.push_async_callback(anyio.to_thread.run_sync, block.__exit__, None, None, None)
            for warning in packed.warnings:
                log.warning("%s: %s", root, warning)
            size = packed.bytes / 1024 / 1024
            await tell(f"sending {packed.files} files, {size:.1f} MiB, unless the server has them")
            remember = partial(self._places().remember, self._connection.url, packed)
            await anyio.to_thread.run_sync(remember)
            await self._client().upload(packed)
            self._uploads.add(packed.workspace)
            return packed.workspace

    async def applied(self, arguments: dict[str, Any]) -> tuple[str, dict[str, object]] | None:
        """What `apply_changes` answers, done here; None if the run's workspace is the server's own,
        and so the server's to apply.
        """
        from orchestrator.client.packing import apply_here, unknown_place
        from orchestrator.surfaces.applied_words import applied_words
        from orchestrator.workspace.archives.uploads import UPLOAD_ID

        run_id = str(arguments.get("run_id", ""))
        dry_run, acting = (arguments.get(name) is True for name in ("dry_run", "allow_acting"))
        run = await self._client().get(run_id)
        if not UPLOAD_ID.fullmatch(run.workspace):
            return None
        look = partial(self._places().root, self._connection.url, run.workspace)
        root = await anyio.to_thread.run_sync(look)
        if root is None:
            raise unknown_place(run_id)
        async with self._client().changes(run_id) as changes:
            do = partial(apply_here, changes, root, self._policy())
            do = partial(do, dry_run=dry_run, allow_acting=acting)
            with anyio.CancelScope(shield=True):  # all or nothing, and then it is told
                applied = await self._noted(do, run_id, root, dry_run=dry_run, acting=acting)
        return applied_words(applied, run_id, dry_run=dry_run, allow_acting=acting)

    async def _noted(
        self, do: Callable[[], Applied], run_id: str, root: Path, *, dry_run: bool, acting: bool
    ) -> Applied:
        """Apply changes; that it is done, or refused, is in the audit of this machine."""
        from orchestrator.containers.owner import make_state_dir
        from orchestrator.state import note_decision

        await anyio.to_thread.run_sync(make_state_dir, self._settings.state_dir)
        note = partial(note_decision, self._settings, "apply", str(root), run_id=run_id)
        if not dry_run:
            await note(allowed=True, why="with files that act" * acting)
        try:
            return await anyio.to_thread.run_sync(do)
        except OrchestratorError as exc:
            await note(allowed=False, why=f"{exc.code}: {exc}")
            raise

    async def leave(self) -> None:
        """Have what we have sent removed, if that can be done at once; else it goes by itself."""

        async def remove(workspace: str) -> None:
            with suppress(OrchestratorError):
                await self._client().remove_upload(workspace)

        with anyio.move_on_after(LEAVE_SECONDS, shield=True):
            async with anyio.create_task_group() as group:
                for workspace in self._uploads:
                    group.start_soon(remove, workspace)

    def _client(self) -> OrchestratorClient:
        from orchestrator.client.api import OrchestratorClient

        return OrchestratorClient(self._connection)

    def _places(self) -> SentPlaces:
        from orchestrator.client.packing import SentPlaces

        return SentPlaces(self._settings.state_dir)

    def _policy(self) -> MountPolicy:
        from orchestrator.state import mount_policy

        return mount_policy(self._settings)
