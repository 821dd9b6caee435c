"""Workspaces of runs, with the real CLI: a copy is handed back, a mounted one keeps its owner."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from orchestrator.containers.docker.runtime import DockerRuntime
from orchestrator.containers.file_lock import file_lock
from orchestrator.domain.events import Event
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.domain.task import Task
from orchestrator.errors import ApplyRefused, MountRefused, OperatorError
from tests.engine.harness import Harness, Steps, bash

PATIENCE = 170

Turn = Awaitable[RunResult]


@pytest.fixture
def harness(runtime: DockerRuntime, image: str, tmp_path: Path) -> Harness:
    return Harness(runtime, image, tmp_path)


@pytest.fixture
async def in_session(harness: Harness, project: Path) -> AsyncIterator[Callable[[str], Turn]]:
    """A call to one session that goes on with its copy of the project, and does what it is told."""
    steps: Steps = [
        {"tool": "Bash", "input": {"command": "{last_user_text}"}},
        {"text": "{last_tool_result}"},
    ]
    service = harness.service(steps, each_task=True, session=True, workspace="copy")

    async def turn(command: str) -> RunResult:
        task = Task(agent="worker", prompt=command, workspace=project)
        with anyio.fail_after(PATIENCE):
            result = await service.run(task, harness.events.append)
        assert result.status == "completed", result
        return result

    async with harness.sessions:
        yield turn
    for row in await harness.sessions.list():
        await harness.sessions.remove(row.key)


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
    (project / ".gitignore").write_text("__pycache__/\n.env\n")
    command = (
        "git log --oneline | wc -l; echo good bye > greeting.txt; mv old.bin new.bin; "
        "printf x > added; chmod +x added; mkdir __pycache__; touch __pycache__/a.pyc .env; "
        "git add -A; git -c user.name=B -c user.email=b commit -qm x"
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
    assert result.warnings == ("left out of the changes, since .gitignore names it: .env",)
    (*_, told) = [event.text for event in harness.events if event.kind == "workspace"]
    assert told.endswith("; left out of the changes, as .gitignore says: __pycache__")

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


async def test_a_session_goes_on_from_what_was_applied_of_it(
    harness: Harness, project: Path, in_session: Callable[[str], Turn]
) -> None:
    first = await in_session("echo 1 > greeting.txt; mkdir d; echo 1 > d/new; rm old.bin")
    harness.copies.apply(first.run_id, dry_run=False)
    second = await in_session("echo 2 > greeting.txt; echo 2 > d/new; echo back > old.bin")
    assert {file.path: file.change for file in second.changed_files} == {
        "greeting.txt": "modified",
        "d/new": "modified",
        "old.bin": "added",
    }
    assert "-1\n+2\n" in second.patch
    harness.copies.apply(second.run_id, dry_run=False)
    third = await in_session("rm -r d; echo 3 > greeting.txt")
    assert third.changed_files == (
        ChangedFile(path="d/new", change="deleted"),
        ChangedFile(path="greeting.txt", change="modified"),
    )
    harness.copies.apply(third.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "3\n"
    assert not (project / "d").exists()
    assert (await in_session("true")).changed_files == ()
    with pytest.raises(ApplyRefused, match=r"greeting\.txt has changed since"):
        harness.copies.apply(second.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "3\n"


async def test_turns_of_a_session_are_applied_one_after_another_however_late(
    harness: Harness, project: Path, in_session: Callable[[str], Turn]
) -> None:
    turns = [await in_session(f"echo {n} > greeting.txt; echo {n} > new{n}") for n in (1, 2)]
    elsewhere = project.parent / "elsewhere"
    shutil.copytree(project, elsewhere)
    harness.copies.apply(turns[0].run_id, to=elsewhere, dry_run=False)
    for number, turn in enumerate(turns, 1):
        assert not harness.copies.apply(turn.run_id, dry_run=True).already
        harness.copies.apply(turn.run_id, dry_run=False)
        assert (project / "greeting.txt").read_text() == f"{number}\n"
    assert (await in_session("true")).changed_files == ()


async def test_what_is_applied_while_a_session_works_counts_for_what_it_hands_back(
    harness: Harness, project: Path, in_session: Callable[[str], Turn]
) -> None:
    first = await in_session("echo 1 > greeting.txt")
    listen = harness.events.append

    class Applying(list[Event]):
        def append(self, event: Event) -> None:
            if event.kind == "tool_result":
                harness.copies.apply(first.run_id, dry_run=False)
            listen(event)

    harness.events = Applying()
    second = await in_session("echo 2 > greeting.txt")
    assert "-1\n+2\n" in second.patch
    harness.copies.apply(second.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "2\n"


async def test_only_one_process_at_a_time_applies_what_a_session_changed(
    harness: Harness,
    project: Path,
    in_session: Callable[[str], Turn],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = await in_session("echo 1 > greeting.txt")
    handed = harness.copies.kept.handed(first.run_id)
    assert handed is not None
    monkeypatch.setattr("orchestrator.engine.workspaces.copies.LOCK_SECONDS", -1.0)
    snapshots = project.parent.parent / "snapshots"
    with (
        file_lock(snapshots / f"{handed.container}.lock", 0.0, lambda: None),
        pytest.raises(OperatorError, match="has been locked by another process"),
    ):
        harness.copies.apply(first.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "hello\n"
    harness.copies.apply(first.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "1\n"
    assert [path.suffix for path in snapshots.iterdir()] == [".json"]


async def test_a_session_whose_files_were_changed_here_says_how_to_get_a_new_copy(
    harness: Harness, project: Path, in_session: Callable[[str], Turn]
) -> None:
    (project / "greeting.txt").write_text("hello\n")
    first = await in_session("echo 1 > greeting.txt")
    (project / "greeting.txt").write_text("mine\n")
    with pytest.raises(ApplyRefused, match=r"--session new.*orchestrator sessions rm"):
        harness.copies.apply(first.run_id, dry_run=False)
    # Made by hand what the agent has made, it is noted as applied.
    (project / "greeting.txt").write_text("1\n")
    assert harness.copies.apply(first.run_id, dry_run=False).already
    second = await in_session("echo 2 > greeting.txt")
    harness.copies.apply(second.run_id, dry_run=False)
    assert (project / "greeting.txt").read_text() == "2\n"


async def test_the_patch_of_a_result_is_one_that_git_takes_whatever_the_files_are(
    harness: Harness, project: Path
) -> None:
    (project / "windows.txt").write_bytes(b"one\r\ntwo\r\n")
    result = await work(
        harness, project, "printf 'one\\r\\nTWO\\r\\n' > windows.txt", workspace="copy"
    )
    assert "-two\r\n+TWO\r\n" in result.patch
    await anyio.run_process(("git", "apply"), cwd=project, input=result.patch.encode())
    assert (project / "windows.txt").read_bytes() == b"one\r\nTWO\r\n"

    # Neither UTF-8 nor, for git, binary; with names that are patterns.
    names = ("latin1.txt", "a [b]*?.txt", '"q".txt')
    (project / "latin1.txt").write_bytes(b"th\xe9\n")
    odd = "; ".join(f"printf 'caf\\351\\n' > '{name}'" for name in names)
    result = await work(harness, project, f"{odd}; echo x > a.txt", workspace="copy")
    assert "GIT binary patch" in result.patch
    assert "+x\n" in result.patch
    assert b"+caf\xe9\n" in harness.copies.patch(result.run_id)
    assert [event.text for event in harness.events if event.kind == "warning"] == []
    await anyio.run_process(("git", "apply"), cwd=project, input=result.patch.encode())
    assert [(project / name).read_bytes() for name in names] == [b"caf\xe9\n"] * 3


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
