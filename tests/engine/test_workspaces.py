"""Workspaces of runs, with the real CLI: a copy is handed back, a mounted one keeps its owner."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker_runtime import DockerRuntime
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.domain.task import Task
from orchestrator.errors import ApplyRefused, MountRefused
from tests.engine.harness import Harness, bash

PATIENCE = 170


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Harness:
    return Harness(runtime, image, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one commit."""
    root = tmp_path / "work" / "project"
    root.mkdir(parents=True)
    (root / "greeting.txt").write_text("hello\n")
    (root / "old.bin").write_bytes(bytes(range(256)))
    for argv in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "first"),
    ):
        subprocess.run(("git", *argv), cwd=root, check=True)
    return root


def give_away(project: Path) -> None:
    """Let it belong to somebody."""
    for path in (project, *project.rglob("*")):
        os.chown(path, 4711, 4712)


async def work(
    harness: Harness, place: Path, command: str, *, seconds: float = 60, **fields: object
) -> RunResult:
    task = Task(agent="worker", prompt="x", workspace=place, timeout_seconds=seconds)
    with anyio.fail_after(PATIENCE):
        return await harness.run([bash(command), {"text": "{last_tool_result}"}], task, **fields)


async def test_a_copy_is_worked_on_and_its_changes_are_handed_back(
    harness: Harness, project: Path
) -> None:
    command = (
        "git log --oneline | wc -l; echo good bye > greeting.txt; mv old.bin new.bin; "
        "printf x > added; chmod +x added; git add -A; "
        "git -c user.name=B -c user.email=b commit -qm x"
    )
    result = await work(harness, project, command, workspace="copy")

    assert (result.status, result.result) == ("completed", "1")
    assert set(result.changed_files) == {
        ChangedFile(path="greeting.txt", change="modified"),
        ChangedFile(path="new.bin", change="renamed", old_path="old.bin"),
        ChangedFile(path="added", change="added"),
    }
    assert "-hello\n+good bye\n" in result.patch
    assert (project / "greeting.txt").read_text() == "hello\n"

    harness.copies.apply(result.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "good bye\n"
    assert os.access(project / "added", os.X_OK)
    assert not (project / "old.bin").exists()
    log = await anyio.run_process(("git", "log", "--oneline"), cwd=project)
    assert len(log.stdout.splitlines()) == 1


async def test_a_tree_that_has_moved_is_not_touched(harness: Harness, project: Path) -> None:
    result = await work(harness, project, "echo a > greeting.txt; echo b > other", workspace="copy")
    (project / "greeting.txt").write_text("mine\n")
    with pytest.raises(ApplyRefused, match=r"greeting\.txt"):
        harness.copies.apply(result.run_id, dry_run=False)
    assert not (project / "other").exists()
    assert (project / "greeting.txt").read_text() == "mine\n"


async def test_changes_are_handed_back_of_a_run_that_failed(
    harness: Harness, project: Path
) -> None:
    task = Task(agent="worker", prompt="x", workspace=project)
    with anyio.fail_after(PATIENCE):
        result = await harness.run(
            [bash("echo late > greeting.txt"), {"error": 400, "repeat": True}],
            task,
            workspace="copy",
        )
    assert result.status == "failed"
    assert [file.path for file in result.changed_files] == ["greeting.txt"]


async def test_a_copy_that_grows_too_large_ends_the_run_as_disk_full(
    harness: Harness, project: Path
) -> None:
    result = await work(
        harness,
        project,
        "head -c 64M /dev/zero > big; python3 -c 'import time; time.sleep(500)'",
        seconds=120,
        workspace="copy",
        resources={"disk_mb": 16},
    )
    assert (result.status, result.reason) == ("failed", "disk_full"), result


async def test_agents_that_may_edit_get_a_copy_unless_their_author_says_otherwise(
    harness: Harness, project: Path
) -> None:
    result = await work(
        harness, project, "echo x > greeting.txt", permissions={"allow": ["Bash", "Edit"]}
    )
    assert [file.path for file in result.changed_files] == ["greeting.txt"]
    assert (project / "greeting.txt").read_text() == "hello\n"


async def test_what_an_agent_writes_belongs_to_the_owner_of_the_workspace(
    harness: Harness, project: Path
) -> None:
    give_away(project)
    result = await work(harness, project, "mkdir d; echo x > d/f; id -u", workspace="rw")

    assert result.result == "4711"
    status = (project / "d/f").stat()
    assert (status.st_uid, status.st_gid) == (4711, 4712)


async def test_an_agent_cannot_plant_anything_in_git_of_a_workspace_it_may_write(
    harness: Harness, project: Path
) -> None:
    give_away(project)
    command = (
        "(echo '#!/bin/sh' > .git/hooks/post-checkout; git config core.fsmonitor ./evil; "
        "mv .git .git2; rm -rf .git) 2>&1 | tail -1; git log --oneline | wc -l; "
        "mkdir sub; git init -q sub; echo x > f"
    )
    before = sorted(path.name for path in (project / ".git").rglob("*"))
    result = await work(harness, project, command, workspace="rw")

    assert str(result.result).endswith("\n1")
    assert sorted(path.name for path in (project / ".git").rglob("*")) == before
    assert (project / "f").read_text() == "x\n"
    assert any("sub/.git" in event.text for event in harness.events if event.kind == "warning")


@pytest.mark.parametrize("place", ["/", "/etc", "/var/run"])
async def test_a_copy_of_what_no_agent_may_see_is_refused(harness: Harness, place: str) -> None:
    with pytest.raises(MountRefused):
        await work(harness, Path(place), "ls", workspace="copy")
