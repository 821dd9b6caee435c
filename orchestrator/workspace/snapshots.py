"""Snapshots of copies that stay in their sessions, for whichever process goes on in one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection
from dataclasses import astuple, replace
from pathlib import Path

from orchestrator.workspace.changes import Changes, State
from orchestrator.workspace.ignore import Ignore
from orchestrator.workspace.pack import Entry
from orchestrator.workspace.tree import Snapshot

MAX_SNAPSHOTS = 256
"""Sessions whose copies are known again; one that was copied longest ago is copied anew."""


class Snapshots:
    """By the names of their containers, in one folder. All of it blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, container: str) -> Snapshot | None:
        """The one that was kept last; None if there is none, or none that can be read."""
        try:
            return _loaded(json.loads(self._path(container).read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, container: str, snapshot: Snapshot) -> None:
        """All of it or nothing; what is older than enough others goes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(container)
        new = path.with_suffix(f".{secrets.token_hex(8)}")
        try:
            new.write_text(json.dumps(_dumped(snapshot)))
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)
        kept = sorted(self.folder.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)
        for stale in kept[:-MAX_SNAPSHOTS]:
            stale.unlink(missing_ok=True)

    def _path(self, container: str) -> Path:
        return self.folder / f"{container}.json"


def rebased(changes: Changes, snapshot: Snapshot, *, at: float) -> Changes:
    """The changes that a copy had by then, against what was applied of earlier ones since.

    Those that are not the later ones stay as they are: they would take back what came after them.
    """
    if at <= snapshot.applied_at:
        return changes
    return changes.model_copy(
        update={
            "changes": tuple(
                change.model_copy(update={"old": State.of(snapshot.entries.get(change.path))})
                for change in changes.changes
            )
        }
    )


def updated(
    snapshot: Snapshot, changes: Changes, kept_folders: Collection[str], *, at: float
) -> Snapshot:
    """The snapshot once these have been applied, but for directories that could not go."""
    entries = dict(snapshot.entries)
    for change in changes.changes:
        if change.path in kept_folders:
            continue
        entries.pop(change.path, None)
        if (entry := change.new.entry()) is not None:
            entries[change.path] = entry
    return replace(snapshot, entries=entries, applied_at=max(at, snapshot.applied_at))


def _dumped(snapshot: Snapshot) -> dict[str, object]:
    return {
        "root": str(snapshot.root),
        "entries": {path: astuple(entry) for path, entry in snapshot.entries.items()},
        "git_places": sorted(snapshot.git_places),
        "ignore": None if snapshot.ignore is None else snapshot.ignore.rules,
        "total_bytes": snapshot.total_bytes,
        "total_count": snapshot.total_count,
        "marker": snapshot.marker.decode(),
        "applied_at": snapshot.applied_at,
    }


def _loaded(kept: dict[str, object]) -> Snapshot:
    entries, places, ignore = kept["entries"], kept["git_places"], kept["ignore"]
    total_bytes, total_count = kept["total_bytes"], kept["total_count"]
    if not (isinstance(entries, dict) and isinstance(places, list)):
        raise TypeError
    if not (isinstance(total_bytes, int) and isinstance(total_count, int)):
        raise TypeError
    return Snapshot(
        root=Path(str(kept["root"])),
        entries={path: Entry(*fields) for path, fields in entries.items()},
        git_places=frozenset(places),
        ignore=Ignore(ignore) if isinstance(ignore, dict) else None,
        total_bytes=total_bytes,
        total_count=total_count,
        marker=str(kept["marker"]).encode(),
        applied_at=float(str(kept.get("applied_at", 0.0))),  # earlier ones do not say
    )
