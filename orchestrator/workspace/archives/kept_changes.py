"""What is kept of a run's changes -> a tar; and such a tar, of a server that need not be believed,
-> changes on this disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchestrator.domain.container import MIB
from orchestrator.errors import ApplyRefused, CopyRefused
from orchestrator.workspace.archives.tar_reader import BLOCK, TarLimits, tar_entries
from orchestrator.workspace.archives.tar_writer import TAR_END, tar_header
from orchestrator.workspace.changes.collected import (
    MANIFEST,
    OBJECTS,
    PATCH,
    UTF8_PATCH,
    Changes,
    load_changes,
    make_folder,
)
from orchestrator.workspace.paths import FILE
from orchestrator.workspace.reading.pack import BATCH, MAX_ENTRIES

CHANGES_BYTES = 4096 * MIB
"""Of all that a run may have changed."""

ARCHIVE_BYTES = 2 * CHANGES_BYTES
"""Of the tar with them: also their list, and a header for each."""

MANIFEST_BYTES = 256 * MIB

_OBJECT = re.compile(rf"{OBJECTS}/[0-9a-f]{{64}}")


def changes_tar(changes: Changes) -> Iterator[bytes]:
    """The folder of a run's changes, piece by piece. Blocks."""
    contents = {change.new.sha256 for change in changes.changes if change.new.sha256}
    names = [MANIFEST, PATCH, UTF8_PATCH, *(f"{OBJECTS}/{sha}" for sha in sorted(contents))]
    for name in names:
        try:
            fd = os.open(changes.folder / name, FILE)
        except OSError:
            continue  # a patch that was not made; a content that was there before
        with os.fdopen(fd, "rb") as file:
            size = os.fstat(fd).st_size
            yield tar_header(name, size)
            left = size
            while left and (piece := file.read(min(left, BATCH))):
                left -= len(piece)
                yield piece
            if left:
                raise ApplyRefused(f"{name} of the changes was cut short; try again")
            yield bytes(-size % BLOCK)
    yield TAR_END


def take_changes(pieces: Iterable[bytes], folder: Path) -> Changes:
    """The changes that a server has sent, kept in a new folder; ApplyRefused for anything else.
    What they say is judged when they are applied. Blocks.
    """
    make_folder(folder)
    limits = TarLimits(bytes=CHANGES_BYTES, entries=MAX_ENTRIES)
    seen: set[str] = set()
    try:
        for entry, content in tar_entries(pieces, limits):
            known = entry.path in (MANIFEST, PATCH, UTF8_PATCH) or _OBJECT.fullmatch(entry.path)
            if entry.kind != "file" or not known or entry.path in seen:
                raise ApplyRefused(f"the server sent {entry.path[:100]!r} among the changes")
            if entry.path == MANIFEST and entry.size > MANIFEST_BYTES:
                raise ApplyRefused("the server sent a list of changes that is too long")
            seen.add(entry.path)
            with (folder / entry.path).open("xb") as file:
                for piece in content:
                    file.write(piece)
    except CopyRefused as exc:
        raise ApplyRefused(f"the server sent no changes that can be read: {exc}") from exc
    except OSError as exc:
        raise ApplyRefused(f"the changes cannot be kept in {folder}: {exc.strerror}") from exc
    return load_changes(folder)
