"""A patch made without git is one that git takes; contents are kept under their hashes."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import anyio
import pytest

from orchestrator.workspace.changes.objects import SMALL, TOGETHER, Objects
from orchestrator.workspace.changes.plain_patch import write_plain_patch
from orchestrator.workspace.git.config import read_config
from orchestrator.workspace.paths import in_git
from orchestrator.workspace.reading.ignore_pattern import read_pattern
from orchestrator.workspace.transfer import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, git, make, tree

LINES = "".join(f"{number}\n" for number in range(20))


async def test_git_takes_a_patch_of_every_kind_of_change(tmp_path: Path, copy: Path) -> None:
    files: dict[str, str | bytes] = {"middle": LINES, "gone": "x\n", "mode": "", "type": "t\n"}
    files |= {"gone.bin": b"\0\1", "latin1": "thé\n".encode("latin-1")}
    root = make(tmp_path / "project", {**files, "end": "no newline", "same": "same\n"})
    before = shutil.copytree(root, tmp_path / "before")
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
        make(copy, {"middle": LINES.replace("10\n", "ten\n"), "end": "still none", "new": "n\n"})
        make(copy, {"latin1": "café\n".encode("latin-1"), "new.bin": bytes(range(256)) * 3})
        (copy / "gone.bin").unlink()
        (copy / "gone").unlink()
        (copy / "mode").chmod(0o755)
        (copy / "type").unlink()
        (copy / "type").symlink_to("same")
        changes = await collect(LocalBox(), snapshot, tmp_path / "kept", target=str(copy))
        changes = await anyio.to_thread.run_sync(write_plain_patch, changes)
    (patch,) = (tmp_path / "kept").rglob("*patch*")
    assert changes.utf8_patch_path == patch
    assert changes.patch_bytes == patch.stat().st_size
    git(before, "apply", str(patch))
    assert tree(before) == tree(copy)
    said = patch.read_text()
    assert "@@ -8,7 +8,7 @@\n 7\n 8\n 9\n-10\n+ten\n 11\n 12\n 13\n" in said
    assert "--- /dev/null\n+++ b/new\n@@ -0,0 +1,1 @@\n+n\n" in said
    assert "deleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n" in said
    assert "old mode 100644\nnew mode 100755\n" in said
    assert "deleted file mode 100644\n--- a/type" in said
    assert "new file mode 120000\n--- /dev/null\n+++ b/type" in said
    assert said.count("\\ No newline at end of file\n") == 3  # the link has none, either


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 2 * SMALL + 3, TOGETHER + 1])
async def test_contents_of_any_size_are_kept_under_their_hashes(size: int, tmp_path: Path) -> None:
    objects = Objects(tmp_path)
    contents = [bytes([letter]) * size for letter in b"ab"]
    for content in contents:
        for at in range(0, size, 700_000):
            await objects.write(content[at : at + 700_000])
            assert len(objects._buffer) <= SMALL
        assert await objects.finish() == (hashlib.sha256(content).hexdigest(), size)
    await objects.flush()
    kept = {hashlib.sha256(content).hexdigest(): content for content in contents}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize(
    ("written", "value"),
    [("a\\\\", "a\\"), ('a\\"b', 'a"b'), ("a\\", "a\\"), ("a ; b", "a"), ('"a ; b" ', "a ; b")],
)
def test_a_value_of_a_git_configuration_is_read_as_git_reads_it(written: str, value: str) -> None:
    (setting,) = read_config(f"[a]\n\tb = {written}")
    assert setting[-1] == value


@pytest.mark.parametrize("unseen", ["\u200c", "\u200f", "\u202a", "\u202e", "\u206a", "\ufeff"])
def test_a_name_with_a_character_that_is_not_seen_is_gits_all_the_same(unseen: str) -> None:
    assert in_git(f"a/.g{unseen}it/hooks")


@pytest.mark.parametrize(
    ("kind", "byte", "inside"),
    [
        *(("cntrl", b"\x1f", True), ("cntrl", b"\x7f", True), ("cntrl", b"\x80", False)),
        *(("graph", b"~", True), ("graph", b"\x7f", False), ("graph", b" ", False)),
        *(("print", b"~", True), ("print", b" ", True), ("print", b"\x7f", False)),
    ],
)
def test_a_named_class_of_a_pattern_has_the_bytes_it_has_for_git(
    kind: str, byte: bytes, inside: bool
) -> None:
    pattern = read_pattern(f"[[:{kind}:]]")
    assert pattern is not None
    assert bool(pattern.matches([byte], folder=False)) is inside
