"""A workspace into a container, and what became of it out again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from orchestrator.domain.container import MIB, WORKSPACE, Launch
from orchestrator.errors import CopyFailed
from orchestrator.workspace.applying.steps import brings_content
from orchestrator.workspace.box import Box, Chunks, Gentle, Odd, Reader, nothing, program, talk
from orchestrator.workspace.changes.acting import with_acting
from orchestrator.workspace.changes.collected import OBJECTS, Changes, make_folder, save_changes
from orchestrator.workspace.changes.listing import MAX_CHANGES, Listing
from orchestrator.workspace.changes.objects import Objects
from orchestrator.workspace.changes.patch import PATCH_SECONDS, TIDY_SECONDS, make_patch, no_input
from orchestrator.workspace.changes.plain_patch import write_plain_patch
from orchestrator.workspace.git.directory import Allowed
from orchestrator.workspace.paths import MARKER
from orchestrator.workspace.reading.pack import BATCH, record
from orchestrator.workspace.reading.tree import Snapshot, TreeCopy, nowhere

COPY_SECONDS = 600.0
"""For a workspace to be copied into its container."""

KILL_SECONDS = 10.0
"""For the agent's processes to end before the copy is looked at."""

COMPARE_SECONDS = 120.0
READ_BACK_SECONDS = 300.0
"""For what changed to be found, and to be read."""

SAVE_SECONDS = 10.0
"""For what was read to be on this machine's disk."""

COLLECT_SECONDS = (
    KILL_SECONDS + COMPARE_SECONDS + READ_BACK_SECONDS + SAVE_SECONDS + PATCH_SECONDS + TIDY_SECONDS
)
"""All of `collect`: a caller that waits less than this may lose changes."""

MARKER_SECONDS = 10.0
"""For a copy to be known again."""

COPY_LOOK_SECONDS = 60.0
"""For a look at when a copy has changed last."""

TICK_SECONDS = 1.0
"""Clocks of file systems, and ours, differ by less."""


async def copy_in(
    box: Box,
    root: Path,
    *,
    identity: str = "",
    gitignore: bool = False,
    limit_bytes: int = 2048 * MIB,
    allowed: Allowed = nowhere,
    marked: bool = False,
    target: str = WORKSPACE,
) -> Snapshot:
    """Make `target` inside a copy of `root`, whatever was there before; `marked`, so that
    `is_there` knows it again.

    `root` has no symbolic link in it; with an `identity`, device:inode, it is that directory.
    `allowed` says which directories outside may be read for git's sake: of a linked worktree, a
    submodule, or an alternate. CopyRefused if the directory is too large or cannot be read,
    CopyFailed if the container does not take it.
    """
    marker = b"# %s\n*\n" % secrets.token_hex(16).encode() if marked else b""  # git ignores it
    tree = TreeCopy(
        root,
        identity=identity,
        gitignore=gitignore,
        limit_bytes=limit_bytes,
        allowed=allowed,
        marker=marker,
    )
    try:
        with anyio.fail_after(COPY_SECONDS):
            await talk(box, program("unpack", target), tree.chunks(), nothing)
    except TimeoutError as exc:
        raise CopyFailed(
            f"{root} was not copied within {COPY_SECONDS:.0f} s; name a smaller directory"
        ) from exc
    except Odd as exc:
        raise CopyFailed(f"the container did not take the copy of {root}: {exc}") from exc
    return tree.snapshot()


async def carry_in(box: Box, changes: Changes, *, target: str = WORKSPACE) -> None:
    """Do to the copy in `target` what was done to another one of the same directory. CopyFailed if
    the container does not take it, or if they are not all there.
    """
    if not changes.complete:
        raise CopyFailed("not all of the changes could be kept")
    try:
        with anyio.fail_after(COPY_SECONDS):
            await talk(box, program("change", target), _packed(changes), nothing)
    except TimeoutError as exc:
        raise CopyFailed(f"it took more than {COPY_SECONDS:.0f} s") from exc
    except Odd as exc:
        raise CopyFailed(f"the container did not take it: {exc}") from exc


def _packed(changes: Changes) -> Chunks:
    """Changes as the program inside reads them: what goes first, the deepest of it first."""
    gone = [each for each in changes.changes if each.new.kind != each.old.kind != "absent"]
    for change in sorted(gone, key=lambda each: each.path, reverse=True):
        yield record("absent", change.path, 0, 0, 0, "")
    for change in sorted(changes.changes, key=lambda each: each.path):
        new = change.new
        if new.kind == "absent":
            continue
        if new.kind == "file" and not brings_content(change):
            yield record("mode", change.path, new.mode, 0, 0, "")
            continue
        yield record(new.kind, change.path, new.mode, new.size, 0, new.target)
        if new.kind == "file":
            with changes.object_path(new.sha256).open("rb") as file:
                while data := file.read(BATCH):
                    yield data
    yield record("end", "", 0, 0, 0, "")


async def is_there(box: Box, snapshot: Snapshot, *, target: str = WORKSPACE) -> bool:
    """Whether what is inside is still the marked copy that this snapshot was made of."""
    parts: list[bytes] = []

    async def keep(reader: Reader) -> None:
        await reader.all_of(parts, len(snapshot.marker))

    size = str(len(snapshot.marker))
    look = Launch(argv=("head", "-c", size, f"{target}/{MARKER}/.gitignore"), errand=True)
    try:
        with anyio.fail_after(MARKER_SECONDS):
            await talk(box, look, no_input(), keep)
    except (CopyFailed, Odd, TimeoutError):
        return False
    return bool(snapshot.marker) and b"".join(parts) == snapshot.marker


