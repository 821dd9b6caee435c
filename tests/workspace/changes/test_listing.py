"""Answers that no honest program gives: each of them ends in no changes, and a sentence."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from orchestrator.errors import ApplyRefused
from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.changes.collected import Changes, State
from orchestrator.workspace.paths import in_git, is_repository, leads_out, path_problem
from orchestrator.workspace.reading.pack import record
from orchestrator.workspace.transfer import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, make, tree

END = record("end", "")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make(tmp_path / "project", {"file": "x", "folder/file": "y"})


async def answered(root: Path, copy: Path, says: bytes) -> Changes:
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
        return await collect(LocalBox(says), snapshot, root.parent / "kept", target=str(copy))


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x04nope" + END,
        record("dir", "new", 0o755),  # and then nothing
        record("file", "../outside", 0o644, 1) + END,
        record("file", "/etc/passwd", 0o644, 1) + END,
        record("file", "a//b", 0o644, 1) + END,
        record("file", "nul\0", 0o644, 1) + END,
        record("file", "x" * 300, 0o644, 1) + END,
        record("file", "y/" * 3000 + "z", 0o644, 1) + END,
        record("file", "\udcff", 0o644, 1) + END,
        record("symlink", "twice", "a") + record("symlink", "twice", "b") + END,
        record("symlink", "parent", "/etc") + record("symlink", "parent/child", "x") + END,
        record("symlink", "folder", "/etc") + END,  # and what was in it is still there
        record("symlink", "nowhere/child", "x") + END,
        record("symlink", "file/child", "x") + END,
        record("symlink", "empty", "") + END,
        record("symlink", "odd", "\udcff") + END,
        record("deleted", "never-was") + END,
        record("deleted", "file") + record("symlink", "file", "x") + END,
        record("deleted", "folder") + END,
        record("mode", "folder", 0o755) + END,
        record("dir", "new", "0755") + END,
        record("unknown", "x") + END,
        record({"a": 1}, "x") + END,
        record("file", "never-sent", 0o644, 10**15) + END,
        b"\0\0\x10\x00" + b"[" * 4096 + END,
    ],
)
async def test_nonsense_is_no_change_and_says_so(root: Path, copy: Path, says: bytes) -> None:
    before = tree(root.parent)
    changes = await answered(root, copy, says)
    assert changes.changes == ()
    assert not changes.complete
    assert changes.warnings[-1].startswith("not all changes could be kept")
    with pytest.raises(ApplyRefused):
        apply(changes, root)
    assert tree(root) == {
        name.removeprefix("project/"): state
        for name, state in before.items()
        if name.startswith("project/")
    }


@pytest.mark.parametrize(
    "name", [".git", "a/.git/hooks/x", ".GIT/config", ".g\u200cit/x", "git~1", ".git ", ".git::$I"]
)
async def test_what_git_may_take_for_its_own_is_left_out(root: Path, copy: Path, name: str) -> None:
    assert in_git(name)
    changes = await answered(root, copy, record("symlink", name, "x") + END)
    assert changes.changes == ()
    assert "since it belongs to git" in changes.warnings[0]


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (("HEAD", "objects", "refs"), True),
        (("head", "Objects", "REFS", "src"), True),
        (("HEAD", "obj\u200cects", "refs. "), True),
        (("HEAD", "commondir"), True),
        (("HEAD", "objects"), False),
        (("objects", "refs", "config", "commondir"), False),
        (("HEADER", "objects", "refs"), False),
    ],
)
def test_what_makes_a_directory_a_repository(names: tuple[str, ...], is_one: bool) -> None:
    assert is_repository(names) is is_one


@pytest.mark.parametrize("path", [".gitignore", ".github/x", "digit", "a.git/x", "git"])
def test_names_that_look_like_git_are_welcome(path: str) -> None:
    assert not in_git(path)
    assert not path_problem(path)


@pytest.mark.parametrize(
    ("path", "target", "out"),
    [
        ("link", "file", False),
        ("a/b/link", "../../file", False),
        ("a/b/link", "../../../file", True),
        ("link", "..", True),
        ("a/link", "..", False),
        ("link", "/workspace/file", True),
        ("link", "a/../../x", True),
    ],
)
def test_where_a_link_leads(path: str, target: str, out: bool) -> None:
    assert leads_out(path, target) is out


def test_a_kept_manifest_takes_no_path_outside() -> None:
    for path in ("../x", "/x", "a/.git/config", "", "a/./b"):
        row = {"path": path, "old": State().model_dump(), "new": State().model_dump()}
        with pytest.raises(ValueError, match="changes"):
            Changes.model_validate({"root": "/x", "changes": [row]})
