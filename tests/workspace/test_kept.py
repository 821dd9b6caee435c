"""What is kept of runs: a crash at any point leaves something whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.domain.result import ChangedFile
from orchestrator.errors import ApplyRefused
from orchestrator.workspace.kept import Handed, Kept


def handed(at: float, *paths: str) -> Handed:
    files = tuple(ChangedFile(path=path, change="added") for path in paths)
    return Handed(at=at, changed_files=files, patch="+x\n")


def write(kept: Kept, what: Handed) -> None:
    place = kept.new("r1")
    place.mkdir(parents=True)
    (place / "content").write_text(what.changed_files[0].path if what.changed_files else "")


def checkpoint(kept: Kept, what: Handed) -> None:
    write(kept, what)
    kept.keep("r1", what, at_work=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_crash_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    checkpoint(kept, handed(1000.0, "a"))
    checkpoint(kept, handed(2000.0, "b"))
    write(kept, handed(3000.0, "c"))
    assert names(tmp_path) == ["r1.2000000", "r1.new"]

    assert Kept(tmp_path).recall("r1") == handed(2000.0, "b")
    assert names(tmp_path) == ["r1"]
    assert (kept.of("r1") / "content").read_text() == "b"
    assert Kept(tmp_path).recall("r1") == handed(2000.0, "b"), "another process asks as well"


def test_a_crash_before_the_old_checkpoint_is_removed_leaves_the_new_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    checkpoint(kept, handed(1000.0, "a"))
    shutil.copytree(tmp_path / "r1.1000000", tmp_path / "old")
    checkpoint(kept, handed(2000.0, "b"))
    (tmp_path / "old").rename(tmp_path / "r1.1000000")
    assert kept.recall("r1") == handed(2000.0, "b")
    assert names(tmp_path) == ["r1"]


def test_a_crash_after_a_run_has_handed_back_leaves_what_it_handed_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    checkpoint(kept, handed(1000.0, "a"))
    shutil.copytree(tmp_path / "r1.1000000", tmp_path / "old")
    write(kept, handed(2000.0, "b"))
    kept.keep("r1", handed(2000.0, "b"), at_work=False)
    assert names(tmp_path) == ["old", "r1"], "its checkpoint is gone"
    (tmp_path / "old").rename(tmp_path / "r1.1000000")
    assert kept.recall("r1") == handed(2000.0, "b")
    assert names(tmp_path) == ["r1"]


@pytest.mark.parametrize("at_work", [True, False])
def test_nothing_is_left_when_nothing_is_changed_any_more(tmp_path: Path, at_work: bool) -> None:
    kept = Kept(tmp_path)
    checkpoint(kept, handed(1000.0, "a"))
    write(kept, handed(2000.0))
    kept.keep("r1", handed(2000.0), at_work=at_work)
    assert names(tmp_path) == []
    assert kept.recall("r1") is None


def test_all_that_is_left_of_a_run_is_counted_and_removed(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "changes")
    assert kept.sizes() == {}
    checkpoint(kept, handed(1000.0, "a"))
    shutil.copytree(tmp_path / "changes" / "r1.1000000", kept.of("r1"))
    one = kept.sizes()["r1"] // 2
    write(kept, handed(2000.0, "b"))
    (kept.of("r2")).mkdir()
    assert kept.sizes() == {"r1": 2 * one + 1, "r2": 0}
    kept.remove("r1")
    assert names(tmp_path / "changes") == ["r2"]


def test_a_name_that_is_no_run_leads_nowhere(tmp_path: Path) -> None:
    for run_id in ("../x", "r1.new", "*"):
        with pytest.raises(ApplyRefused, match="is no run"):
            Kept(tmp_path).remove(run_id)


def hand_back(kept: Kept, what: Handed) -> None:
    write(kept, what)
    kept.keep("r1", what, at_work=False)


def test_what_each_of_several_runners_handed_back_stays_and_the_last_counts(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    for at, path in ((1000.0, "a"), (2000.0, "b"), (3000.0, "c")):
        hand_back(kept, handed(at, path))
    assert names(tmp_path) == ["r1", "r1.tried-1", "r1.tried-2"]
    assert [(tmp_path / name / "content").read_text() for name in names(tmp_path)] == [*"cab"]
    hand_back(kept, handed(4000.0))  # this one has put all of it back
    assert names(tmp_path) == ["r1.tried-1", "r1.tried-2", "r1.tried-3"]
    assert kept.handed("r1") is None
    kept.remove("r1")
    assert names(tmp_path) == []


def test_a_runner_that_is_lost_leaves_its_checkpoint_or_what_was_handed_back_before_it(
    tmp_path: Path,
) -> None:
    kept = Kept(tmp_path)
    hand_back(kept, handed(1000.0, "a"))
    assert kept.recall("r1") == handed(1000.0, "a"), "the next one has not even begun"
    checkpoint(kept, handed(2000.0, "b"))
    assert names(tmp_path) == ["r1", "r1.2000000"]
    assert kept.recall("r1") == handed(2000.0, "b")
    assert names(tmp_path) == ["r1", "r1.tried-1"]
