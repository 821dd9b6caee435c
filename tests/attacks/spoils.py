"""A workspace that a hostile agent has worked on, and what came of it on this side."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from orchestrator.domain.events import Event
from orchestrator.domain.result import RunResult
from orchestrator.domain.task import Task
from orchestrator.workspace.applying.apply import Applied
from tests.attacks.rig import PATIENCE
from tests.engine.harness import Harness, Steps, bash

OUTSIDE = "THIS-IS-NOT-FOR-AGENTS"
"""What a file beside the workspace holds."""

RAN = "the-attack-has-run"
"""What an attack says at its end."""

OWNER = 4711
"""Of the workspaces; nobody in particular."""

FILES = {
    "greeting.txt": "hello\n",
    "keep": "keep\n",
    "tool": "#!/bin/sh\n",
    "folder/file": "in it\n",
    "other/file": "too\n",
}


@dataclass
class Spoils:
    harness: Harness
    project: Path
    before: dict[str, bytes]
    result: RunResult
    events: Sequence[Event]

    @property
    def outside(self) -> Path:
        return self.project.parent / "outside"

    @property
    def kept(self) -> Path:
        """Where the changes are kept until somebody applies them."""
        return self.harness._folder / "changes" / self.result.run_id

    @property
    def told(self) -> str:
        return "\n".join(event.text for event in self.events if event.kind == "warning")

    def apply(self, to: Path | None = None) -> Applied:
        copies = self.harness.copies
        return copies.apply(self.result.run_id, to=to, dry_run=False, allow_acting=True)

    def copy_to(self, folder: Path) -> Path:
        """The workspace as it was, elsewhere, where things can be applied to it."""
        target = self.project.parent / f"copy-{folder.name}"
        shutil.copytree(self.project, target, symlinks=True)
        return target

    def applied_to(self, folder: Path) -> Path:
        target = self.copy_to(folder)
        self.apply(target)
        return target


async def work(
    harness: Harness, command: str, *, project: Path | None = None, **fields: object
) -> Spoils:
    """Run it in a workspace: a copy of one, unless told otherwise."""
    project = project or make_project(harness._folder)
    before, seen = contents(project), len(harness.events)
    task = Task(agent="worker", prompt="x", workspace=project)
    # The CLI has an eye on commands that touch .git and would not run some of these. That is not
    # what is tested: an agent has other ways to run a program, and the container has to hold.
    script = base64.b64encode(f"{{ {command}\n}} 2>&1; echo {RAN}".encode()).decode()
    steps: Steps = [bash(f"echo {script} | base64 -d | bash"), {"text": "{last_tool_result}"}]
    with anyio.fail_after(PATIENCE):
        result = await harness.run(steps, task, **{"workspace": "copy", **fields})
    if result.status == "completed":
        assert RAN in str(result.result), result.result
    return Spoils(harness, project, before, result, harness.events[seen:])


def make_project(folder: Path) -> Path:
    """A repository with one commit, and something beside it."""
    root = folder / "ground" / "project"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root.parent / "outside").mkdir()
    (root.parent / "outside" / "secret.txt").write_text(OUTSIDE)
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-qm", "first")
    for path in (root, *root.rglob("*")):
        os.chown(path, OWNER, OWNER)
    return root


def git(root: Path, *argv: str) -> str:
    """git as its owner uses it: it runs what the repository tells it to."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_COUNT": "1"}
    env |= {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = subprocess.run(("git", *argv), cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def contents(root: Path) -> dict[str, bytes]:
    """All files below a directory; links as what they point to, and none is followed."""
    return {
        str(path.relative_to(root)): os.fsencode(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
