"""Attacks by way of git: it runs what a repository tells it to, so agents may tell it nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.mark import attack
from tests.attacks.rig import Rig
from tests.attacks.spoils import OUTSIDE, Spoils, contents, git, work
from tests.engine.harness import Harness
from tests.gateway.secrets.git_server import HttpsServer


def used(root: Path) -> None:
    """What somebody does who looks at what an agent did, and keeps it."""
    git(root, "status")
    git(root, "diff")
    git(root, "add", "-A")
    git(root, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "kept")
    git(root, "checkout", "-q", "-b", "other")


@pytest.fixture
def applied(spoiled: Spoils, tmp_path: Path) -> Path:
    """The workspace with all that the agent did applied to it."""
    return spoiled.applied_to(tmp_path)


def pwned(spoiled: Spoils) -> Path:
    return spoiled.harness._folder / "pwned"


@attack(
    "git",
    "leave hooks in the copy's .git, and point core.hooksPath at more",
    "nothing of .git is handed back: status, commit and checkout on the host run none of it",
)
async def test_hooks_are_not_handed_back(spoiled: Spoils, applied: Path) -> None:
    hooks = {path.name for path in (applied / ".git/hooks").iterdir()}
    used(applied)
    assert "pre-commit" not in hooks
    assert (applied / "hooks/post-index-change").exists()  # a file like any other
    assert not pwned(spoiled).exists()


@attack(
    "git",
    "set core.fsmonitor, sshCommand, pager, aliases and includes in the copy's config",
    "the host's config is byte for byte what it was; git runs nothing",
)
async def test_config_is_not_handed_back(spoiled: Spoils, applied: Path) -> None:
    used(applied)
    assert (applied / ".git/config").read_bytes() == spoiled.before[".git/config"]
    assert not pwned(spoiled).exists()


@attack(
    "git",
    "name a filter in .gitattributes that the config defines",
    "the attributes come back as a file, the definition does not: add and checkout run nothing",
)
async def test_a_filter_without_a_definition_does_nothing(spoiled: Spoils, applied: Path) -> None:
    assert (applied / ".gitattributes").read_text() == "* filter=evil diff=evil\n"
    used(applied)
    assert not pwned(spoiled).exists()


@attack(
    "git",
    "make a .git file that points at a repository of the host (submodule, worktree)",
    "left out with a warning: no new .git is handed back, file or directory",
)
async def test_no_git_file_is_handed_back(spoiled: Spoils, applied: Path) -> None:
    assert not (applied / "sub/.git").exists()
    assert not (applied / "nested/.git").exists()
    assert "since it belongs to git" in spoiled.told
    used(applied)
    assert not pwned(spoiled).exists()


@attack(
    "git",
    "write .GIT, git~1, '.git ' or .g<U+200C>it, which other filesystems take for .git",
    "all of them are left out with a warning",
)
async def test_no_disguise_of_git_is_handed_back(spoiled: Spoils, applied: Path) -> None:
    names = {part for path in applied.rglob("*") for part in path.relative_to(applied).parts}
    assert not names & {".GIT", "git~1", ".git ", ".g\u200cit"}
    assert "since it belongs to git" in spoiled.told
    assert (applied / "fourth").exists()  # what held them came back


@attack(
    "git",
    "have the patch made by a git that the agent has set up (diff.external, textconv, worktree)",
    "git runs in the container, as the agent; the host runs nothing, and the patch is a patch",
)
async def test_the_patch_is_made_inside(spoiled: Spoils) -> None:
    assert not pwned(spoiled).exists()
    patch = spoiled.harness.copies.patch(spoiled.result.run_id)
    assert b"+changed" in patch
    assert OUTSIDE.encode() not in patch


RW = r"""
(echo '#!/bin/sh' > .git/hooks/post-checkout; git config core.fsmonitor ./evil; rm -rf .git
mv .git .git2; mv .git/hooks .git/h; ln -sfn /tmp .git; touch .git/x; echo x > .git/HEAD
chmod -R 777 .git; umount .git; mount -o remount,rw .git; mkdir -p /tmp/g; mv -T /tmp/g .git
python3 -c "import os; os.rename('.git', 'x')"
git init -q --separate-git-dir=/tmp/gd .) 2> /dev/null
echo done
"""


@attack(
    "git",
    "change .git of a workspace that may be written: hooks, config, rename, replace",
    "it is mounted read-only over itself and cannot be moved; not a byte of it changes",
)
async def test_git_of_a_writable_workspace_is_closed(harness: Harness) -> None:
    spoils = await work(harness, RW + "echo x > made", workspace="rw")
    after = contents(spoils.project)
    assert spoils.result.status == "completed"
    assert after.pop("made") == b"x\n"
    assert after == spoils.before


@attack(
    "git",
    "make a repository of one's own in a workspace that may be written",
    "it is there, since the workspace may be written; a warning names it before it is used",
)
async def test_a_new_repository_in_a_writable_workspace_is_told(harness: Harness) -> None:
    spoils = await work(harness, "git init -q inner; mkdir -p deep/down/.GIT", workspace="rw")
    assert "inner/.git" in spoils.told
    assert "deep/down/.GIT" in spoils.told


NAMELESS = r"""
for place in lib folder; do
mkdir -p $place/objects $place/refs; echo 'ref: refs/heads/x' > $place/HEAD
printf '[core]\nbare=false\nworktree=..\nfsmonitor="touch PWNED; false"\n' > $place/config
done
echo x > other/made
"""


@attack(
    "git",
    "make a repository that is not called .git: HEAD, objects and refs beside a config",
    "left out of the changes with a warning; of a writable workspace, a warning names it",
)
@pytest.mark.parametrize("workspace", ["copy", "rw"])
async def test_a_repository_of_no_name_is_told(harness: Harness, workspace: str) -> None:
    command = NAMELESS.replace("PWNED", str(harness._folder / "pwned"))
    spoils = await work(harness, command, workspace=workspace)
    assert "lib" in spoils.told
    assert "folder" in spoils.told
    if workspace == "copy":
        spoils.apply()
        assert (spoils.project / "other/made").exists()
        assert not (spoils.project / "lib").exists()
        git(spoils.project / "folder", "status")
        assert not pwned(spoils).exists()


@attack(
    "git",
    "use the brokered token for another repository, by clone, submodule or push",
    "403 with the rule; the server of the token's account is not asked",
)
async def test_git_reaches_no_other_repository(web: Rig, hub: HttpsServer) -> None:
    hub.requests.clear()
    at = f"https://{hub.host}"
    with web.watched() as seen:
        said = await web.sh(
            f"cd /tmp; for path in acme/other.git acme/widget-x.git acme/widget/../other.git; do "
            f"git clone -q {at}/$path cloned; done; git init -q mine; cd mine; "
            f"git -c protocol.file.allow=always push {at}/acme/secret.git HEAD:main; "
            f"git -c http.extraHeader='X-Original-URL: /acme/secret' ls-remote {at}/acme/secret.git"
        )
    assert said.count("403") >= 3, said
    assert hub.requests == []
    assert seen.passed == []
