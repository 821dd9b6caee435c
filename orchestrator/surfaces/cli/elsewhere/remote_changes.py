"""What a run elsewhere changed: its patch, fetched; its changes, applied to a directory here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from orchestrator.surfaces.cli.elsewhere.remote_reports import asked_there

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.client.api import OrchestratorClient
    from orchestrator.settings import Settings
    from orchestrator.store.runs import RunRecord
    from orchestrator.workspace.applying.apply import Applied
    from orchestrator.workspace.changes.collected import Changes


def patch_there(settings: Settings, run_id: str) -> bytes:
    """All of it, as `git apply` takes it."""
    return bytes(asked_there(settings, lambda client: client.patch(run_id)))


def changes_there(settings: Settings, run_id: str, folder: Path) -> Changes:
    """The changes of a run, on this disk from now on."""

    async def fetch(client: OrchestratorClient) -> Changes:
        return await client.fetch_changes(run_id, folder)

    fetched: Changes = asked_there(settings, fetch)
    return fetched


def root_here(settings: Settings, record: RunRecord) -> Path:
    """The directory that was sent for a run; ApplyRefused if none was, from this machine."""
    from orchestrator.client.connection import connection_to
    from orchestrator.client.packing import SentPlaces, unknown_place

    url = connection_to(settings).url
    root = SentPlaces(settings.state_dir).root(url, str(record.workspace or ""))
    if root is None:
        raise unknown_place(record.run_id)
    return root


def applied_here(
    settings: Settings,
    changes: Changes,
    root: Path,
    *,
    paths: Sequence[str],
    dry_run: bool,
    allow_links: bool = False,
    allow_acting: bool = False,
) -> Applied:
    """Do to a directory of this machine what the run did to its copy."""
    from orchestrator.client.packing import apply_here
    from orchestrator.state import mount_policy

    do = partial(apply_here, changes, root, mount_policy(settings), paths=tuple(paths))
    return do(dry_run=dry_run, allow_links=allow_links, allow_acting=allow_acting)
