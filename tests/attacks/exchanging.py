"""A directory that is exchanged with a link to a place for credentials, and who is called then."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from orchestrator.containers.mounts import MountPolicy
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.errors import OrchestratorError
from orchestrator.workspace.changes.collected import (
    Change,
    Changes,
    State,
    make_folder,
    save_changes,
)

SECRET = b"THE-PRIVATE-KEY-OF-A-PERSON"
OPEN = b"what an agent may read"
PLANTED = "authorized_keys2"
RUN = "r0123456789"
END_SECONDS = 10
AGENT = AgentSpec.model_validate(
    {"name": "worker", "description": "Works.", "workspace": {"mode": "copy"}}
)

AT_FDCWD, RENAME_EXCHANGE = -100, 2

LOOP = """
import sys
from pathlib import Path
from tests.attacks.exchanging import exchange
one, other = map(Path, sys.argv[1:])
print(flush=True)
while True:
    exchange(one, other)
"""


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, in one step: neither name is ever free."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", str(one))


class Ground:
    """A home with ~/.ssh, a workspace below it, and a link to ~/.ssh beside the workspace."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.ssh = self.home / ".ssh"
        self.project = self.home / "work" / "project"
        self.link = self.home / "work" / "link"
        self.ssh.mkdir(parents=True)
        self.project.mkdir(parents=True)
        (self.ssh / "id_ed25519").write_bytes(SECRET)
        (self.project / "file").write_bytes(OPEN)
        self.link.symlink_to(self.ssh)
        self.policy = MountPolicy(roots=(self.home,), home=self.home)
        self._changes = folder / "state" / "changes"
        self._project_fd = os.open(self.project, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._project_fd)

    def exchange(self) -> None:
        exchange(self.project, self.link)

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Another process exchanges them as fast as it can."""
        argv = (sys.executable, "-c", LOOP, str(self.project), str(self.link))
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            try:
                assert other.stdout.readline() == b"\n"
                yield
                assert other.poll() is None, "nothing was exchanged any more"
            finally:
                other.kill()
                other.wait(END_SECONDS)

    async def copied(self, policy: MountPolicy | None = None) -> str:
        """What an agent has of a copy of the project."""
        box = Swallowing()
        copies: Any = Copies(self._changes, policy or self.policy)
        try:
            await copies.bring(self.project, AGENT, box, Silent())
        except OrchestratorError as exc:
            return "SECRET" if SECRET in box.got else type(exc).__name__
        return "SECRET" if SECRET in box.got else "copied" if OPEN in box.got else "nothing"

    def plant(self) -> None:
        """A run has made a file in its copy, which `apply` would make in the workspace."""
        folder = self._changes / RUN
        make_folder(folder)
        sha256 = hashlib.sha256(SECRET).hexdigest()
        new = State(kind="file", mode=0o600, size=len(SECRET), sha256=sha256)
        change = Change(path=PLANTED, old=State(), new=new)
        changes = Changes(root=self.project, changes=(change,), folder=folder)
        changes.object_path(sha256).write_bytes(SECRET)
        save_changes(changes)

    def applied(self, policy: MountPolicy | None = None) -> str:
        """What comes of applying it; what was written is removed again."""
        try:
            Copies(self._changes, policy or self.policy).apply(RUN, dry_run=False)
        except OrchestratorError as exc:
            said = type(exc).__name__
        else:
            said = "applied"
        written = [*self.ssh.rglob(PLANTED)]
        if written:
            written[0].unlink()
            return "WRITTEN"
        if said == "applied":
            os.unlink(PLANTED, dir_fd=self._project_fd)
        return said


class Swallowing:
    """A container that takes all that it is given."""

    def __init__(self) -> None:
        self.got = bytearray()
        self._ended = anyio.Event()
        self.stdin = self.stdout = self.stderr = self

    def spawn(self, _: Launch) -> AbstractAsyncContextManager[Swallowing]:
        return self._spawn()

    @asynccontextmanager
    async def _spawn(self) -> AsyncIterator[Swallowing]:
        yield self

    async def write(self, data: bytes) -> None:
        self.got += data

    def end(self) -> None:
        self._ended.set()

    async def read(self) -> bytes:
        await self._ended.wait()
        return b""

    async def wait(self) -> int:
        return 0


class Silent:
    """A record that keeps nothing."""

    def note(self, *_: object, **__: object) -> None:
        pass


async def tries(
    times: int, attempt: Callable[[], Any], wanted: set[str], seconds: float
) -> Counter[str]:
    """How often came what: so many times, and on until all that is wanted came once."""
    seen: Counter[str] = Counter()
    with anyio.fail_after(seconds):
        while seen.total() < times or not wanted <= {*seen}:
            said = attempt()
            seen[said if isinstance(said, str) else await said] += 1
    return seen
