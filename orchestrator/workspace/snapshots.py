"""Snapshots of copies that stay in their sessions, for whichever process goes on in one."""

from __future__ import annotations

import json
import os
from dataclasses import astuple
from pathlib import Path

from orchestrator.workspace.ignore import Ignore
from orchestrator.workspace.pack import Entry
from orchestrator.workspace.tree import Snapshot

MAX_SNAPSHOTS = 256
"""Sessions whose copies are known again; one that was copied longest ago is copied anew."""


class Snapshots:
    """By the names of their containers, in one folder. All of it blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, container: str) -> Snapshot | None:
        """The one that was kept last; None if there is none, or none that can be read."""
        try:
            return _loaded(json.loads(self._path(container).read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, container: str, snapshot: Snapshot) -> None:
        """All of it or nothing; what is older than enough others goes."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._path(container)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(_dumped(snapshot)))
        new.rename(path)
        kept = sorted(self._folder.glob("*.json"), key=lambda each: each.stat().st_mtime_ns)
        for stale in kept[:-MAX_SNAPSHOTS]:
            stale.unlink(missing_ok=True)

    def _path(self, container: str) -> Path:
        return self._folder / f"{container}.json"


def _dumped(snapshot: Snapshot) -> dict[str, object]:
    return {
        "root": str(snapshot.root),
        "entries": {path: astuple(entry) for path, entry in snapshot.entries.items()},
        "git_places": sorted(snapshot.git_places),
        "ignore": None if snapshot.ignore is None else snapshot.ignore.rules,
        "total_bytes": snapshot.total_bytes,
        "total_count": snapshot.total_count,
        "marker": snapshot.marker.decode(),
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
    )
