"""Trees to copy, what is in one, and a container that is none: programs run on this machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc

from orchestrator.domain.container import Launch

PATIENCE = 60

GIT_SECONDS = 60

Tree = dict[str, tuple[object, ...]]


def make(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files by their paths; a path that ends in "/" is an empty directory."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def tree(root: Path) -> Tree:
    """All that is in a directory, links not followed and .git left out."""
    found: Tree = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            mode = status.st_mode & 0o777
            shown = str(path.relative_to(root))
            if name == ".git":
                continue
            if stat.S_ISLNK(status.st_mode):
                found[shown] = ("symlink", str(path.readlink()))
            elif stat.S_ISDIR(status.st_mode):
                found[shown] = ("dir", mode)
            else:
                found[shown] = ("file", mode, path.read_bytes())
    return found


def git(root: Path, *args: str) -> str:
    """The host's git, on what a test made itself."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": "4",
    }
    settings = {
        "user.name": "Tester",
        "user.email": "tester@localhost",
        "protocol.file.allow": "always",
        "safe.directory": "*",
    }
    for number, (key, value) in enumerate(settings.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    argv = ["git", "-c", "init.defaultBranch=main", *args]
    done = subprocess.run(
        argv, cwd=root, env=env, capture_output=True, text=True, timeout=GIT_SECONDS
    )
    assert done.returncode == 0, f"git {args}: {done.stderr}"
    return done.stdout


def repository(root: Path, files: Mapping[str, str | bytes]) -> Path:
    make(root, files)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


class _In:
    def __init__(self, stream: anyio.abc.ByteSendStream) -> None:
        self._stream = stream
        self._ended = False

    async def write(self, data: bytes) -> None:
        if self._ended:
            raise BrokenPipeError
        try:
            await self._stream.send(data)
        except anyio.BrokenResourceError as exc:
            raise BrokenPipeError from exc

    def end(self) -> None:
        self._ended = True
        transport = self._stream._stream  # type: ignore[attr-defined]  # a half-close, as a wire has
        transport.close()


class _Out:
    def __init__(self, stream: anyio.abc.ByteReceiveStream) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        try:
            return await self._stream.receive()
        except anyio.EndOfStream:
            return b""


class LocalProgram:
    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdin = _In(process.stdin)
        self.stdout = _Out(process.stdout)
        self.stderr = _Out(process.stderr)

    async def wait(self) -> int:
        return await self._process.wait()


class LocalBox:
    """Runs what a container would; `says` is what it answers instead of the program inside."""

    def __init__(self, says: bytes | None = None) -> None:
        self.kills = 0
        self._says = says

    def spawn(self, launch: Launch) -> AbstractAsyncContextManager[LocalProgram]:
        return self._spawn(launch)

    @asynccontextmanager
    async def _spawn(self, launch: Launch) -> AsyncIterator[LocalProgram]:
        argv = list(launch.argv)
        if argv[0] == "python3":
            argv[0] = sys.executable
            if self._says is not None:
                liar = "import sys; sys.stdin.buffer.read(); sys.stdout.buffer.write({!r})"
                argv = [sys.executable, "-c", liar.format(self._says)]
        for file in launch.files:
            Path(file.path).parent.mkdir(parents=True, exist_ok=True)
            Path(file.path).write_bytes(file.content)
        async with await anyio.open_process(argv, cwd=launch.cwd, env=launch.env) as process:
            try:
                yield LocalProgram(process)
            finally:
                if process.returncode is None:
                    process.kill()

    async def kill_all(self) -> None:
        self.kills += 1
