"""What .gitignore files leave out of a copy, and of what comes back: as git itself sees it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.workspace.reading.ignore import Ignore
from orchestrator.workspace.reading.ignore_pattern import read_pattern
from orchestrator.workspace.transfer import collect, copy_in
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


NAMES = (
    *("b", "aa", "aab", "ba", "-", "]", "a-b", "!a", "#a", "a ", "é", "[a]", "a\\b", "**", ":"),
)

PIECES = (
    *("a", "b", "a", "b", "-", "]", "é", ":", "#", " ", "/", "/", "\\", "!", "\t"),
    *("*", "*", "**", "**/", "/**", "/**/", "***", "?", "[", "[!", "[^", "[a-", "[]"),
    *("[[:alpha:]]", "[[:nonsense:]]", "[:", ":]", "\\/", "\\*", "[a/b]"),
)

LINES = st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join))


PATHS = [f"{folder}{name}" for folder in ("", "a/", "ab/", "ab/a/", "ab/a/ab/") for name in NAMES]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with files whose names are hard to tell from patterns."""
    root = make(tmp_path_factory.mktemp("names"), dict.fromkeys(PATHS, ""))
    git(root, "init", "-q")
    return root


def rules_of(root: Path, *folders: str) -> Ignore:
    ignore = Ignore()
    for folder in folders:
        fd = os.open(root / folder, os.O_RDONLY)
        try:
            ignore.enter(folder, fd)
        finally:
            os.close(fd)
    return ignore


@given(lines=LINES, below=LINES)
@example(lines=["a**/b", "!ab/a**"], below=["a**/a"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_patterns_mean_what_they_mean_to_git(
    names: Path, lines: list[str], below: list[str]
) -> None:
    (names / ".gitignore").write_text("\n".join(lines), newline="")
    (names / "ab/.gitignore").write_text("\r\n".join(below), newline="")
    others = ("ls-files", "--others", "-z", "--exclude-per-directory=.gitignore")
    taken = {*git(names, *others).split("\0")}
    ignore = rules_of(names, "", "ab")
    again = Ignore(ignore.rules)  # as a session that goes on has them
    for path in PATHS:
        assert ignore.ignored_anywhere(path, folder=False) == (path not in taken), path
        assert again.ignored_anywhere(path, folder=False) == (path not in taken), path


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("a*" * 100 + "b", "a" * 255),
        ("?*" * 100 + "b", "a" * 255),
        ("**/a/" * 100 + "b", "a/" * 200 + "c"),
        ("/**/a*a*a*/**/a*a*b*" * 10, "a/" * 200 + "c"),
    ],
)
def test_no_pattern_takes_for_ever(line: str, path: str) -> None:
    pattern = read_pattern(line)
    assert pattern is not None
    assert not pattern.matches(path.encode().split(b"/"), folder=False)
    assert not Ignore({"": [line]}).ignored_anywhere(path, folder=False)


@pytest.mark.timeout(20)
def test_a_line_that_is_longer_than_any_name_matches_nothing() -> None:
    assert read_pattern("[!a]" * 250_000) is None
    assert read_pattern("*?" * 255) is not None
    assert read_pattern("*?" * 256) is None
    assert read_pattern("?" * 256) is None
    assert read_pattern("*" * 1_000_000) is not None
