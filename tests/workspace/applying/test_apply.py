"""Changes onto the host's directory: all or nothing. The copies here are made without an engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.errors import ApplyRefused, CopyFailed
from orchestrator.workspace.applying.apply import Applied, apply
from orchestrator.workspace.changes.collected import Changes
from orchestrator.workspace.paths import STAGE
from orchestrator.workspace.transfer import collect, copy_in
from tests.workspace.trees import PATIENCE, LocalBox, Tree, git, make, tree

FILES: dict[str, str | bytes] = {
    "a.txt": "a\n",
    "b.txt": "b\n",
    "dir/c.txt": "c\n",
    "dir/deep/d.txt": "d\n",
    "gone/e.txt": "e\n",
}


async def changed(
    root: Path, copy: Path, work: Callable[[Path], None], *, gitignore: bool = False
) -> Changes:
    """The changes of an agent that does this to its copy."""
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy), gitignore=gitignore)
        work(copy)
        return await collect(LocalBox(), snapshot, root.parent / "kept", target=str(copy))


def everything(copy: Path) -> None:
    (copy / "a.txt").write_text("changed\n")
    (copy / "b.txt").chmod(0o700)
    (copy / "dir/c.txt").rename(copy / "dir/moved.txt")
    (copy / "gone/e.txt").unlink()
    (copy / "gone").rmdir()
    make(copy, {"new/deep/file": "new\n", "new/empty/": ""})
    (copy / "link").symlink_to("dir/moved.txt")


def project(folder: Path) -> Path:
    root = make(folder / "project", FILES)
    (root / "b.txt").chmod(0o600)
    (root / "gone").chmod(0o750)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    """What `everything` does to FILES; collected once, since that takes programs and git."""
    folder = tmp_path_factory.mktemp("collected")
    (folder / "copy").mkdir()
    return anyio.run(changed, project(folder), folder / "copy", everything)


@pytest.fixture
def changes(collected: Changes, root: Path, copy: Path) -> Changes:
    """The same for this test's root and copy, which are as they were when it was collected."""
    shutil.copytree(collected.root.parent / "copy", copy, symlinks=True, dirs_exist_ok=True)
    kept = shutil.copytree(collected.folder, root.parent / "kept")
    return collected.model_copy(update={"root": root, "folder": kept})


def test_a_dry_run_says_what_would_be_done_and_touches_nothing(
    root: Path, copy: Path, changes: Changes
) -> None:
    before = tree(root)
    assert apply(changes, root, dry_run=True) == Applied(files=changes.files, dry_run=True)
    assert tree(root) == before
    apply(changes, root)
    assert tree(root) == tree(copy)


def edit(root: Path) -> None:
    (root / "a.txt").write_text("the user's\n")


def edit_mode(path: Path) -> None:
    path.chmod(0o600)


def remove(root: Path) -> None:
    (root / "b.txt").unlink()


def create(root: Path) -> None:
    (root / "link").write_text("there already")


def replace_by_link(root: Path) -> None:
    (root / "gone/e.txt").unlink()
    (root / "gone/e.txt").symlink_to("/etc/passwd")


def replace_by_pipe(root: Path) -> None:
    (root / "a.txt").unlink()
    os.mkfifo(root / "a.txt")


def make_parent_a_link(root: Path) -> None:
    (root / "dir").rename(root.parent / "elsewhere")
    (root / "dir").symlink_to(root.parent / "elsewhere")


def put_link_for_new_parent(root: Path) -> None:
    (root / "new").symlink_to(root.parent)


def without_stage(root: Path) -> Tree:
    return {path: state for path, state in tree(root).items() if not path.startswith(STAGE)}


def in_stage(root: Path) -> list[bytes]:
    """What is left of an apply that could not put everything back."""
    return [path.read_bytes() for path in root.glob(f"{STAGE}*/old-*")]


def identities(root: Path) -> dict[str, tuple[int, ...]]:
    rows = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (it.st_ino, it.st_mode, it.st_mtime_ns) for path, it in rows.items()}


