"""memory.md beside agent.md: what a session agent remembers, whichever session it is in.

It is part of the prompt and a file that the agent can read. Where agent.md says `memory: rw`, what
the agent made of the file is written back, unless somebody else has changed it in the meantime;
then it is put aside.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

import anyio

from orchestrator.containers.runtime import Container
from orchestrator.domain import Frozen
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.domain.words import counted
from orchestrator.engine.record import Record
from orchestrator.errors import OrchestratorError
from orchestrator.workspace.paths import Root

log = logging.getLogger(__name__)

FILE_NAME = "memory.md"
MEMORY_FILE = f"{HOME}/memory.md"

MEMORY_BYTES = 64 * 1024
"""Of memory.md: all of it is in the prompt of every call."""

TAKE_BACK_SECONDS = 10.0


class MemoryText(Frozen):
    """What memory.md said when the call began."""

    agent: str = ""
    mode: str = "none"
    text: str = ""
    problem: str = ""
    """Why nothing can be written back to it, whatever agent.md says."""
    folder: Path = Path()
    """Where it was found: links resolved."""
    identity: str = ""
    """device:inode of that directory: nothing is written to another one in its place."""

    @property
    def briefing(self) -> str:
        """What the agent is told; "" if there is nothing to tell."""
        if self.mode == "none":
            return ""
        may = "; what you change in it will be kept" if self.mode == "rw" else ""
        return f"Your memory, as in {MEMORY_FILE}{may}:\n\n{self.text.strip() or '(nothing yet)'}"


class Memory:
    """Reads memory.md, and writes it back."""

    def __init__(self, agents_dir: Path, aside: Path) -> None:
        self._agents_dir = agents_dir
        self._aside = aside

    def read(self, agent: AgentSpec) -> MemoryText:
        """What there is to remember; nothing, for an agent without sessions. Blocks."""
        if not agent.session.keep or agent.memory == "none":
            return MemoryText()
        path = self._agents_dir / agent.name / FILE_NAME
        try:
            with Root(path.parent.resolve()) as folder:
                data, where, which = _read(folder), folder.path, folder.identity
        except OSError as exc:
            why = f"cannot be read ({exc.strerror})"
            return MemoryText(agent=agent.name, mode="ro", problem=_unkept(path, why))
        if data is None and agent.memory == "ro":
            return MemoryText()
        text, why = _text(data or b"")
        return MemoryText(
            agent=agent.name,
            mode="ro" if why else agent.memory,
            text=text,
            problem=_unkept(path, why) if why else "",
            folder=where,
            identity=which,
        )

    async def place(self, container: Container, memory: MemoryText) -> None:
        """Put it where the agent finds it."""
        if memory.mode == "none":
            return
        file = File(path=MEMORY_FILE, content=memory.text.encode(), mode=0o600)
        await container.run(Launch(argv=("true",), files=(file,), errand=True))

    async def take_back(self, container: Container, memory: MemoryText, record: Record) -> None:
        """Keep what the agent made of it. Raises nothing; it is bounded, cancelled or not."""
        if memory.problem:
            record.note("warning", memory.problem)
        if memory.mode != "rw" or container.wire.ended is not None:
            return
        with anyio.move_on_after(TAKE_BACK_SECONDS, shield=True):
            try:
                argv = ("head", "-c", str(MEMORY_BYTES + 1), MEMORY_FILE)
                done = await container.run(Launch(argv=argv, errand=True))
            except OrchestratorError as exc:
                record.note("warning", f"the agent's memory could not be read: {exc}")
                return
            if done.code == 0:
                try:
                    self._keep(memory, done.stdout, record)
                except OSError as exc:
                    why = exc.strerror or type(exc).__name__
                    record.note("warning", f"what the agent made of {FILE_NAME} is lost: {why}")

    def _keep(self, memory: MemoryText, data: bytes, record: Record) -> None:
        text, why = _text(data)
        if not why:
            text, why = _text(record.clean(text).encode())  # which may be longer
        if why:
            record.note("warning", f"what the agent left in {MEMORY_FILE} {why}; it is not kept")
            return
        if text == memory.text:
            return
        if self._replaced(memory, text):
            record.note("memory", f"{FILE_NAME} now has {counted(len(text.splitlines()), 'line')}")
            return
        path = self._put_aside(memory.agent, text)
        record.note("warning", f"{FILE_NAME} has changed meanwhile; the agent's is in {path}")

    def _replaced(self, memory: MemoryText, text: str) -> bool:
        """Write it, unless somebody else has, or another directory is in the place of its own."""
        try:
            folder = Root(memory.folder, memory.identity)
        except OSError:
            return False
        with folder:
            if not _says(folder, memory.text):
                return False
            _replace(folder, FILE_NAME, text.encode())
            return True

    def _put_aside(self, agent: str, text: str) -> Path:
        self._aside.mkdir(parents=True, exist_ok=True, mode=0o700)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        name = f"{agent}-{digest}.md"
        with Root(self._aside.resolve()) as folder:
            _replace(folder, name, text.encode())
        return self._aside / name


def _read(folder: Root) -> bytes | None:
    """A regular file, not a link to one; None if there is none. One byte more than we take."""
    try:
        fd = folder.open_file(FILE_NAME)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(MEMORY_BYTES + 1)


def _text(data: bytes) -> tuple[str, str]:
    """What there is to read, and why it is not all of the file, if it is not."""
    if len(data) > MEMORY_BYTES:
        return data[:MEMORY_BYTES].decode(
            errors="ignore"
        ), f"is longer than {MEMORY_BYTES // 1024} KiB"
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return data.decode(errors="replace"), "is not UTF-8"


def _unkept(path: Path, why: str) -> str:
    return f"the agent's memory could be read only: {path} {why}; mend it for the next run"


def _says(folder: Root, text: str) -> bool:
    try:
        return (_read(folder) or b"") == text.encode()
    except OSError:
        return False


def _replace(folder: Root, name: str, data: bytes) -> None:
    """All of it or nothing, as a file of the folder's owner."""
    owner = os.fstat(folder.fd)
    scratch = f".{name}.{secrets.token_hex(8)}"
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(scratch, new, 0o600, dir_fd=folder.fd), "wb") as file:  # noqa: PTH123
            file.write(data)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), 0o644)
        os.replace(scratch, name, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
    except OSError:
        with suppress(OSError):
            os.unlink(scratch, dir_fd=folder.fd)
        raise
