"""Files of an agent's folder -> its container, where the agent can read them and not write.

They are read once, by handle, when a run is planned: nothing is looked up a second time, and no
link is followed. What the container gets belongs to root.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import anyio

from orchestrator.domain.container import AGENT_FILES, MIB, File
from orchestrator.errors import CopyFailed
from orchestrator.workspace.box import Box, Chunks, Odd, nothing, program, talk
from orchestrator.workspace.paths import FOLDER, Root, parents, path_problem
from orchestrator.workspace.reading.pack import BATCH, record, shown

MAX_AGENT_FILES = 512
MAX_AGENT_FILES_BYTES = 16 * MIB
"""Of one agent. What needs more, such as a server with all its libraries, wants an image."""

FILES_DEPTH = 16
"""Directories in directories."""

PASSED_OVER = frozenset(("__pycache__", ".git", ".DS_Store"))
"""Of directories: what programs leave there by themselves."""

PLACE_SECONDS = 60.0
"""For the files to be in their container."""

TOO_MUCH = (
    f"is more than the {MAX_AGENT_FILES} files or {MAX_AGENT_FILES_BYTES // MIB} MiB that an agent "
    "may bring; put them into an image, and name that under `image`"
)


class FilesRefused(Exception):
    """A file that cannot be brought; the message goes on after what agent.md has there."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at
        """Which of the agent's `files` it is, or is in."""


def no_secrets(path: Path) -> bool:  # noqa: ARG001 the shape of a rule
    """No file is kept from agents."""
    return False


def read_agent_files(
    folder: Path, names: Sequence[str], is_secret: Callable[[Path], bool] = no_secrets
) -> tuple[File, ...]:
    """The files of these names, and of directories of these names, as they will be inside.

    FilesRefused if one is not there, is a link, is nothing to read, or is one too many. Blocks.
    """
    reader = _Reader(is_secret)
    for at, name in enumerate(names):
        try:
            with Root(folder.resolve()) as root:
                reader.add(root, name)
        except (OSError, RuntimeError) as exc:
            raise FilesRefused(at, _in_words(exc, reader.at, name)) from exc
    return tuple(reader.found[path] for path in sorted(reader.found))


def digest_of(files: Sequence[File]) -> str:
    """The same for the same files; "" for none."""
    rows = [(file.path, file.mode, hashlib.sha256(file.content).hexdigest()) for file in files]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16] if rows else ""


async def place_agent_files(box: Box, files: Sequence[File]) -> None:
    """Put them where agents find them, and nothing else; CopyFailed if that cannot be."""
    if not files:
        return
    try:
        with anyio.fail_after(PLACE_SECONDS):
            unpack = program("unpack", AGENT_FILES, as_root=True)
            await talk(box, unpack, _chunks(files), nothing)
    except TimeoutError as exc:
        message = f"the agent's files were not in its container within {PLACE_SECONDS:.0f} s"
        raise CopyFailed(f"{message}; the machine may be overloaded: try again") from exc
    except Odd as exc:
        raise CopyFailed(f"the container did not take the agent's files: {exc}") from exc


class _Reader:
    def __init__(self, is_secret: Callable[[Path], bool]) -> None:
        self.found: dict[str, File] = {}
        self.at = ""
        """The path that is looked at, below the agent's folder."""
        self._is_secret = is_secret
        self._left = MAX_AGENT_FILES_BYTES

    def add(self, root: Root, name: str) -> None:
        self.at = path = name.rstrip("/")
        with root.parent(path) as (folder, last):
            self._take(root, folder, last, path, 0)

    def _take(self, root: Root, folder: int, name: str, path: str, depth: int) -> None:
        self.at = path
        if problem := path_problem(path):
            raise OSError(errno.EINVAL, f"cannot be brought: {problem}")
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(kind):
            raise OSError(errno.ELOOP, "is a symbolic link; put the file itself there")
        if not stat.S_ISDIR(kind):
            self._file(root, folder, name, path)
            return
        if depth == FILES_DEPTH:
            raise OSError(errno.EINVAL, f"is more than {FILES_DEPTH} directories deep")
        fd = os.open(name, FOLDER, dir_fd=folder)
        try:
            for each in sorted(os.listdir(fd)):
                if each not in PASSED_OVER:
                    self._take(root, fd, each, f"{path}/{each}", depth + 1)
        finally:
            os.close(fd)

    def _file(self, root: Root, folder: int, name: str, path: str) -> None:
        if self._is_secret(root.path / path):
            raise OSError(errno.EACCES, "holds a secret of the operator's, which no agent may see")
        fd = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
        with os.fdopen(fd, "rb") as file:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "is neither a file nor a directory")
            content = file.read(self._left + 1)
        inside = f"{AGENT_FILES}/{path}"
        self._left -= len(content) if inside not in self.found else 0
        self.found[inside] = File(
            path=inside, content=content, mode=0o555 if mode & 0o111 else 0o444
        )
        if self._left < 0 or len(self.found) > MAX_AGENT_FILES:
            raise OSError(errno.EFBIG, TOO_MUCH)


def _in_words(exc: OSError | RuntimeError, at: str, name: str) -> str:
    """What is wrong, of the very file that it is wrong with."""
    said = (exc.strerror or "cannot be read") if isinstance(exc, OSError) else str(exc)
    if isinstance(exc, FileNotFoundError):
        said = "is not in the agent's folder; put it there, or correct the name"
    elif isinstance(exc, NotADirectoryError):  # what the kernel says of a link in the way, too
        said = "is behind a symbolic link, or below a file; put the file itself there"
    elif isinstance(exc, OSError) and exc.filename is not None:
        said = f"cannot be read: {said}"
    return f"'{shown(name if said == TOO_MUCH else at or name)}' {said}"


def _chunks(files: Sequence[File]) -> Chunks:
    buffer = bytearray()
    for folder in sorted({each for file in files for each in parents(_below(file))}):
        buffer += record("dir", folder, 0o755, 0, 0, "")
    for file in files:
        buffer += record("file", _below(file), file.mode, len(file.content), 0, "")
        for piece in _pieces(file.content):
            buffer += piece
            if len(buffer) >= BATCH:
                yield bytes(buffer)
                buffer.clear()
    buffer += record("end", "", 0, 0, 0, "")
    yield bytes(buffer)


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), BATCH):
        yield content[start : start + BATCH]


def _below(file: File) -> str:
    return file.path.removeprefix(f"{AGENT_FILES}/")