@pytest.mark.parametrize(
    "meanwhile",
    [
        edit,
        remove,
        create,
        replace_by_link,
        replace_by_pipe,
        make_parent_a_link,
        put_link_for_new_parent,
    ],
)
def test_a_directory_that_has_moved_on_is_left_alone(
    root: Path, copy: Path, changes: Changes, meanwhile: Callable[[Path], None]
) -> None:
    meanwhile(root)
    before = identities(root)
    with pytest.raises(ApplyRefused, match="was left as it is"):
        apply(changes, root)
    assert identities(root) == before


@pytest.mark.parametrize("step", ["rename", "rmdir", "mkdir", "fchmod"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_step_that_fails_takes_all_steps_before_it_back(
    root: Path, copy: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    before, real = tree(root), getattr(os, step)
    calls = 0

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += not str(args[0]).startswith(STAGE)  # which is cleared up in any case
        if calls == nth:
            calls += 1
            raise OSError(28, "No space left on device")
        return real(*args, **options)

    monkeypatch.setattr(os, step, failing)
    try:
        apply(changes, root)
    except CopyFailed as exc:
        assert "No space left" in str(exc)  # noqa: PT017 there are fewer steps of some kinds
    else:
        before = tree(copy)
    monkeypatch.undo()
    assert tree(root) == before


def save(path: Path) -> None:
    path.write_text("the user's\n")


def save_as_editors_do(path: Path) -> None:
    (path.parent / "scratch").write_text("the user's\n")
    (path.parent / "scratch").rename(path)


def save_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    path.write_text("?\n")  # as long as it was
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def at_call(
    monkeypatch: pytest.MonkeyPatch, step: str, nth: int, meanwhile: Callable[[], None]
) -> None:
    """Let something happen before the nth call of a function of `os`, and not again."""
    real, calls = getattr(os, step), 0

    def called(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == nth:
            meanwhile()
        return real(*args, **options)

    monkeypatch.setattr(os, step, called)


@pytest.mark.parametrize("name", ["a.txt", "dir/c.txt", "gone/e.txt"])
@pytest.mark.parametrize(
    "saving", [save, save_as_editors_do, save_and_set_the_time_back, Path.unlink, edit_mode]
)
def test_what_is_saved_after_it_was_looked_at_is_not_lost(
    root: Path,
    copy: Path,
    changes: Changes,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    saving: Callable[[Path], None],
) -> None:
    saved: list[Tree] = []

    def meanwhile() -> None:
        saving(root / name)
        saved.append(without_stage(root))

    at_call(monkeypatch, "symlink", 1, meanwhile)  # written with all that is new, before any step
    with pytest.raises(ApplyRefused, match=f"{name} was changed by another program"):
        apply(changes, root)
    assert [tree(root)] == saved


@pytest.mark.parametrize("name", ["a.txt", "link", "new/deep/file", "dir/moved.txt"])
@pytest.mark.parametrize("links", [True, False])
def test_what_is_saved_where_something_new_goes_is_not_overwritten(
    root: Path,
    copy: Path,
    changes: Changes,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    links: bool,
) -> None:
    before = tree(root)
    real = os.link
    saved = False

    def link(source: str, target: str, **options: Any) -> None:
        nonlocal saved
        if not saved and target == Path(name).name:
            saved = True
            save(root / name)
        if not links:
            raise PermissionError(1, "Operation not permitted")  # as FAT says
        real(source, target, **options)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(ApplyRefused, match=f"{name} was changed by another program"):
        apply(changes, root)
    assert (root / name).read_text() == "the user's\n"
    after = without_stage(root)
    assert in_stage(root) == ([b"a\n"] if name == "a.txt" else [])
    for path in (name, "new/deep", "new"):  # a directory with their file in it stays
        after.pop(path, None)
        before.pop(path, None)
    assert after == before


def test_what_is_written_to_a_file_that_was_open_is_not_lost(
    root: Path, copy: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(root)
    with (root / "a.txt").open("ab", buffering=0) as file:

        def meanwhile() -> None:
            file.write(b"more\n")

        at_call(monkeypatch, "rmdir", 1, meanwhile)
        with pytest.raises(ApplyRefused, match=r"a\.txt was changed by another program"):
            apply(changes, root)
    assert tree(root) == {**before, "a.txt": ("file", 0o644, b"a\nmore\n")}


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("saving", [save, save_as_editors_do])
def test_neither_what_is_saved_over_a_change_nor_what_was_there_before_is_lost(
    root: Path,
    copy: Path,
    changes: Changes,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    saving: Callable[[Path], None],
) -> None:
    before = tree(root)

    def meanwhile() -> None:
        saving(root / "a.txt")
        raise failure

    at_call(monkeypatch, "rmdir", 1, meanwhile)
    with pytest.raises(CopyFailed, match=r"another program saved a\.txt \(old-0\)") as failed:
        apply(changes, root)
    (stage,) = root.glob(f"{STAGE}*")
    assert f"what was there before is in {stage} under" in str(failed.value)
    assert (stage / "old-0").read_text() == "a\n"
    assert without_stage(root) == {**before, "a.txt": ("file", 0o644, b"the user's\n")}


def test_what_is_saved_as_it_was_before_needs_no_second_copy(
    root: Path, copy: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(root)

    def meanwhile() -> None:
        (root / "a.txt").write_text("a\n")
        raise OSError(28, "No space left on device")

    at_call(monkeypatch, "rmdir", 1, meanwhile)
    with pytest.raises(CopyFailed, match="is as it was before"):
        apply(changes, root)
    assert tree(root) == before


async def test_files_that_are_one_by_hard_links_can_be_changed(
    root: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, other in (("a.txt", "a2.txt"), ("b.txt", "b2.txt")):
        (root / other).hardlink_to(root / name)

    def work(copy: Path) -> None:
        (copy / "a.txt").write_text("changed\n")
        (copy / "a2.txt").unlink()
        (copy / "b.txt").write_text("changed\n")
        (copy / "b2.txt").chmod(0o700)

    def tick() -> None:
        """Wait until the clock of the file system shows another time."""
        scratch = root.parent / "scratch"
        scratch.touch()
        first = scratch.stat().st_ctime_ns
        while scratch.stat().st_ctime_ns == first:
            scratch.touch()

    changes = await changed(root, copy, work)
    at_call(monkeypatch, "rename", 2, tick)
    apply(changes, root)
    assert tree(root) == tree(copy)


@pytest.mark.parametrize("step", ["mkdir", "rename", "link", "unlink", "rmdir", "fchmod", "stat"])
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_an_apply_that_is_broken_off_does_all_of_it_or_nothing(
    root: Path, copy: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch, step: str, nth: int
) -> None:
    before, real, calls = tree(root), getattr(os, step), 0

    def interrupted(*args: object, **options: object) -> object:
        nonlocal calls
        result = real(*args, **options)
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(os, step, interrupted)
    with suppress(KeyboardInterrupt):
        apply(changes, root)
    monkeypatch.undo()
    assert tree(root) in (before, tree(copy))


@pytest.mark.parametrize("step", ["mkdir", "link", "unlink", "chmod", "rmdir", "stat", "open"])
@pytest.mark.parametrize("times", [(1,), (2,), (1, 2, 3), (5, 6)])
def test_what_is_broken_off_while_it_is_taken_back_is_taken_back_all_the_same(
    root: Path,
    copy: Path,
    changes: Changes,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    times: tuple[int, ...],
) -> None:
    before, real, fchmod = tree(root), getattr(os, step), os.fchmod
    calls, interrupts = 0, 0

    def interrupted(*args: object, **options: object) -> object:
        nonlocal calls, interrupts
        result = real(*args, **options)
        if any(str(arg).startswith(STAGE) for arg in args):
            return result  # all is back, and the stage is cleared away
        calls += 1
        if calls in times:
            if step == "open":
                os.close(result)
            interrupts += 1
            raise KeyboardInterrupt
        return result

    def last_step(fd: int, mode: int) -> None:
        if mode == 0o700:
            monkeypatch.setattr(os, step, interrupted)
            raise OSError(28, "No space left on device")
        fchmod(fd, mode)

    monkeypatch.setattr(os, "fchmod", last_step)
    with pytest.raises((KeyboardInterrupt, CopyFailed)) as failed:
        apply(changes, root)
    monkeypatch.undo()
    assert failed.type is (KeyboardInterrupt if interrupts else CopyFailed)
    assert tree(root) == before


def test_an_interruption_while_all_is_taken_back_still_tells_what_was_saved(
    root: Path, copy: Path, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:

    def interrupt() -> None:
        raise KeyboardInterrupt

    def meanwhile() -> None:
        save(root / "a.txt")
        at_call(monkeypatch, "link", 1, interrupt)  # the first to be put back
        raise OSError(28, "No space left on device")

    at_call(monkeypatch, "rmdir", 1, meanwhile)
    with pytest.raises(CopyFailed, match=r"was broken off: another program saved a\.txt") as failed:
        apply(changes, root)
    assert isinstance(failed.value.__cause__, KeyboardInterrupt)
    assert in_stage(root) == [b"a\n"]
    assert (root / "gone/e.txt").read_text() == "e\n"


async def test_a_directory_that_holds_more_than_was_copied_stays(root: Path, copy: Path) -> None:
    make(root, {".gitignore": "*.log\n", "gone/run.log": "not copied\n"})
    changes = await changed(root, copy, everything, gitignore=True)
    assert apply(changes, root).kept_folders == ("gone",)
    assert sorted(os.listdir(root / "gone")) == ["run.log"]
    assert apply(changes, root).already


@pytest.mark.parametrize(
    "target",
    [
        *("/etc/passwd", "../outside", "dir/../../outside", "dir/../x"),
        *(".git", ".git/hooks", "./dir/.GIT/config", "GIT~1/hooks", ".g\u200cit/hooks", ".git ./x"),
    ],
)
async def test_a_link_that_may_lead_out_or_to_git_needs_a_word(
    root: Path, copy: Path, target: str
) -> None:
    changes = await changed(root, copy, lambda it: (it / "link").symlink_to(target))
    with pytest.raises(ApplyRefused, match=r"out of the directory or into a \.git") as refused:
        apply(changes, root)
    assert f"`orchestrator apply {changes.run_id} --allow-links`" in str(refused.value)
    apply(changes, root, allow_links=True)
    assert os.readlink(root / "link") == target


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_what_is_new_belongs_to_whoever_owns_the_directory(root: Path, copy: Path) -> None:
    for folder, _, names in os.walk(root):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, 1234, 4321)
    os.chown(root / "a.txt", 77, 88)
    changes = await changed(root, copy, everything)
    apply(changes, root)
    owners = {
        str(path.relative_to(root)): (path.lstat().st_uid, path.lstat().st_gid)
        for path in root.rglob("*")
    }
    assert owners.pop("a.txt") == (77, 88)
    assert set(owners.values()) == {(1234, 4321)}


async def test_what_an_apply_left_that_was_killed_is_not_copied(root: Path, copy: Path) -> None:
    make(root, {f"{STAGE}0123/old-0": "before\n", f"dir/{STAGE}4567/old-0": "before\n"})
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
    assert sorted(path for path in tree(copy) if "orchestrator" in path) == []
    (warning,) = snapshot.warnings
    assert warning.endswith(f"when it was killed: {STAGE}0123, dir/{STAGE}4567")


async def test_set_user_id_is_not_taken_over(root: Path, copy: Path) -> None:
    def work(copy: Path) -> None:
        make(copy, {"evil": "#!/bin/sh\n"})
        (copy / "evil").chmod(0o6755)

    apply(await changed(root, copy, work), root)
    assert (root / "evil").stat().st_mode & 0o7777 == 0o755


def test_a_content_that_was_tampered_with_is_not_applied(
    root: Path, copy: Path, changes: Changes
) -> None:
    for path in (root.parent / "kept/objects").iterdir():
        path.write_text("tampered")
    before = tree(root)
    with pytest.raises(ApplyRefused, match="is missing or damaged"):
        apply(changes, root)
    assert tree(root) == before


def test_what_is_kept_is_for_nobody_else(root: Path, copy: Path, changes: Changes) -> None:
    assert changes.folder.stat().st_mode & 0o777 == 0o700


async def test_what_is_as_the_agent_made_it_already_is_no_conflict(root: Path, copy: Path) -> None:
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), root, target=str(copy))
        everything(copy)
        first = await collect(LocalBox(), snapshot, root.parent / "first", target=str(copy))
        apply(first, root)
        (copy / "a.txt").write_text("changed\n")
        make(copy, {"new/deep/second": "2\n"})
        second = await collect(LocalBox(), snapshot, root.parent / "second", target=str(copy))
    applied = apply(second, root)
    assert [file.path for file in applied.files] == ["new/deep/second"]
    assert tree(root) == tree(copy)


EVIL = """[core]
    repositoryformatversion = 0
    bare = false
    worktree = ..
    fsmonitor = "touch {}; false"
"""


def repository_of_no_name(folder: Path, pwned: Path) -> None:
    """What git takes for a repository, and runs a command of."""
    make(folder, {"HEAD": "ref: refs/heads/x\n", "objects/": "", "refs/": ""})
    (folder / "config").write_text(EVIL.format(pwned))


@pytest.mark.parametrize("place", ["docs", "dir", "dir/deep/er", "."])
async def test_a_directory_that_git_takes_for_a_repository_is_left_out(
    root: Path, copy: Path, place: str
) -> None:
    pwned = root.parent / "pwned"

    def work(copy: Path) -> None:
        repository_of_no_name(copy / place, pwned)
        make(copy, {"dir/fine": "fine\n"})

    changes = await changed(root, copy, work)
    apply(changes, root)
    assert changes.complete
    assert any(
        f"since git would take it for a repository, and run what it says: {place}" in warning
        for warning in changes.warnings
    )
    assert (root / "dir/fine").exists()
    assert not (root / place / "HEAD").exists()
    git(root, "init", "-q")
    git((root / place) if (root / place).exists() else root, "status")
    assert not pwned.exists()


async def test_nothing_of_a_repository_without_a_git_is_changed(tmp_path: Path, copy: Path) -> None:
    root = make(tmp_path / "project", {"a.txt": "a\n"})
    git(root, "init", "-q", "--bare", "fixtures/one.git")
    before = tree(root / "fixtures")

    def work(copy: Path) -> None:
        (copy / "a.txt").write_text("changed\n")
        (copy / "fixtures/one.git/config").write_text(EVIL.format(tmp_path / "pwned"))
        (copy / "fixtures").rename(copy / "moved")
        (copy / "fixtures").symlink_to("moved")

    changes = await changed(root, copy, work)
    apply(changes, root)
    assert tree(root / "fixtures") == before
    assert (root / "a.txt").read_text() == "changed\n"
    assert "fixtures/one.git, moved/one.git" in " ".join(changes.warnings)


async def test_a_repository_that_only_the_host_would_complete_is_refused(
    root: Path, copy: Path
) -> None:
    def work(copy: Path) -> None:
        make(copy, {"dir/Refs/x": "x", "dir/objects/x": "x", "dir/config": "x"})

    changes = await changed(root, copy, work)
    make(root, {"dir/HEAD": "ref: refs/heads/x\n"})
    before = identities(root)
    with pytest.raises(ApplyRefused, match="dir is or would be a repository to git"):
        apply(changes, root)
    assert identities(root) == before
