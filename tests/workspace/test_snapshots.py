"""Turns of one session that are applied late, one after another: none goes missing unseen."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.mounts import MountPolicy
from orchestrator.engine.workspaces.copies import SNAPSHOTS, Copies
from orchestrator.errors import ApplyRefused
from orchestrator.workspace.changes.collected import Change, Changes, State
from orchestrator.workspace.kept import Handed
from orchestrator.workspace.reading.tree import Snapshot
from orchestrator.workspace.snapshots import Snapshots, rebased, updated
from orchestrator.workspace.transfer import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, make, tree

ROOT = Path("/w")
ABSENT = State()


def file(text: str, mode: int = 0o644) -> State:
    return State(kind="file", mode=mode, size=1, sha256=text * 64)


def changes(**paths: tuple[State, State]) -> Changes:
    each = (Change(path=path, old=old, new=new) for path, (old, new) in paths.items())
    return Changes(root=ROOT, changes=tuple(each))


def copied(**paths: State) -> Snapshot:
    entries = {path: state.entry() for path, state in paths.items()}
    return Snapshot(
        root=ROOT,
        entries={path: entry for path, entry in entries.items() if entry is not None},
        git_places=frozenset(),
        ignore=None,
        total_bytes=0,
        total_count=0,
    )


FIRST = changes(
    a=(file("0"), file("1")), f=(ABSENT, file("1")), k=(file("0"), ABSENT), d=(ABSENT, ABSENT)
)
APPLIED = updated(copied(a=file("0"), k=file("0")), FIRST, ["d"], at=1.0, now=10.0)


def test_what_was_applied_is_noted_with_its_time() -> None:
    assert APPLIED.applied == {"a": 10.0, "f": 10.0, "k": 10.0}
    again = updated(APPLIED, FIRST, ["d"], at=1.0, now=20.0)
    assert again == APPLIED, "it was there already"


def test_a_later_turn_is_compared_with_what_was_applied_of_an_earlier_one() -> None:
    later = changes(
        a=(file("0"), file("2")),
        f=(ABSENT, file("1")),
        k=(file("0"), ABSENT),
        n=(ABSENT, file("2")),
    )
    assert rebased(later, APPLIED, at=2.0) == changes(
        a=(file("1"), file("2")),
        f=(file("1"), file("1")),
        k=(ABSENT, ABSENT),
        n=(ABSENT, file("2")),
    )


def test_a_turn_that_took_back_what_was_applied_since_is_refused() -> None:
    later = changes(a=(file("0"), file("2")))
    with pytest.raises(ApplyRefused, match=r"do not tell of it:\n  f\n  k\ncall the session once"):
        rebased(later, APPLIED, at=2.0)


@pytest.mark.parametrize("path", ["a", "k"])
def test_a_turn_that_took_a_content_back_and_kept_only_its_mode_is_refused(path: str) -> None:
    later = {
        "a": (file("0"), file("2")),
        "f": (ABSENT, file("2")),
        "k": (file("0"), ABSENT),
        path: (file("0"), file("0", 0o755)),
    }
    with pytest.raises(ApplyRefused, match=f"do not tell of it:\n  {path}\ncall"):
        rebased(changes(**later), APPLIED, at=2.0)


def test_a_turn_after_what_was_applied_need_not_touch_it() -> None:
    later = changes(n=(ABSENT, file("2")))
    assert rebased(later, APPLIED, at=11.0) == later


def test_a_turn_that_was_applied_stays_as_it_is() -> None:
    assert rebased(FIRST, APPLIED, at=1.0) is FIRST


def test_a_snapshot_is_read_as_it_was_kept_and_so_is_an_earlier_one(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    snapshots.keep("c", APPLIED)
    assert snapshots.get("c") == APPLIED
    path = tmp_path / "c.json"
    kept = json.loads(path.read_text())
    del kept["applied"]
    path.write_text(json.dumps(kept))
    earlier = snapshots.get("c")
    assert earlier is not None
    assert (earlier.applied, earlier.applied_at) == ({}, 1.0)
    path.write_text(json.dumps({**kept, "applied": ["a"]}))
    assert snapshots.get("c") is None


class Session:
    """A session with a copy of a project, without a container."""

    def __init__(self, tmp_path: Path, copy: Path) -> None:
        self.root = make(tmp_path / "project", {"a": "0\n", "k": "0\n", "m": "0\n"})
        self.copy = copy
        policy = MountPolicy(roots=(tmp_path,), home=tmp_path / "home")
        self.copies = Copies(tmp_path / "state/changes", policy)
        self._snapshots = Snapshots(tmp_path / "state" / SNAPSHOTS)

    async def begin(self) -> None:
        snapshot = await copy_in(LocalBox(), self.root, target=str(self.copy), marked=True)
        self._snapshots.keep("c", snapshot)

    async def turn(self, run_id: str, work: Callable[[Path], None]) -> None:
        work(self.copy)
        snapshot = self._snapshots.get("c")
        assert snapshot is not None
        at, folder = time.time(), self.copies.kept.new(run_id)
        found = await collect(LocalBox(), snapshot, folder, target=str(self.copy))
        handed = Handed(
            at=at, changed_files=found.files, container="c", marker=snapshot.marker.decode()
        )
        self.copies.kept.keep(run_id, handed, at_work=False)

    def is_like_its_copy(self) -> bool:
        inside = {p: it for p, it in tree(self.copy).items() if not p.startswith(".orchestrator")}
        return tree(self.root) == inside


async def test_a_turn_that_took_back_what_was_applied_is_applied_with_the_next_one(
    tmp_path: Path, copy: Path
) -> None:
    def first(copy: Path) -> None:
        make(copy, {"a": "1\n", "f": "1\n", "d/e": "1\n"})
        (copy / "k").unlink()

    def second(copy: Path) -> None:
        make(copy, {"a": "2\n", "k": "0\n"})
        (copy / "f").unlink()
        (copy / "d/e").unlink()
        (copy / "d").rmdir()

    session = Session(tmp_path, copy)
    with anyio.fail_after(PATIENCE):
        await session.begin()
        await session.turn("r1", first)
        await session.turn("r2", second)
        session.copies.apply("r1", dry_run=False)
        before = tree(session.root)
        for dry_run in (True, False):
            with pytest.raises(ApplyRefused, match=r":\n  d\n  d/e\n  f\n  k\ncall the session"):
                session.copies.apply("r2", dry_run=dry_run)
        assert tree(session.root) == before
        await session.turn("r3", lambda _: None)
        session.copies.apply("r3", dry_run=False)
    assert session.is_like_its_copy()


async def test_turns_are_applied_late_and_twice(tmp_path: Path, copy: Path) -> None:
    def first(copy: Path) -> None:
        make(copy, {"a": "1\n", "f": "1\n"})
        (copy / "k").unlink()

    def third(copy: Path) -> None:
        make(copy, {"m": "3\n"})

    session = Session(tmp_path, copy)
    with anyio.fail_after(PATIENCE):
        await session.begin()
        await session.turn("r1", first)
        await session.turn("r2", lambda copy: (copy / "m").chmod(0o755))
        session.copies.apply("r1", dry_run=False)
        await session.turn("r3", third)
        assert session.copies.apply("r1", dry_run=False).already
        for run_id in ("r2", "r3"):
            assert not session.copies.apply(run_id, dry_run=True).already
            session.copies.apply(run_id, dry_run=False)
            assert session.copies.apply(run_id, dry_run=False).already
    assert session.is_like_its_copy()
