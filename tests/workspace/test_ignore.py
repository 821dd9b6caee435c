"""What .gitignore files leave out of a copy, and of what comes back: as git itself sees it."""

from __future__ import annotations

from pathlib import Path

import anyio

from orchestrator.workspace.copies import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, git, make, repository, tree

FILES: dict[str, str | bytes] = {
    ".gitignore": "*.log\n!keep.log\nbuild/\n/only-here\nsub/*.tmp\n# no pattern\n\\#odd\n[\n",
    "a.log": "",
    "keep.log": "",
    "only-here": "",
    "deep/only-here": "",
    "build/out": "",
    "deep/build/out": "",
    "sub/x.tmp": "",
    "sub/.gitignore": "!x.tmp\n*.local\nnested/\n",
    "sub/y.local": "",
    "sub/nested/z": "",
    "sub/keep.log": "",
    "other/y.local": "",
    "#odd": "",
    "café/x.log": "",
}


async def test_a_copy_holds_what_git_would_add(tmp_path: Path, copy: Path) -> None:
    root = repository(tmp_path / "project", FILES)
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, gitignore=True, target=str(copy))
    listed = git(root, "ls-files", "-z").rstrip("\0").split("\0")
    assert sorted(path for path, entry in snapshot.entries.items() if entry.kind == "file") == (
        sorted(listed)
    )
    assert sorted(path for path, state in tree(copy).items() if state[0] == "file") == sorted(
        listed
    )


async def test_what_is_ignored_does_not_come_back(tmp_path: Path, copy: Path) -> None:
    root = make(tmp_path / "project", FILES)
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, gitignore=True, target=str(copy))
        make(copy, {"build/new": "", "new.log": "", "sub/new.tmp": "", "sub/nested/deep/x": ""})
        make(copy, {"sub/fine": "", "keep.log": "changed"})
        changes = await collect(LocalBox(), snapshot, tmp_path / "kept", target=str(copy))
    assert [(file.path, file.change) for file in changes.files] == [
        ("keep.log", "modified"),
        ("sub/fine", "added"),
    ]
