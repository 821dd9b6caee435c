"""A workspace into a container and back, on the real engine."""

from __future__ import annotations

import shutil
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB, WORKSPACE, ContainerSpec, Launch, Volume
from orchestrator.domain.result import ChangedFile
from orchestrator.errors import ApplyRefused, CopyRefused
from orchestrator.workspace.applying.apply import apply
from orchestrator.workspace.changes.collected import Changes, load_changes
from orchestrator.workspace.paths import MARKER
from orchestrator.workspace.reading.tree import Snapshot
from orchestrator.workspace.transfer import collect, copy_in, is_there, is_untouched
from tests.workspace.trees import PATIENCE, LocalBox, LocalProgram, git, make, repository, tree

LINES = "".join(f"line {number}\n" for number in range(50))

FILES: dict[str, str | bytes] = {
    "README.md": LINES,
    "src/main.py": "print('hello')\n",
    "src/old_name.py": LINES + "# renamed as it is\n",
    "src/similar.py": LINES + "# renamed and edited\n",
    "src/gone.py": "gone\n",
    "src/windows.txt": "one\r\ntwo\r\n",
    "bin/tool": "#!/bin/sh\n",
    "data/picture.bin": bytes(range(256)) * 20,
    "data/other.bin": b"\0\1\2",
    "empty": "",
    "was/a/folder.txt": "becomes a file\n",
    "was-a-file": "becomes a folder\n",
    "umläut/ünï.txt": "ü\n",
    "new\nline.txt": "odd\n",
    ".gitattributes": "*.txt text eol=lf\n*.py -diff\n",
    "emptied/": "",
}

WORK = r"""
set -eu
cd /workspace
git status --porcelain >&2
test -z "$(git status --porcelain)"
echo 'line 51' >> README.md
mv src/old_name.py src/new_name.py
mv src/similar.py moved.py; echo '# edited' >> moved.py
rm src/gone.py
printf 'one\r\nTWO\r\n' > src/windows.txt
chmod 755 bin/tool
printf '\377\376\0binary' > data/other.bin
head -c 70000 /dev/urandom > data/new.bin
: > "new empty"
echo more > empty
rm -r was; echo 'now a file' > was
rm was-a-file; mkdir -p was-a-file/deep; echo 'now a folder' > was-a-file/deep/file
echo ü >> "umläut/ünï.txt"
printf 'even odder\n' >> "$(printf 'new\nline.txt')"
ln -s README.md link
ln -s ../README.md src/link
mkdir -p made/empty
git add -A; git commit -q -m 'the agent commits'; git log --oneline >&2
"""


async def work(container: Container, script: str) -> None:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/agent", "LC_ALL": "C.UTF-8"}
    done = await container.run(Launch(argv=("bash", "-c", script), env=env, cwd=WORKSPACE))
    assert done.code == 0, done.stderr.decode(errors="replace")


def without_folders(root: Path) -> dict[str, tuple[object, ...]]:
    """What git knows of a tree."""
    return {
        path: (state[0], bool(int(str(state[1])) & 0o100), state[2])
        if state[0] == "file"
        else state
        for path, state in tree(root).items()
        if state[0] != "dir"
    }


async def test_what_an_agent_did_comes_back_and_apply_and_git_apply_agree_on_it(
    container: Container, tmp_path: Path
) -> None:
    root = repository(tmp_path / "project", FILES)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    shutil.copytree(root, ours, symlinks=True)
    shutil.copytree(root, theirs, symlinks=True)

    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        await work(container, WORK)
        changes = await collect(container, snapshot, tmp_path / "kept")
        done = await container.run(
            Launch(argv=("sh", "-c", "cd /workspace && tar -c --exclude=./.git ."))
        )
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy.tar").write_bytes(done.stdout)
    shutil.unpack_archive(tmp_path / "copy.tar", tmp_path / "copy", filter="fully_trusted")

    assert changes.warnings == snapshot.warnings == ()
    assert changes == load_changes(tmp_path / "kept")
    assert apply(changes, ours).files == changes.files
    assert tree(ours) == tree(tmp_path / "copy")
    assert apply(changes, ours).already
    assert changes.patch_path is not None
    git(theirs, "apply", "--whitespace=nowarn", str(changes.patch_path))
    assert without_folders(theirs) == without_folders(ours)
    assert ChangedFile(path="src/new_name.py", change="renamed", old_path="src/old_name.py") in (
        changes.files
    )
    verbs = {file.path: file.change for file in changes.files}
    assert verbs == {
        "README.md": "modified",
        "bin/tool": "mode",
        "data/new.bin": "added",
        "data/other.bin": "modified",
        "empty": "modified",
        "link": "added",
        "made/empty": "added",
        "moved.py": "added",
        "new empty": "added",
        "new\nline.txt": "modified",
        "src/gone.py": "deleted",
        "src/link": "added",
        "src/new_name.py": "renamed",
        "src/similar.py": "deleted",
        "src/windows.txt": "modified",
        "umläut/ünï.txt": "modified",
        "was": "modified",
        "was-a-file": "modified",
        "was-a-file/deep/file": "added",
        "was/a/folder.txt": "deleted",
    }
    patch = changes.patch_path.read_text(errors="replace")
    assert "rename from src/similar.py" in patch
    assert "+# edited" in patch, "attributes in the tree cannot hide a change"