async def is_untouched(box: Box, seconds: float, *, target: str = WORKSPACE) -> bool:
    """Whether nothing in the copy has changed for so long; no file is opened for it.

    The kernel's clock counts, which an agent cannot set back as it can a file's time.
    """
    parts: list[bytes] = []

    async def keep(reader: Reader) -> None:
        await reader.all_of(parts, 1)

    minutes = f"-{(seconds + TICK_SECONDS) / 60:.4f}"
    argv = ("find", target, "-cmin", minutes, "-printf", "x", "-quit")
    look = Launch(argv=argv, errand=True)
    try:
        with anyio.fail_after(COPY_LOOK_SECONDS):
            await talk(Gentle(box), look, no_input(), keep)
    except (CopyFailed, Odd, TimeoutError):
        return False
    return not parts


async def collect(
    box: Box,
    snapshot: Snapshot,
    folder: Path,
    *,
    limit_bytes: int = 2048 * MIB,
    at_work: bool = False,
    target: str = WORKSPACE,
) -> Changes:
    """What is different in the copy, kept in `folder`; first every process inside is killed.

    With `at_work` they are left alone, what they are writing may be half written, and the patch is
    a plainer one. CopyFailed if the container does not answer as it should; what it answers too
    much of, or nonsense, is left out with a warning, and the changes are not complete.
    """
    if at_work:
        box = Gentle(box)
    else:
        with anyio.move_on_after(KILL_SECONDS) as limit:
            await box.kill_all()
        if limit.cancelled_caught:
            raise CopyFailed(
                "the agent's processes could not be ended, and could change the copy that is read"
            )
    try:
        await anyio.to_thread.run_sync(make_folder, folder)
        changes = await _collected(box, snapshot, folder, limit_bytes, target, mend=not at_work)
        told_apart = partial(with_acting, changes, snapshot, at_work=at_work)
        changes = await anyio.to_thread.run_sync(told_apart)
        await anyio.to_thread.run_sync(save_changes, changes)
        if changes.complete and changes.changes:
            if at_work:
                changes = await anyio.to_thread.run_sync(write_plain_patch, changes)
            else:
                changes = await make_patch(box, changes, target)
            await anyio.to_thread.run_sync(save_changes, changes)
    except OSError as exc:
        raise CopyFailed(f"the changes cannot be kept in {folder}: {exc.strerror}") from exc
    return changes


async def _collected(
    box: Box, snapshot: Snapshot, folder: Path, limit_bytes: int, target: str, *, mend: bool
) -> Changes:
    mending = "mend" if mend else ""
    listing = Listing(snapshot)
    contents = _Contents(listing, Objects(folder / OBJECTS), limit_bytes)
    try:
        await _listed(box, listing, program("compare", target, str(MAX_CHANGES), mending))
        with anyio.fail_after(READ_BACK_SECONDS):
            fetch = program("fetch", target, "0", mending)
            await talk(box, fetch, _batches(contents.wanted()), contents.read)
        problem = f"more than {MAX_CHANGES:,} things are new" if listing.too_many else ""
    except Odd as exc:
        problem = str(exc)
    except TimeoutError:
        problem = "reading them took too long"
    await contents.objects.flush()
    warnings = listing.left_out.sentences("the changes")
    if problem:
        warnings += (f"not all changes could be kept, so they cannot be applied: {problem}",)
    return Changes(
        root=snapshot.root,
        changes=tuple(listing.changes(contents.known)),
        warnings=warnings,
        by_products=listing.by_products.sentences("the changes"),
        complete=not problem,
        folder=folder,
    )


async def _listed(box: Box, listing: Listing, compare: Launch) -> None:
    async def read(reader: Reader) -> None:
        while listing.add(await reader.record()):
            pass

    try:
        with anyio.fail_after(COMPARE_SECONDS):
            await talk(box, compare, _batches(listing.snapshot.records()), read)
        await anyio.to_thread.run_sync(listing.check)  # many rules for many names take a while
    except (Odd, TimeoutError):
        listing.clear()  # half a tree, or an impossible one, is of no use
        raise


class _Contents:
    """The files of a listing, one after another, up to a limit."""

    def __init__(self, listing: Listing, objects: Objects, limit_bytes: int) -> None:
        self.known: dict[str, tuple[str, int]] = {}
        """Path -> sha256 and size."""
        self.objects = objects
        self._listing = listing
        self._limit = limit_bytes

    def wanted(self) -> Iterator[bytes]:
        for path, found in self._listing.found.items():
            if found.kind == "file" and found.fetched:
                yield record("file", path)
        yield record("end", "")

    async def read(self, reader: Reader) -> None:
        left = self._limit
        while True:
            kind, path, *_ = await reader.record()
            found = self._listing.found.get(str(path))
            if kind == "end":
                return
            if found is None or not found.fetched or found.kind != "file" or path in self.known:
                raise Odd("a file came that was not asked for")
            if kind == "skip":
                self._listing.left_out.add("could not be read", str(path))
                continue
            while piece := await reader.piece():
                left -= len(piece)
                if left < 0:
                    raise Odd(
                        f"they are larger than {self._limit // MIB} MiB; raise resources.disk_mb"
                    )
                await self.objects.write(piece)
            self.known[str(path)] = await self.objects.finish()


def _batches(records: Iterator[bytes]) -> Chunks:
    """Many small records as a few larger pieces."""
    buffer = bytearray()
    for each in records:
        buffer += each
        if len(buffer) >= BATCH:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer)
