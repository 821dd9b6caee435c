"""A reader who types a page's commands into a shell, in their order, and looks at the screen."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import selectors
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.pages.page_commands import PageCommand

COLUMNS, ROWS = 80, 24

PAGE_SECONDS = 120
"""For all commands of a page."""

_MARK = re.compile(r"\x00(\d+) (\d+)\x00\r?\n")
_DRIVER = """\
for unit in "$1"/*; do
    . "$unit"
    printf '\\0%d %d\\0\\n' "$((10#${unit##*/}))" $?
done
wait
"""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Typed(NamedTuple):
    """A command, and what came of it."""

    command: PageCommand
    exit_code: int | None
    """None if the shell did not come so far."""
    screen: str
    """What it printed, stdout and stderr; of a terminal, without what moves the cursor."""


def type_commands(
    commands: Sequence[PageCommand], folder: Path, env: Mapping[str, str], *, tty: bool
) -> list[Typed]:
    """Type them in one shell, which begins in a folder; those by hand are left out."""
    units = folder.with_name(f"{folder.name}-units")
    units.mkdir()
    typed = [command for command in commands if not command.by_hand]
    for number, command in enumerate(typed):
        (units / f"{number:03}").write_text(command.text + "\n")
    argv = ("bash", "--norc", "--noprofile", "-c", _DRIVER, "page", str(units))
    screen = (_at_terminal if tty else _in_pipe)(argv, folder, env)
    parts = _MARK.split(screen)
    ends = {int(number): int(code) for number, code in zip(parts[1::3], parts[2::3], strict=True)}
    texts = dict(zip(ends, parts[0::3], strict=False)) | {len(ends): parts[-1]}
    return [
        Typed(command, ends.get(number), texts.get(number, ""))
        for number, command in enumerate(typed)
    ]


def _in_pipe(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    ours, theirs = os.pipe()
    return _screen(argv, folder, env, ours, theirs, subprocess.DEVNULL).decode()


def _at_terminal(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    written = _screen(argv, folder, env, ours, theirs, theirs)
    lines = _CONTROL.sub("", written.decode()).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _screen(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], ours: int, theirs: int, stdin: int
) -> bytes:
    """All that is written until the last program has let go of its output."""
    try:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=env,
            stdin=stdin,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            return _read_all(ours)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # what a command left in the background
            process.wait(PAGE_SECONDS)
    finally:
        os.close(ours)


def _read_all(fd: int) -> bytes:
    end, chunks = time.monotonic() + PAGE_SECONDS, []
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while selector.select(max(0.0, end - time.monotonic())):
            try:
                chunk = os.read(fd, 65536)
            except OSError as exc:
                if exc.errno != errno.EIO:
                    raise
                break  # how Linux says that there is no other end any more
            if not chunk:
                break
            chunks.append(chunk)
    return b"".join(chunks)
