"""A directory of this machine -> an archive to be sent; and which directory an upload was.

What is packed follows the rules of copies (`workspace/reading`), and what no container may be shown
is not sent either. What .gitignore names stays here.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain import Frozen
from orchestrator.domain.container import MIB
from orchestrator.errors import ApplyRefused, CallerError
from orchestrator.workspace.applying.apply import Applied, apply
from orchestrator.workspace.applying.part import part_of
from orchestrator.workspace.archives.tar_writer import tar_of
from orchestrator.workspace.changes.collected import Changes
from orchestrator.workspace.reading.tree import TreeCopy

PACKED_BYTES = 1024 * MIB
"""Of one workspace; a server may take less."""

GZIP_LEVEL = 1
"""How hard gzip tries: the disk is the slower half anyway."""

SENT = "sent"
"""The folder of the state directory that remembers which upload was which directory."""

SENT_DAYS = 90

_ID = re.compile(r"w[0-9a-f]{64}")


class PackedTree(Frozen):
    """An archive that is ready to be sent."""

    root: Path
    """The directory, symbolic links resolved."""
    file: Path
    """gzip, as long as the block lasts in which it was packed."""
    workspace: str
    """What the server will call it."""
    files: int
    bytes: int
    warnings: tuple[str, ...] = ()
    """What is not in it, and why."""


@contextmanager
def packed_tree(root: Path, policy: MountPolicy) -> Iterator[PackedTree]:
    """A directory as an archive. MountRefused if it is not for agents, CopyRefused if it is too
    large or cannot be read. Blocks.
    """
    judged = policy.judged(root)

    def may_read(path: Path) -> bool:
        try:
            return policy.directory(path) == path
        except CallerError:
            return False

    tree = TreeCopy(
        judged.path,
        identity=judged.identity,
        gitignore=True,
        limit_bytes=PACKED_BYTES,
        allowed=may_read,
    )
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        file = Path(folder) / "workspace.tar.gz"
        digest = hashlib.sha256()
        place = hashlib.sha256(str(judged.path).encode(errors="surrogateescape")).hexdigest()
        with file.open("wb") as packed:
            pack = zlib.compressobj(GZIP_LEVEL, wbits=31)
            # Two directories with the same content are two uploads: each is told apart by its name.
            for piece in tar_of(tree.chunks(), comment=place):
                digest.update(piece)
                packed.write(pack.compress(piece))
            packed.write(pack.flush())
        snapshot = tree.snapshot()
        yield PackedTree(
            root=judged.path,
            file=file,
            workspace=f"w{digest.hexdigest()}",
            files=snapshot.total_count,
            bytes=snapshot.total_bytes,
            warnings=snapshot.warnings,
        )


class SentPlaces:
    """Which directory was sent where, remembered on this disk: a server does not tell us where to
    write. All of it blocks.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / SENT

    def remember(self, url: str, packed: PackedTree) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        said = json.dumps({"server": url, "root": str(packed.root)})
        place = self._place(url, packed.workspace)
        scratch = place.with_suffix(".new")
        scratch.write_text(said)
        scratch.replace(place)
        self._forget_old()

    def root(self, url: str, workspace: str) -> Path | None:
        """The directory that an upload to this server was made of; None if that is not known."""
        if not _ID.fullmatch(workspace):
            return None
        try:
            said = json.loads(self._place(url, workspace).read_text())
            return Path(said["root"]) if said["server"] == url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _place(self, url: str, workspace: str) -> Path:
        server = hashlib.sha256(url.encode()).hexdigest()[:16]
        return self._folder / f"{server}-{workspace}.json"

    def _forget_old(self) -> None:
        oldest = time.time() - SENT_DAYS * 86400
        for path in self._folder.glob("*.json"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest:
                    path.unlink()


def apply_here(
    changes: Changes,
    root: Path,
    policy: MountPolicy,
    *,
    paths: tuple[str, ...] = (),
    dry_run: bool = False,
    allow_links: bool = False,
    allow_acting: bool = False,
) -> Applied:
    """Do to a directory of this machine what a run elsewhere did to its copy, by the rules that a
    run here goes by. Blocks.
    """
    judged = policy.judged(root)
    changes = changes.model_copy(update={"root": judged.path, "acting": {}})
    return apply(
        part_of(changes, paths),
        judged.path,
        identity=judged.identity,
        dry_run=dry_run,
        allow_links=allow_links,
        allow_acting=allow_acting,
        own=policy.own_places(),
        home=policy.home,
        configs=policy.git_configs,
    )


def unknown_place(run_id: str) -> ApplyRefused:
    """The refusal of a run whose workspace this client has not sent."""
    return ApplyRefused(
        f"run {run_id} does not work on a directory that was sent from here, so its changes are "
        "not applied; to apply them to one: `orchestrator apply RUN --server URL --to DIR`"
    )
