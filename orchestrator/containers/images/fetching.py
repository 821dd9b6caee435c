"""What all downloads for images have in common: how they are run, told and checked.

Programs are fetched on this machine and copied into an image, since a build often has no way out
to the network.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal

from orchestrator.errors import ImageBuildFailed

Arch = Literal["x64", "arm64"]
Progress = Callable[[str], None]
"""Told, in one short line, what is being done now."""

FETCH_SECONDS = 900
"""One download of some 170 MB, on a slow line."""

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


def downloaded(argv: Sequence[str], folder: Path) -> Path:
    """Run a command that downloads one archive into a folder: that archive, or FetchFailed."""
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise FetchFailed(str(exc)) from exc
    if done.returncode:
        words = " ".join(done.stderr.decode(errors="replace").split())
        raise FetchFailed(words[-OUTPUT_TAIL_CHARS:] or f"exit code {done.returncode}")
    found = sorted(path for path in folder.iterdir() if path.suffix in {".whl", ".tgz"})
    if not found:
        raise FetchFailed("it said it was done, but there is no file")
    return found[0]


def npm_pack(package: str, folder: Path) -> list[str]:
    """The command that downloads a package ("name@version") into a folder, as it was published."""
    return ["npm", "pack", "--silent", "--pack-destination", str(folder), package]


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(FILE_CHUNK_BYTES):
        yield chunk
