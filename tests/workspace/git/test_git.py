"""Repositories of every kind in a copy: git works there, and nothing points out of it."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.runtime import Container
from orchestrator.domain.container import WORKSPACE, Launch
from orchestrator.workspace.git.config import (
    read_config,
    safe_config,
    without_any_credentials,
    without_credentials,
)
from orchestrator.workspace.transfer import copy_in
from tests.workspace.trees import PATIENCE, LocalBox, git, make, repository, tree

ENV = {"PATH": "/usr/bin:/bin", "HOME": "/home/agent"}


async def inside(container: Container, script: str) -> str:
    done = await container.run(Launch(argv=("sh", "-ec", script), env=ENV, cwd=WORKSPACE))
    assert done.code == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "main", {"a.txt": "a\n", "sub dir/b.txt": "b\n"})


async def test_a_linked_worktree_stands_alone_in_its_copy(
    container: Container, project: Path, tmp_path: Path
) -> None:
    tree_path = tmp_path / "linked"
    git(project, "worktree", "add", "-q", "-b", "feature", str(tree_path))
    make(tree_path, {"new.txt": "staged\n"})
    git(tree_path, "add", "new.txt")
    make(project, {".git/hooks/post-commit": "#!/bin/sh\ntouch /workspace/hooked\n"})
    (project / ".git/hooks/post-commit").chmod(0o755)

    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(container, tree_path, allowed=lambda _: True)
        status = await inside(container, "git status --porcelain --branch; git log --format=%s")
        await inside(container, "git commit -q -m agent; git diff --quiet; git fsck; test -d .git")
        await inside(container, "test ! -e hooked; git checkout -q main; git gc -q")
    assert snapshot.warnings == ()
    assert status == "## feature\nA  new.txt\nfirst\n"
    assert git(project, "log", "--all", "--format=%s") == "first\n"


async def test_submodules_and_what_they_are_in_stand_alone(
    container: Container, project: Path, tmp_path: Path
) -> None:
    library = repository(tmp_path / "library", {"lib.txt": "lib\n"})
    git(project, "submodule", "add", "-q", str(library), "vendor/lib")
    git(project, "commit", "-q", "-m", "submodule")
    script = "git status --porcelain; git -C vendor/lib log --format=%s; test -d vendor/lib/.git"
    with anyio.fail_after(PATIENCE):
        whole = await copy_in(container, project)
        said = await inside(container, script)
        alone = await copy_in(container, project / "vendor/lib", allowed=lambda _: True)
        own = await inside(container, "git status --porcelain; git log --format=%s")
    assert whole.warnings == alone.warnings == ()
    assert (said, own) == ("first\n", "first\n")
    assert "vendor/lib/.git" in whole.git_places


async def test_a_git_file_that_names_somebody_elses_repository_is_not_believed(
    project: Path, tmp_path: Path, copy: Path
) -> None:
    secret = repository(tmp_path / "secret", {"secret.txt": "secret\n"})
    git(secret, "worktree", "add", "-q", str(tmp_path / "theirs"))
    for name in (secret / ".git", secret / ".git/worktrees/theirs"):
        thief = make(tmp_path / "thief", {".git": f"gitdir: {name}\n", "file": "x"})
        with anyio.fail_after(PATIENCE):
            snapshot = await copy_in(LocalBox(), thief, target=str(copy), allowed=lambda _: True)
        assert not (copy / ".git").exists()
        assert "does not name it in turn" in snapshot.warnings[0]


async def test_a_worktree_of_a_repository_that_is_not_allowed_has_no_git(
    project: Path, tmp_path: Path, copy: Path
) -> None:
    git(project, "worktree", "add", "-q", str(tmp_path / "linked"))
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), tmp_path / "linked", target=str(copy))
    assert not (copy / ".git").exists()
    assert "may not be shown to agents" in snapshot.warnings[0]


async def test_borrowed_objects_are_copied_if_they_may_be(
    project: Path, tmp_path: Path, copy: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--shared", str(project), str(clone))
    with anyio.fail_after(PATIENCE):
        refused = await copy_in(LocalBox(), clone, target=str(copy))
        assert "git will miss some history" in refused.warnings[0]
        taken = await copy_in(LocalBox(), clone, target=str(copy), allowed=lambda _: True)
    assert taken.warnings == ()
    assert not (copy / ".git/objects/info/alternates").exists()
    assert git(copy, "log", "--format=%s") == "first\n"
    assert git(copy, "fsck") == ""


async def test_nothing_of_a_git_directory_that_could_act_is_copied(
    project: Path, copy: Path
) -> None:
    config = "[core]\n fsmonitor = touch /tmp/x\n hooksPath = /evil\n[include]\n path = /etc/x\n"
    make(project, {".git/config": config, ".git/hooks/pre-commit": "x", ".git/strange": "x"})
    os.symlink("/etc/passwd", project / ".git/refs/heads/evil")
    with anyio.fail_after(PATIENCE):
        await copy_in(LocalBox(), project, target=str(copy))
    names = {name.split("/")[0] for name in tree(copy / ".git")}
    assert names <= {"HEAD", "index", "config", "info", "objects", "refs", "logs", "packed-refs"}
    text = (copy / ".git/config").read_text()
    assert "evil" not in text
    assert "touch" not in text
    assert not os.path.lexists(copy / ".git/refs/heads/evil")
    assert git(copy, "status", "--porcelain") == ""


async def test_no_password_that_git_was_called_with_is_copied(
    project: Path, tmp_path: Path, copy: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    make(project, {"a.txt": "newer\n"})
    git(project, "commit", "-q", "-a", "-m", "second")
    address = f"file://me:s3cr3t@localhost{project}"  # git 2.39 notes the whole of it
    git(clone, "pull", "-q", address, "main")
    git(clone, "remote", "add", "other", address)
    git(clone, "config", "branch.main.remote", address)
    git(clone, "config", f"remote.{address}.fetch", "refs/heads/main")
    make(clone, {"a.txt": "stashed\n"})
    git(clone, "stash", "push", "-q", "-m", "work in progress")
    make(clone, {".git/MERGE_MSG": f"Merge {address}\n"})
    assert "s3cr3t" in (clone / ".git/logs/HEAD").read_text()
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), clone, target=str(copy))
    assert snapshot.warnings == ()
    for path in (copy / ".git").rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes(), path
    told = git(copy, "reflog", "--format=%gs")
    assert told.splitlines()[1] == f"pull -q file://localhost{project} main: Fast-forward"
    assert git(copy, "stash", "list") == "stash@{0}: On main: work in progress\n"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (b"pull https://me:pw@host/x: Fast-forward\n", b"pull https://host/x: Fast-forward\n"),
        (b"clone: from https://tok%40en@host:8443/x\r\n", b"clone: from https://host:8443/x\r\n"),
        (b"https://me:p@ss@host?token=x a", b"https://host a"),
        (b"fetch https://a:b@c,https://d:e?f@g/h?i", b"fetch https://c,https://g/h"),
        (b"ssh://git:pw@host/a@b", b"ssh://host/a@b"),
        (b"A U Thor <me@example.org> 1 +0000\tcommit: a?b", None),
        (b"merge feature://", None),
        (b"", None),
    ],
)
def test_a_text_without_what_lets_somebody_in(text: bytes, clean: bytes | None) -> None:
    assert without_any_credentials(text) == (text if clean is None else clean)


def test_a_text_that_is_all_addresses_is_looked_through_in_one_go() -> None:
    assert without_any_credentials(b"://a" * 1_000_000) == b"://a" * 1_000_000
    assert without_any_credentials(b"://@" * 1_000_000) == b"://" * 1_000_000


async def test_a_reflog_that_is_too_long_to_be_looked_through_is_left_out(
    project: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.workspace.git.directory.MAX_TEXT_BYTES", 10)
    with anyio.fail_after(PATIENCE):
        snapshot = await copy_in(LocalBox(), project, target=str(copy))
    assert "too long to be looked through for passwords" in snapshot.warnings[0]
    assert not (copy / ".git/logs/HEAD").exists()
    assert git(copy, "status", "--porcelain") == ""


def test_remotes_lose_their_credentials_and_nothing_else_is_kept() -> None:
    text = """
