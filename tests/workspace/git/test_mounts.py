"""A .git that an agent may see and not write, on the real engine."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.domain.container import WORKSPACE, Bind, ContainerSpec, Launch, User
from orchestrator.errors import MountRefused
from orchestrator.settings import Settings
from orchestrator.workspace.git.mounts import git_mounts, git_places, new_git_dirs
from tests.workspace.trees import PATIENCE, git, make, repository

OWNER = 1234

ATTACKS = (
    "echo evil > .git/hooks/pre-commit",
    "echo evil >> .git/config",
    "mv .git .git2",
    "rm -rf .git",
    "mv sub/.git sub/.git2",
    "echo 'gitdir: /workspace/evil' > sub/.git",
    "mkdir x && mv x .git",
    "ln -sfn /tmp .git",
)


def owned(root: Path) -> Path:
    for path in (root, *root.rglob("*")):
        os.chown(path, OWNER, OWNER, follow_symlinks=False)
    return root


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_an_agent_that_may_write_writes_no_git_and_its_files_are_the_owners(
    runtime: DockerRuntime, spec: ContainerSpec, settings: Settings
) -> None:
    work = settings.allowed_roots[0]
    library = repository(work / "library", {"lib.txt": "lib\n"})
    root = repository(work / "project", {"a.txt": "a\n"})
    git(root, "submodule", "add", "-q", str(library), "sub")
    owned(root)
    before = git_places(root)
    mounts = (Bind(source=str(root), read_only=False), *git_mounts(root, "rw"))
    wanted = spec.model_copy(update={"mounts": mounts, "user": User(uid=OWNER, gid=OWNER)})
    with anyio.fail_after(PATIENCE):
        async with runtime.open(wanted) as container:
            for attack in ATTACKS:
                launch = Launch(argv=("sh", "-c", attack), env={"HOME": "/tmp"}, cwd=WORKSPACE)
                assert (await container.run(launch)).code != 0, attack
            script = "git status --porcelain && mkdir made && echo x > made/file && mkdir made/.git"
            done = await container.run(Launch(argv=("sh", "-ec", script), cwd=WORKSPACE))
            assert done.code == 0, done.stderr
    assert {path.stat().st_uid for path in (root / "made").rglob("*")} == {OWNER}
    assert new_git_dirs(before, git_places(root)) == ("made/.git",)
    assert git(root, "status", "--porcelain", "--", "a.txt") == ""


async def test_git_works_in_a_linked_worktree_that_is_shown(
    runtime: DockerRuntime, spec: ContainerSpec, settings: Settings
) -> None:
    work = settings.allowed_roots[0]
    project = repository(work / "project", {"a.txt": "a\n"})
    git(project, "worktree", "add", "-q", str(work / "linked"))
    mounts = (Bind(source=str(work / "linked")), *git_mounts(work / "linked", "ro", lambda _: True))
    env = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    with anyio.fail_after(PATIENCE):
        async with runtime.open(spec.model_copy(update={"mounts": mounts})) as container:
            launch = Launch(argv=("git", "log", "--format=%s"), env=env, cwd=WORKSPACE)
            done = await container.run(launch)
    assert (done.stdout, done.code) == (b"first\n", 0), done.stderr


def test_every_git_is_found_and_mounted_over_itself(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {".git/HEAD": "x", "a/b/.git": "gitdir: x", "c/.GIT/x": ""})
    assert {bind.target for bind in git_mounts(root, "rw")} == {
        "/workspace/.git",
        "/workspace/a/b/.git",
        "/workspace/c/.GIT",
    }
    assert all(bind.read_only for bind in git_mounts(root, "rw"))
    assert git_mounts(root, "ro") == ()


def test_a_git_outside_is_shown_only_if_it_is_allowed_and_names_the_worktree(
    tmp_path: Path,
) -> None:
    project = repository(tmp_path / "project", {"a.txt": "a\n"})
    linked = tmp_path / "linked"
    git(project, "worktree", "add", "-q", str(linked))
    shared = str(project / ".git")
    status = Path(shared).stat()
    which = f"{status.st_dev}:{status.st_ino}"
    assert git_mounts(linked, "ro", lambda _: True) == (
        Bind(source=shared, target=shared, identity=which),
    )
    assert git_mounts(linked, "ro") == ()
    thief = make(tmp_path / "thief", {".git": (linked / ".git").read_text()})
    assert git_mounts(thief, "ro", lambda _: True) == ()


def test_a_git_that_cannot_be_kept_from_an_agent_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {"real/HEAD": "x"})
    (root / ".git").symlink_to("real")
    with pytest.raises(MountRefused, match="is a symbolic link"):
        git_mounts(root, "rw")
    many = make(tmp_path / "many", {f"{n}/.git": "gitdir: x" for n in range(65)})
    with pytest.raises(MountRefused, match="65 git repositories"):
        git_mounts(many, "rw")


def test_a_git_that_was_replaced_is_told(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {"sub/.git/config": "x"})
    before = git_places(root)
    (root / "sub").rename(root / "aside")
    make(root, {"sub/.git/config": "evil"})
    assert sorted(new_git_dirs(before, git_places(root))) == ["aside/.git", "sub/.git"]


def test_what_git_takes_for_a_repository_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    root = make(tmp_path / "project", {"half/objects/x": "", "half/refs/x": ""})
    git(root, "init", "-q", "--bare", "bare")
    before = git_places(root)
    assert [bind.target for bind in git_mounts(root, "rw")] == ["/workspace/bare"]
    make(root, {"half/head": "", "new/deep/HEAD": "", "new/deep/commondir": "../../half"})
    assert sorted(new_git_dirs(before, git_places(root))) == ["half", "new/deep"]
    with pytest.raises(MountRefused, match="is itself what git keeps a repository in"):
        git_mounts(root / "bare", "rw")
    make(root, {"HEAD": "", "objects/": "", "refs/": ""})
    assert "." in new_git_dirs(before, git_places(root))
