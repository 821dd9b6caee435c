"""Random trees and random work: what comes back, applied, is what the agent had."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.transfer import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, Tree, git, tree

NAMES = st.sampled_from(["a", "b", "c d", "é", "x\ny", "-n", '"q"', "\\"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o600]), st.binary(max_size=200))
LINKS = st.tuples(st.just("symlink"), st.sampled_from(["nowhere", "./x"]))  # git minds loops
FOLDERS = st.tuples(st.just("dir"), st.sampled_from([0o755, 0o700, 0o500]))
TREES = st.dictionaries(PATHS, st.one_of(FILES, FILES, LINKS, FOLDERS), max_size=10)


def plant(root: Path, wanted: Tree) -> None:
    """As much of a tree as can be: a path below a file is passed over."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    folders: list[tuple[Path, int]] = []
    for name, state in sorted(wanted.items()):
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent.resolve() != path.parent.absolute():
                continue
            match state:
                case ("file", int(mode), bytes(content)):
                    path.write_bytes(content)
                    path.chmod(mode)
                case ("symlink", str(target)):
                    path.symlink_to(target)
                case ("dir", int(mode)):
                    path.mkdir()
                    folders.append((path, mode))
        except OSError:
            continue  # below a file, or through a link
    for path, mode in reversed(folders):
        path.chmod(mode)


def as_taken(root: Path) -> Tree:
    """What is handed back of a tree: of modes, whether a file can be run."""
    return {
        path: (state[0], bool(int(str(state[1])) & 0o100), state[2])
        if state[0] == "file"
        else state[:1]
        if state[0] == "dir"
        else state
        for path, state in tree(root).items()
    }


def as_git_sees(root: Path) -> Tree:
    return {
        path: (state[0], bool(int(str(state[1])) & 0o100), state[2])
        if state[0] == "file"
        else state
        for path, state in tree(root).items()
        if state[0] != "dir"
    }


async def _round_trip(before: Tree, after: Tree) -> None:
    with tempfile.TemporaryDirectory(prefix="orchestrator-test-") as folder:
        base = Path(folder).resolve()
        root, copy = base / "root", base / "copy"
        plant(root, before)
        for theirs in ("theirs", "early"):
            shutil.copytree(root, base / theirs, symlinks=True)
        copy.mkdir()
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
        assert tree(copy) == tree(root)
        wanted = base / "wanted"
        plant(wanted, after)
        for name in os.listdir(copy):
            path = copy / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(wanted, copy, symlinks=True, dirs_exist_ok=True)
        early = await collect(LocalBox(), snapshot, base / "middle", at_work=True, target=str(copy))
        changes = await collect(LocalBox(), snapshot, base / "kept", target=str(copy))
        assert early.changes == changes.changes
        assert changes.complete
        assert changes.warnings == ()
        apply(changes, root, allow_links=True)
        assert as_taken(root) == as_taken(wanted)
        assert apply(changes, root).already
        in_the_way = any(c.old.kind == "dir" and c.new.kind != "dir" for c in changes.changes)
        for made, theirs in ((early, "early"), (changes, "theirs")):
            if made.patch_path is not None and made.patch_bytes and not in_the_way:
                # git knows no directories: an empty one it neither removes nor puts a file in
                # place of
                git(base / theirs, "apply", "--whitespace=nowarn", str(made.patch_path))
                assert as_git_sees(base / theirs) == as_git_sees(wanted)


@settings(max_examples=15)
@given(TREES, TREES)
def test_any_tree_becomes_any_other(before: Tree, after: Tree) -> None:
    async def bounded() -> None:
        with anyio.fail_after(PATIENCE):
            await _round_trip(before, after)

    anyio.run(bounded)
