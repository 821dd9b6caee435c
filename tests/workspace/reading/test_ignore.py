"""What .gitignore files leave out of a copy, and of what comes back: as git itself sees it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.changes.collected import Changes
from orchestrator.workspace.reading.ignore import Ignore
from orchestrator.workspace.reading.ignore_pattern import read_pattern
from orchestrator.workspace.snapshots import _dumped, _loaded
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


PROJECT = {
    ".gitignore": "__pycache__/\n*.log\nbuild/\n.env\n",
    "src/app.py": "one\n",
    "build/kept.txt": "tracked all the same\n",
}
BY_PRODUCTS = {
    "src/__pycache__/app.pyc": "old",
    "src/__pycache__/gone.pyc": "old",
    "build/out.txt": "old",
    "debug.log": "old",
}


async def handed_back(root: Path, copy: Path, work: Callable[[Path], object]) -> Changes:
    """What comes of work on a copy that holds all there is, ignored or not."""
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
        assert snapshot.total_count > len(PROJECT) + len(BY_PRODUCTS)
        work(copy)
        kept = root.parent / "kept"
        return await collect(LocalBox(), _loaded(_dumped(snapshot)), kept, target=str(copy))


def run_it(copy: Path) -> None:
    make(copy, {"src/app.py": "two\n", "new/b.py": "b", "build/kept.txt": "changed\n"})
    make(copy, dict.fromkeys(("src/__pycache__/app.pyc", "build/out.txt", "debug.log"), "new"))
    make(copy, {"src/__pycache__/b.pyc": "", "new/__pycache__/b.pyc": "", "build/x/y": ""})
    make(copy, {"logs/today.log": "", "node_modules/a.log": ""})
    (copy / "src/__pycache__/gone.pyc").unlink()


async def test_by_products_stay_out_of_the_changes_though_they_are_in_the_copy(
    tmp_path: Path, copy: Path
) -> None:
    root = repository(tmp_path / "project", PROJECT)
    git(root, "add", "-f", "build/kept.txt")
    make(root, BY_PRODUCTS)
    changes = await handed_back(root, copy, run_it)
    assert [(file.path, file.change) for file in changes.files] == [
        ("build/kept.txt", "modified"),
        ("new/b.py", "added"),
        ("src/app.py", "modified"),
    ]
    assert changes.patch_path is not None
    patch = changes.patch_path.read_text()
    assert patch.count("diff --git") == 3
    assert changes.warnings == ("left out of the changes, since .gitignore names it: debug.log",)
    assert changes.by_products == (
        "left out of the changes, as .gitignore says: build, logs, new/__pycache__ and 2 more",
    )
    before = {path: (root / path).read_text() for path in BY_PRODUCTS}
    apply(changes, root)
    assert {path: (root / path).read_text() for path in BY_PRODUCTS} == before
    assert not (root / "logs").exists()
    assert (root / "src/app.py").read_text() == "two\n"


async def test_where_git_does_not_say_what_it_tracks_only_new_files_are_by_products(
    tmp_path: Path, copy: Path
) -> None:
    root = make(tmp_path / "project", {**PROJECT, **BY_PRODUCTS})
    changes = await handed_back(root, copy, run_it)
    assert {file.path for file in changes.files} == {
        *("build/kept.txt", "build/out.txt", "debug.log", "new/b.py", "src/app.py"),
        *("src/__pycache__/app.pyc", "src/__pycache__/gone.pyc"),
    }


async def test_a_directory_that_goes_keeps_its_by_products_and_one_that_is_replaced_does_not(
    tmp_path: Path, copy: Path
) -> None:
    root = repository(tmp_path / "project", {**PROJECT, "lib/a.py": "a"})
    make(root, {**BY_PRODUCTS, "lib/__pycache__/a.pyc": "old"})

    def remove(copy: Path) -> None:
        shutil.rmtree(copy / "src")
        shutil.rmtree(copy / "lib")
        (copy / "lib").write_text("a file now")

    changes = await handed_back(root, copy, remove)
    assert changes.complete
    apply(changes, root)
    assert (root / "lib").read_text() == "a file now"
    assert sorted(path.name for path in (root / "src").rglob("*")) == [
        *("__pycache__", "app.pyc", "gone.pyc"),
    ]
