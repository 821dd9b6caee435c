"""Some of the changes of a run: the paths that a person wants, and what cannot go without them."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import ApplyRefused
from orchestrator.workspace.changes.collected import Changes
from orchestrator.workspace.paths import parents
from orchestrator.workspace.reading.pack import NAMED_PATHS, in_words, shown


def part_of(changes: Changes, paths: Sequence[str]) -> Changes:
    """The changes at these paths and below them; of a file that was renamed, both its names; and
    the directories that the agent made for them. ApplyRefused if nothing has changed at one of
    them. Without paths, all of them.
    """
    if not paths:
        return changes
    known = {change.path: change for change in changes.changes}
    renamed = [{file.old_path, file.path} for file in changes.files if file.old_path]
    chosen: set[str] = set()
    for wanted in paths:
        here = {path for path in known if _is_below(path, wanted)}
        for names in renamed:
            if names & here:
                here |= names & known.keys()
        if not here:
            files = [shown(file.path) for file in changes.files]
            raise ApplyRefused(
                f"the run has changed nothing at {shown(wanted)}; changed: "
                f"{in_words(files, NAMED_PATHS)}"
            )
        chosen |= here
    for path in tuple(chosen):
        if known[path].new.kind != "absent":
            chosen.update(
                folder
                for folder in parents(path)
                if folder in known and known[folder].new.kind == "dir"
            )
    some = tuple(change for change in changes.changes if change.path in chosen)
    return changes.model_copy(update={"changes": some})


def _is_below(path: str, wanted: str) -> bool:
    return wanted in ("", ".") or path == wanted or path.startswith(f"{wanted}/")
