"""What git tracks, read from its index: as git itself says it, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.workspace.git.index import tracked_paths
from tests.workspace.trees import git, make

FILES = {
    **{f"src/{letter * length}.py": letter for letter in "abc" for length in (1, 7, 8, 9, 60, 200)},
    "src/ä/ö.txt": "umlauts",
    "README": "r",
    "later": "added with intent",
}


def repository(root: Path, *options: str) -> Path:
    make(root, FILES)
    git(root, "init", "-q", *options)
    git(root, "add", "-A", "--", ":!later")
    git(root, "add", "--intent-to-add", "later")  # of which only format 3 can tell
    return root


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("names", ["sha1", "sha256"])
def test_the_paths_are_those_that_git_lists(tmp_path: Path, version: str, names: str) -> None:
    root = repository(tmp_path, f"--object-format={names}")
    git(root, "update-index", "--index-version", version)
    data = (root / ".git/index").read_bytes()
    listed = git(root, "ls-files", "-z").rstrip("\0").split("\0")
    assert tracked_paths(data, sha256=names == "sha256") == frozenset(listed)
    assert set(listed) == set(FILES)


def test_of_an_index_in_two_parts_nothing_is_known(tmp_path: Path) -> None:
    root = repository(tmp_path)
    git(root, "update-index", "--split-index")
    assert tracked_paths((root / ".git/index").read_bytes()) is None


@given(data=st.binary(max_size=300), version=st.integers(0, 5), count=st.integers(0, 5))
def test_no_bytes_make_it_raise(data: bytes, version: int, count: int) -> None:
    head = b"DIRC" + version.to_bytes(4, "big") + count.to_bytes(4, "big")
    for each in (data, head + data, head + bytes(60) + data):
        tracked_paths(each)
