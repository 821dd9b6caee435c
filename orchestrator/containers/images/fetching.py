"""What all downloads for images have in common: how they are run, told and checked.

Programs are fetched on this machine and copied into an image, since a build often has no way out
to the network.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from orchestrator.errors import ImageBuildFailed

Arch = Literal["x64", "arm64"]
Progress = Callable[[str], None]
"""Told, in one short line, what is being done now."""

FETCH_SECONDS = 900
"""One download of some 170 MB, on a slow line."""

FETCH_LOOK_SECONDS = 0.5
"""Between two looks at how much a download has brought."""

SPARE_MEGABYTES = 32
"""What may come besides, of a small package: logs, lists, a file or two more."""

FILE_CHUNK_BYTES = 1024 * 1024
"""What is in memory at once of a large file: an executable can have 366 MB."""

OUTPUT_TAIL_CHARS = 400
"""How much of a failed download's last words an error repeats."""

_ARCHES: dict[str, Arch] = {"amd64": "x64", "x86_64": "x64", "arm64": "arm64", "aarch64": "arm64"}


class FetchFailed(Exception):
    """One way of getting a program did not work; there may be another."""


def arch_of(engine_arch: str) -> Arch:
    """What the engine calls its architecture -> what the makers of the CLIs call it."""
    try:
        return _ARCHES[engine_arch]
    except KeyError:
        raise ImageBuildFailed(
            f"agent CLIs come for amd64 and arm64, and this engine runs {engine_arch!r}; "
            "use an engine on one of those"
        ) from None


def most_bytes(megabytes: int) -> int:
    """What a download that should have so many may take on the disk before it is given up: there is
    no checksum to tell before all of it is there. A downloader keeps a second copy meanwhile.
    """
    return (3 * megabytes + SPARE_MEGABYTES) * 1_000_000


def downloaded(argv: Sequence[str], folder: Path, most: int) -> Path:
    """Run a command that downloads one archive into an empty folder, where it may write so many
    bytes: that archive, or FetchFailed.
    """
    words = folder / "stderr"
    try:
        with words.open("wb") as errors:
            # What it keeps until it is done is to be seen, too.
            code = _run(("/usr/bin/env", f"TMPDIR={folder}", *argv), folder, errors, most)
        last = words.read_bytes()[-OUTPUT_TAIL_CHARS:].decode(errors="replace")
    except OSError as exc:
        raise FetchFailed(str(exc)) from exc
    if code:
        raise FetchFailed(" ".join(last.split()) or f"exit code {code}")
    found = sorted(path for path in folder.iterdir() if path.suffix in {".whl", ".tgz"})
    if not found:
        raise FetchFailed("it said it was done, but there is no file")
    return found[0]


def _run(argv: Sequence[str], folder: Path, errors: IO[bytes], most: int) -> int:
    """A command's exit code; FetchFailed, and it is killed, if it writes too much or takes too
    long.
    """
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        argv, cwd=folder, stdin=quiet, stdout=quiet, stderr=errors, start_new_session=True
    ) as process:
        try:
            return _waited(process, folder, most)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def _waited(process: subprocess.Popen[bytes], folder: Path, most: int) -> int:
    end = time.monotonic() + FETCH_SECONDS
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(FETCH_LOOK_SECONDS)
        if _bytes_in(folder) > most:
            raise FetchFailed(f"it brings more than {most // 1_000_000} MB")
        if process.returncode is not None:
            return process.returncode
        if time.monotonic() > end:
            raise FetchFailed(f"it was not done after {FETCH_SECONDS} s")


def _bytes_in(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it was only there for a moment
                total += os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 as it comes
    return total


def npm_pack(package: str, folder: Path) -> list[str]:
    """The command that downloads a package ("name@version") into a folder, as it was published."""
    own = ["--cache", str(folder / "cache")]
    return ["npm", "pack", "--silent", "--pack-destination", str(folder), package, *own]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(FILE_CHUNK_BYTES):
        yield chunk