async def test_nothing_changed_is_no_change(container: Container, tmp_path: Path) -> None:
    root = repository(tmp_path / "project", FILES)
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        changes = await collect(container, snapshot, tmp_path / "kept")
    assert (changes.changes, changes.warnings, changes.complete) == ((), (), True)
    assert apply(changes, root).already


async def test_an_agent_at_work_is_left_alone_and_ended_before_its_copy_is_handed_back(
    container: Container, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"file": "x"})
    endless = "echo $$ > /tmp/pid; while :; do echo y >> /workspace/file; done"
    lives = Launch(argv=("sh", "-c", "kill -0 $(cat /tmp/pid)"))
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        await work(container, f"setsid sh -c '{endless}' > /dev/null 2>&1 &")
        while not (middle := await _collected(container, snapshot, tmp_path)).changes:
            pass  # it has just begun
        assert (await container.run(lives)).code == 0
        changes = await collect(container, snapshot, tmp_path / "kept")
        assert (await container.run(lives)).code != 0
        left = await container.run(Launch(argv=("cat", "/workspace/file")))
    assert middle.complete
    assert [file.path for file in changes.files] == ["file"]
    assert changes.object_path(changes.changes[0].new.sha256).read_bytes() == left.stdout


async def _collected(container: Container, snapshot: Snapshot, folder: Path) -> Changes:
    return await collect(container, snapshot, folder / "middle", at_work=True)


async def test_a_copy_is_untouched_only_if_the_kernel_says_so(
    container: Container, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"deep/file": "x", "other": "y"})
    with anyio.fail_after(PATIENCE):
        await copy_in(container, root)
        for command in (
            "touch -d 2001-01-01 deep/file",
            "rm other",
            "chmod 700 deep/file",
            "ln -s x deep/link",
        ):
            while not await is_untouched(container, 0.0):
                await anyio.sleep(0.05)
            await work(container, f"cd /workspace; {command}")
            assert not await is_untouched(container, 0.0), command
        assert not await is_untouched(container, 60.0)


HOSTILE = r"""
cd /workspace
mkfifo fifo
ln -s /etc/passwd stolen
ln -s .. up
ln outside-hard hard; ln keep hard-link
mkdir -p .git/hooks sub/.GIT/hooks sub/.git
echo evil > .git/hooks/pre-commit; echo evil > sub/.GIT/hooks/x; echo evil > sub/.git/config
touch "$(printf 'not-utf8-\377')"
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
rm -r folder; ln -s /etc folder
echo secret > locked; chmod 000 locked; mkdir shut; echo in > shut/in; chmod 000 shut
mkdir -p bomb; cd bomb; for i in $(seq 300); do mkdir d$i && cd d$i; done 2> /dev/null
exit 0
"""


async def test_what_a_hostile_agent_leaves_is_told_and_cannot_leave_the_tree(
    container: Container, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"keep": "keep\n", "folder/file": "in it\n"})
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        await work(container, HOSTILE)
        changes = await collect(container, snapshot, tmp_path / "kept")
    touched = {change.path: change.new.kind for change in changes.changes}
    assert not [path for path in touched if ".git" in path.lower() or path in ("fifo", "socket")]
    assert touched["locked"] == "file"
    assert touched["shut/in"] == "file"
    assert touched["folder"] == "symlink"
    assert touched["hard-link"] == "file"
    told = "\n".join(changes.warnings)
    for word in ("fifo", "sub/.GIT", "sub/.git", "not-utf8"):
        assert word in told
    before = tree(root)
    with pytest.raises(ApplyRefused, match="stolen is a new symbolic link that leads out"):
        apply(changes, root)
    assert tree(root) == before


