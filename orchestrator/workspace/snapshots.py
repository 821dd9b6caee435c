"""Snapshots of copies that stay in their sessions, for whichever process goes on in one."""

from __future__ import annotations

import errno
import json
import secrets
from collections.abc import Collection, Sequence
from dataclasses import astuple, replace
from pathlib import Path

from orchestrator.errors import ApplyRefused
from orchestrator.workspace.applying.steps import brings_content
from orchestrator.workspace.changes.collected import Changes, State
from orchestrator.workspace.reading.ignore import Ignore
from orchestrator.workspace.reading.pack import NAMED_PATHS, TreeEntry, in_lines, shown
from orchestrator.workspace.reading.tree import Snapshot

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
        if self.folder.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, which no orchestrator makes")
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

    Changes collected before the last apply are returned unchanged: rebasing them would undo newer
    ones.
    ApplyRefused if the agent had taken back by then what was applied since: of that the changes
    tell nothing, or have no content.
    """
    if at <= snapshot.applied_at:
        return changes
    against = tuple(
        change.model_copy(update={"old": State.of(snapshot.entries.get(change.path))})
        for change in changes.changes
    )
    untold = {path for path, applied in snapshot.applied.items() if applied > at}
    untold -= {change.path for change in changes.changes}
    for before, after in zip(changes.changes, against, strict=True):
        if brings_content(after) and not brings_content(before):
            untold.add(after.path)
    if untold:
        raise ApplyRefused(_taken_back(changes.run_id, snapshot.root, sorted(untold)))
    return changes.model_copy(update={"changes": against})


def _taken_back(run_id: str, root: Path, paths: Sequence[str]) -> str:
    lines = in_lines([*map(shown, paths)], NAMED_PATHS)
    return (
        f"{root} was left as it is, since the agent has taken back in this run what was applied of "
        f"an earlier one, and the changes of this run do not tell of it:{lines}\n"
        "call the session once more and apply what comes of that, which is compared with what is "
        f"there now, or take what you want from `orchestrator show {run_id} --patch` yourself"
    )


def updated(
    snapshot: Snapshot, changes: Changes, kept_folders: Collection[str], *, at: float, now: float
) -> Snapshot:
    """The snapshot once these, which a copy had `at` some time, have been applied `now`; but for
    directories that could not go.
    """
    entries, applied = dict(snapshot.entries), dict(snapshot.applied)
    for change in changes.changes:
        if change.path in kept_folders:
            continue
        if State.of(entries.pop(change.path, None)) != change.new:
            applied[change.path] = now  # otherwise it was applied before, and only that counts
        if (entry := change.new.entry()) is not None:
            entries[change.path] = entry
    return replace(
        snapshot, entries=entries, applied_at=max(at, snapshot.applied_at), applied=applied
    )


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
        "applied": snapshot.applied,
        "untracked": sorted(snapshot.untracked),
    }


def _loaded(kept: dict[str, object]) -> Snapshot:
    entries, places, ignore = kept["entries"], kept["git_places"], kept["ignore"]
    total_bytes, total_count = kept["total_bytes"], kept["total_count"]
    applied = kept.get("applied", {})  # earlier ones do not say
    untracked = kept.get("untracked", [])  # nor this
    if not (isinstance(entries, dict) and isinstance(places, list) and isinstance(applied, dict)):
        raise TypeError
    if not isinstance(untracked, list):
        raise TypeError
    if not (isinstance(total_bytes, int) and isinstance(total_count, int)):
        raise TypeError
    return Snapshot(
        root=Path(str(kept["root"])),
        entries={path: TreeEntry(*fields) for path, fields in entries.items()},
        git_places=frozenset(places),
        ignore=Ignore(ignore) if isinstance(ignore, dict) else None,
        total_bytes=total_bytes,
        total_count=total_count,
        marker=str(kept["marker"]).encode(),
        applied_at=float(str(kept.get("applied_at", 0.0))),  # nor do they this
        applied={path: float(at) for path, at in applied.items()},
        untracked=frozenset(untracked),
    )