[core]
	repositoryformatversion = 0
	autocrlf = input ; a comment
	sshCommand = evil
[remote "origin"]
	url = https://me:ghp_secret@example.org/acme/widget.git?token=x
	fetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
	remote = origin
	merge = "refs/heads/main"
[credential]
	helper = "!evil"
[url "https://me:ghp_secret@example.org/"]
	insteadOf = https://example.org/
[filter "lfs"] clean = evil
[user]
	name = "A \\"B\\" C"
"""
    kept = set(read_config(safe_config(read_config(text))))
    assert ("remote", "origin", "url", "https://example.org/acme/widget.git") in kept
    assert ("remote", "origin", "fetch", "+refs/heads/*:refs/remotes/origin/*") in kept
    assert ("branch", "main", "merge", "refs/heads/main") in kept
    assert ("core", "", "autocrlf", "input") in kept
    assert ("user", "", "name", 'A "B" C') in kept
    assert "evil" not in str(kept)
    assert "secret" not in str(kept)


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("git@example.org:acme/widget", "git@example.org:acme/widget"),
        ("ssh://git:pw@example.org/x", "ssh://git@example.org/x"),
        ("https://token@example.org:8443/x", "https://example.org:8443/x"),
        ("/srv/git/x.git", "/srv/git/x.git"),
        ("https://[broken/x", ""),
    ],
)
def test_an_address_without_what_lets_somebody_in(url: str, clean: str) -> None:
    assert without_credentials(url) == clean
