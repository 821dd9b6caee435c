"""Attacks on what was judged: it is exchanged before it is used. Long races: tests/soak."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.container import MIB, Bind
from orchestrator.errors import CopyRefused
from orchestrator.workspace.changes.collected import Change, Changes, State
from orchestrator.workspace.changes.patch import Unmade, import_stream
from orchestrator.workspace.git.directory import pack_git, tracked_below
from orchestrator.workspace.paths import Root
from orchestrator.workspace.reading.pack import BATCH, Packer
from orchestrator.workspace.reading.tree import TreeCopy, nowhere
from tests.attacks.exchanging import OPEN, SECRET, Ground, exchange
from tests.attacks.mark import attack
from tests.workspace.trees import repository


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    ground.close()


class Late(MountPolicy):
    """A policy after whose judgement two names are exchanged at once."""

    names: tuple[Path, Path]

    def _allowed(self, mount: Bind) -> tuple[Path, str]:
        judged = super()._allowed(mount)
        exchange(*self.names)
        return judged


def late(ground: Ground, one: Path, other: Path) -> MountPolicy:
    return Late(roots=(ground.home,), home=ground.home, names=(one, other))


@attack(
    "files, links and archives",
    "exchange a workspace right after it was judged: with a link, or with another directory",
    "CopyRefused and ApplyRefused: it is opened without links and compared by device and inode",
)
async def test_what_takes_the_place_of_a_judged_workspace_is_refused(field: Ground) -> None:
    field.plant()
    other = field.home / "work" / "other"
    other.mkdir()
    (other / "file").write_bytes(OPEN)
    for place in (field.link, other):
        policy = late(field, field.project, place)
        assert await field.copied(policy) == "CopyRefused", place
        exchange(field.project, place)
        assert field.applied(policy) == "ApplyRefused", place
        exchange(field.project, place)
    assert list(other.iterdir()) == [other / "file"]


@attack(
    "files, links and archives",
    "exchange a directory above the workspace with a link, right after the workspace was judged",
    "CopyRefused and ApplyRefused: no part of the path may have become a link",
)
async def test_a_directory_above_a_judged_workspace_cannot_lead_elsewhere(field: Ground) -> None:
    field.plant()
    (field.ssh / "project").mkdir()
    (field.ssh / "project" / "key").write_bytes(SECRET)
    link = field.home / "link"
    link.symlink_to(field.ssh)
    policy = late(field, field.home / "work", link)

    assert await field.copied(policy) == "CopyRefused"
    exchange(field.home / "work", link)
    assert field.applied(policy) == "ApplyRefused"


@attack(
    "git",
    "exchange a workspace with a link to a repository of secrets while its files are copied",
    "CopyRefused: the .git is reached without following a link, as all else is",
)
def test_the_git_directory_of_an_exchanged_workspace_is_not_copied(field: Ground) -> None:
    repository(field.ssh, {})
    (field.ssh / ".git" / "MERGE_MSG").write_bytes(SECRET)
    repository(field.project, {"-large": b"x" * 2 * BATCH})  # copied before .git
    chunks = TreeCopy(field.project, gitignore=False, limit_bytes=2**30).chunks()
    got = [next(chunks)]
    field.exchange()
    with suppress(CopyRefused):
        got.extend(chunks)

    assert SECRET not in b"".join(got)


@attack(
    "files, links and archives",
    "exchange a workspace with another directory while it is copied, to have its .git copied",
    "the .git of the directory that was judged is: it is opened from there, and not by its name",
)
def test_the_git_directory_of_an_exchanged_workspace_is_its_own(field: Ground) -> None:
    other = field.project.with_name("other")
    for folder, branch in ((field.project, b"mine"), (other, SECRET)):
        (folder / ".git/objects").mkdir(parents=True)
        (folder / ".git/HEAD").write_bytes(b"ref: refs/heads/" + branch)
        (folder / ".git/config").write_bytes(b"[user]\nname = " + branch)
    packer = Packer(field.project, MIB)
    with Root(field.project) as root:
        exchange(field.project, other)
        copied = b"".join(pack_git(packer, root, ".git", nowhere)) + packer.end()
        index = tracked_below(root, ".git", nowhere)
    assert b"refs/heads/mine" in copied
    assert (SECRET in copied, index) == (False, None)


@attack(
    "files, links and archives",
    "exchange a workspace with a link to ~/.ssh before the patch of a run is made",
    "there is no patch: nothing is read through the link, and nothing of it enters the container",
)
def test_the_patch_of_an_exchanged_workspace_reads_nothing_else(field: Ground) -> None:
    (field.ssh / "large").write_bytes(SECRET + b"x" * 2 * BATCH)
    old = State(kind="file", mode=0o600, size=4 * BATCH, sha256=hashlib.sha256().hexdigest())
    changes = Changes(
        root=field.project, changes=(Change(path="large", old=old, new=State()),), folder=field.home
    )
    field.exchange()
    got: list[bytes] = []
    with suppress(OSError, Unmade):
        got.extend(import_stream(changes, set()))

    assert SECRET not in b"".join(got)
