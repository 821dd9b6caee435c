"""Directories that another process exchanges in a loop, and what is done with them meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import ContainerSpec
from orchestrator.domain.task import Task
from orchestrator.engine import staging
from orchestrator.engine.sessions.memory import Memory
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.errors import MountRefused
from tests.attacks.exchanging import END_SECONDS, LOOP, Silent
from tests.workspace.trees import make

WRITES = AgentSpec.model_validate(
    {"name": "worker", "description": "Works.", "workspace": {"mode": "rw"}}
)
REMEMBERS = AgentSpec.model_validate(
    {"name": "worker", "description": "Works.", "session": {"keep": True}, "memory": "rw"}
)


OWNERS = (4711, 4712)


@contextmanager
def exchanging(one: Path, other: Path) -> Iterator[None]:
    """Another process exchanges the two names as fast as it can."""
    argv = (sys.executable, "-c", LOOP, str(one), str(other))
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as loop:
        assert loop.stdout is not None
        try:
            assert loop.stdout.readline() == b"\n"
            yield
            assert loop.poll() is None, "nothing was exchanged any more"
        finally:
            loop.kill()
            loop.wait(END_SECONDS)


class Mounting:
    """A workspace with a repository in it, looked through and then mounted, as the engine is told.

    The repository's directory is exchanged with a link to another repository.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.project = make(folder / "project", {"sub/.git/HEAD": "mine"})
        self.other = make(folder / "other", {".git/HEAD": "another's"})
        self.link = self.project / "link"
        self.link.symlink_to(self.other)
        self._mine = {_which(self.project / "sub/.git"), _which(self.project / "sub")}
        self._policy = MountPolicy(roots=(folder,), home=folder / "home")
        self._copies = Copies(folder / "state/changes", self._policy)

    def mounted(self) -> str:
        """Which repository an engine is told to mount where the workspace's own was found."""
        task = Task(agent="worker", prompt="x", workspace=self.project)
        try:
            spec = ContainerSpec(image="x", mounts=self._copies.git_mounts(WRITES, task))
            told = self._policy.checked(spec).identities
        except MountRefused:
            return "refused"
        return "mine" if {*told.values()} <= self._mine else "ANOTHER"


class Covering:
    """A workspace with a socket in it, exchanged with one that has none."""

    def __init__(self, folder: Path) -> None:
        self.project = make(folder / "project", {})
        self.other = make(folder / "other", {})
        os.mkfifo(self.project / "pipe")
        self._with_pipe = _which(self.project)
        for path, owner in zip((self.project, self.other), OWNERS, strict=True):
            os.chown(path, owner, owner)
        self._policy = MountPolicy(roots=(folder,), home=folder / "home")
        self._copies = Copies(folder / "state/changes", self._policy)

    def owned(self) -> str:
        """Whose user an agent is, in which of the two."""
        task = Task(agent="worker", prompt="x", workspace=self.project)
        try:
            shown = self._copies.mounted(WRITES, task).workspace
            assert shown is not None
            user = staging._owner_of(self.project, shown.identity)
        except MountRefused:
            return "refused"
        wanted = OWNERS[shown.identity != self._with_pipe]
        return "its own" if user is not None and user.uid == wanted else "ANOTHER'S"

    def mounted(self) -> str:
        """Whether the directory that an engine is told to mount has its pipe covered."""
        task = Task(agent="worker", prompt="x", workspace=self.project)
        try:
            found = self._copies.mounted(WRITES, task)
            assert found.workspace is not None
            spec = ContainerSpec(image="x", mounts=(found.workspace, *found.covers))
            told = self._policy.checked(spec)
        except MountRefused:
            return "refused"
        covered = any(mount.kind == "cover" for mount in spec.mounts)
        if told.identities["/workspace"] == self._with_pipe:
            return "covered" if covered else "OPEN"
        return "empty"


class Remembering:
    """An agent's folder, exchanged with a link to one that is not for it once it was read."""

    def __init__(self, folder: Path) -> None:
        self.agent = make(folder / "agents/worker", {"memory.md": "one\n"})
        self.secret = make(folder / "secret", {"memory.md": "one\n"})
        self.link = folder / "agents/link"
        self.link.symlink_to(self.secret)
        self._aside = folder / "aside"
        self._memory = Memory(folder / "agents", self._aside)
        self._text = self._memory.read(REMEMBERS)
        self._fd = os.open(self.agent, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def kept(self) -> str:
        record: Any = Silent()
        record.clean = str
        try:
            self._memory._keep(self._text, b"planted\n", record)
        except OSError:
            return "lost"
        if (self.secret / "memory.md").read_text() != "one\n":
            (self.secret / "memory.md").write_text("one\n")
            return "WRITTEN ELSEWHERE"
        again = os.open("memory.md", os.O_RDWR, dir_fd=self._fd)
        with os.fdopen(again, "r+") as file:
            if file.read() == "one\n":
                return "aside"
            file.seek(0)
            file.truncate()
            file.write("one\n")
        return "kept"


def _which(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"
