"""A part of the changes: what is asked for, what cannot go without it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from orchestrator.errors import ApplyRefused
from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.applying.part import part_of
from orchestrator.workspace.changes.collected import Changes
from tests.workspace.applying.test_apply import changed, everything, project
from tests.workspace.trees import tree


@pytest.fixture
def changes(tmp_path: Path) -> Changes:
    (tmp_path / "copy").mkdir()
    return anyio.run(changed, project(tmp_path), tmp_path / "copy", everything)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.txt"], {"a.txt"}),
        (["a.txt", "b.txt"], {"a.txt", "b.txt"}),
        (["dir/moved.txt"], {"dir/c.txt", "dir/moved.txt"}),
        (["dir/c.txt"], {"dir/c.txt", "dir/moved.txt"}),
        (["new/deep/file"], {"new", "new/deep", "new/deep/file"}),
        (["new"], {"new", "new/deep", "new/deep/file", "new/empty"}),
        (["gone/e.txt"], {"gone/e.txt"}),
        (["gone"], {"gone", "gone/e.txt"}),
    ],
)
def test_what_belongs_together_is_chosen_together(
    changes: Changes, paths: list[str], expected: set[str]
) -> None:
    assert {change.path for change in part_of(changes, paths).changes} == expected
    assert part_of(changes, []) == part_of(changes, ["."]) == changes


def test_a_path_that_has_not_changed_is_refused(changes: Changes) -> None:
    for path in ("dir/deep/d.txt", "nosuch", "a.tx", "../a.txt"):
        with pytest.raises(ApplyRefused, match="the run has changed nothing at") as refused:
            part_of(changes, ["a.txt", path])
        assert "a.txt" in str(refused.value)


def test_a_part_is_applied_whatever_has_become_of_the_rest_and_the_rest_can_follow(
    changes: Changes, tmp_path: Path
) -> None:
    root = tmp_path / "project"
    (root / "b.txt").write_text("moved on\n")
    before = tree(root)
    with pytest.raises(ApplyRefused):
        apply(part_of(changes, ["a.txt", "b.txt"]), root)  # all of what is asked for, or nothing
    assert tree(root) == before

    applied = apply(part_of(changes, ["a.txt", "new/deep"]), root)
    assert [file.path for file in applied.files] == ["a.txt", "new/deep/file"]
    assert (root / "a.txt").read_text() == "changed\n"
    assert (root / "new/deep/file").read_text() == "new\n"
    assert (root / "dir/c.txt").exists()

    (root / "b.txt").write_text("b\n")
    apply(changes, root)
    assert (root / "dir/moved.txt").exists()
    assert not (root / "gone").exists()