async def test_a_flood_of_files_ends_in_a_warning_and_not_in_a_flood(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workspace.transfer.MAX_CHANGES", 1000)
    root = make(tmp_path / "project", {"file": "x"})
    flood = (
        "import os\n"
        "for n in range(3):\n"
        "    os.mkdir(f'/workspace/{n}')\n"
        "    for m in range(1000): os.symlink('x', f'/workspace/{n}/{m}')\n"
    )
    with anyio.fail_after(2 * PATIENCE):
        snapshot = await copy_in(container, root)
        done = await container.run(Launch(argv=("python3", "-c", flood)))
        assert done.code == 0, done.stderr
        changes = await collect(container, snapshot, tmp_path / "kept")
    assert not changes.complete
    assert "more than 1,000 things are new" in changes.warnings[-1]
    with pytest.raises(ApplyRefused, match="not complete"):
        apply(changes, root)


async def test_more_bytes_than_allowed_are_not_taken(container: Container, tmp_path: Path) -> None:
    root = make(tmp_path / "project", {"file": "x"})
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        await work(container, "echo small > a; truncate -s 10G sparse")
        changes = await collect(container, snapshot, tmp_path / "kept", limit_bytes=8 * MIB)
    assert not changes.complete
    assert "larger than 8 MiB; raise resources.disk_mb" in changes.warnings[-1]
    assert sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*")) < 20 * MIB


async def test_a_directory_that_is_too_large_is_refused_by_name(
    container: Container, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"large": b"x" * (2 * MIB)})
    with anyio.fail_after(PATIENCE), pytest.raises(CopyRefused, match=r"resources\.disk_mb"):
        await copy_in(container, root, limit_bytes=MIB)


async def test_a_copy_goes_with_its_container(
    runtime: DockerRuntime, spec: ContainerSpec, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"file": "x"})
    wanted = spec.model_copy(update={"mounts": (Volume(target=WORKSPACE),)})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(wanted) as container:
            await copy_in(container, root)
            found = await runtime.engine.call(runtime.engine.api.inspect_container, container.name)
            volume = found["Mounts"][0]["Name"]
        volumes = await runtime.engine.call(runtime.engine.api.volumes)
    assert volume not in [row["Name"] for row in volumes["Volumes"] or []]


async def test_without_room_or_git_there_is_no_patch_and_the_files_are_kept(
    container: Container, tmp_path: Path
) -> None:
    root = make(tmp_path / "project", {"file": "x"})
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, root)
        await work(container, "echo y > file")
        (root / "file").write_text("the user was quicker")
        changes = await collect(container, snapshot, tmp_path / "kept")
    assert changes.patch_path is None
    assert "there is no patch: file has changed in the workspace" in changes.warnings[-1]
    with pytest.raises(ApplyRefused, match="file has changed since the workspace was copied"):
        apply(changes, root)


class SlowGit(LocalBox):
    """Runs no git: whoever waits for it waits for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = anyio.Event()

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[LocalProgram]:
        if launch.argv[0] == "git":
            self.asked.set()
            launch = Launch(argv=("sleep", "600"))
        return super().spawn(launch)


async def test_a_patch_that_takes_too_long_costs_only_the_patch(tmp_path: Path, copy: Path) -> None:
    root, box, kept = make(tmp_path / "project", {"file": "x"}), SlowGit(), tmp_path / "kept"
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(box, root, target=str(copy))
        (copy / "file").write_text("y")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(collect, box, snapshot, kept, target=str(copy)))
            await box.asked.wait()
            tasks.cancel_scope.cancel()
    changes = load_changes(kept)
    assert changes.patch_path is None
    apply(changes, root)
    assert (root / "file").read_text() == "y"


async def test_a_marked_copy_is_known_again_and_its_mark_is_no_change(
    tmp_path: Path, copy: Path
) -> None:
    root, box = make(tmp_path / "project", {"file": "x", f"{MARKER}/mine": "x"}), LocalBox()
    git(root, "init", "-q")
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(box, root, marked=True, target=str(copy))
        assert await is_there(box, snapshot, target=str(copy))
        assert MARKER not in git(copy, "status", "--porcelain")
        changes = await collect(box, snapshot, tmp_path / "kept", target=str(copy))
        assert (changes.changes, changes.warnings) == ((), ())
        other = await copy_in(box, root, marked=True, target=str(copy))
        assert not await is_there(box, snapshot, target=str(copy))
        (copy / MARKER / ".gitignore").unlink()
        assert not await is_there(box, other, target=str(copy))
        plain = await copy_in(box, root, target=str(copy))
        assert not await is_there(box, plain, target=str(copy))
