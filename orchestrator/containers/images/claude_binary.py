"""A version of the claude CLI -> its executable for Linux, in the cache and with a known checksum.

The same executable is published twice, in a Python wheel and in an npm package: whichever tool is
here will do.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
import tarfile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import IO, Literal

from orchestrator.containers.images.fetching import (
    Arch,
    FetchFailed,
    Progress,
    chunks_of,
    downloaded,
    file_digest,
    most_bytes,
    npm_pack,
)
from orchestrator.errors import ImageBuildFailed

FetchRoute = Literal["pip", "npm"]

CLAUDE_VERSION = "2.1.325"
"""The version that goes into the image unless the operator names another."""

CHECKSUMS: dict[tuple[str, Arch], str] = {
    ("2.1.325", "x64"): "0dc4f4a9a165fc60746d7ae8489712e5fc352f1e7ad4eb22e7141bd0812eb0cf",
    ("2.1.325", "arm64"): "7b6e484b1989a5a14a4b354709ccc8672518a3ec5b9ccd7981fc6254327fde67",
    ("2.1.197", "x64"): "f54e69cbc89b2da61a415700af7ff52a147e862517d4f1b0eecf768448cf7f83",
    ("2.1.197", "arm64"): "fb48473c467c27615ac799a754f4ef0b68c363e4596cefbb59c3815d51a0cc8a",
}
"""SHA-256 of the executable itself; both routes carry the same bytes."""

WHEELS = {"2.1.325": "claude-agent-sdk==0.2.182"}
"""The Python package that bundles a version. Versions not listed come from npm."""

CLAUDE_MEGABYTES = 170
"""How much there is to download."""

CLAUDE_BYTES = 1024 * 1024 * 1024
"""The largest executable that is unpacked, to be compared with its checksum: one has 366 MB."""

OVERRIDE_HINT = (
    "set ORCHESTRATOR_CLAUDE_BINARY to a claude executable for Linux that you fetched yourself"
)

_PLATFORMS: dict[Arch, str] = {
    "x64": "manylinux_2_17_x86_64",
    "arm64": "manylinux_2_17_aarch64",
}
_WHEEL_MEMBER = "claude_agent_sdk/_bundled/claude"
_TARBALL_MEMBER = "package/claude"
_ELF_MACHINES: dict[int, Arch] = {62: "x64", 183: "arm64"}


def checksum_of(version: str, arch: Arch) -> str:
    """The checksum a version must have, or a sentence with the versions we know."""
    try:
        return CHECKSUMS[version, arch]
    except KeyError:
        known = ", ".join(sorted({v for v, _ in CHECKSUMS}, reverse=True))
        raise ImageBuildFailed(
            f"no checksum is known for claude {version}; known versions: {known}. "
            f"For any other, {OVERRIDE_HINT}"
        ) from None


def routes(version: str, *, has_pip: bool, has_npm: bool) -> tuple[FetchRoute, ...]:
    """The ways to get a version on this machine, in the order to try them."""
    ways: list[FetchRoute] = []
    if has_pip and version in WHEELS:
        ways.append("pip")
    if has_npm:
        ways.append("npm")
    return tuple(ways)


def elf_arch(header: bytes) -> Arch | None:
    """The architecture a Linux executable is for, from its first 20 bytes; None for all else."""
    if len(header) < 20 or not header.startswith(b"\x7fELF\x02\x01"):
        return None
    return _ELF_MACHINES.get(int.from_bytes(header[18:20], "little"))


def own_digest(path: Path) -> str:
    """Of the operator's own executable; read once while it stays the same, since every run asks."""
    found = path.stat()
    return _digest_of(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=8)
def _digest_of(path: Path, version: tuple[int, ...]) -> str:  # noqa: ARG001 the cache's key
    return file_digest(path)


def own_claude(path: Path, arch: Arch) -> Path:
    """The operator's own executable, if the engine can run it."""
    try:
        with path.open("rb") as file:
            header = file.read(20)
    except OSError as exc:
        raise ImageBuildFailed(
            f"ORCHESTRATOR_CLAUDE_BINARY cannot be read: {exc}; name an existing file, or unset it"
        ) from exc
    found = elf_arch(header)
    if found != arch:
        what = f"a Linux executable for {found}" if found else "not a Linux executable"
        raise ImageBuildFailed(
            f"ORCHESTRATOR_CLAUDE_BINARY={path} is {what}; the engine needs one for Linux {arch}"
        )
    return path


def fetch_claude(cache_dir: Path, version: str, arch: Arch, progress: Progress) -> Path:
    """The executable in the cache, checked; fetched first if it is not there.

    What a caller gets has the right checksum and mode 0755. Several may fetch at once: each works
    in a directory of its own and the last rename wins, all of them with the same bytes.
    """
    wanted = checksum_of(version, arch)
    target = cache_dir / "claude" / f"claude-{version}-linux-{arch}"
    if target.exists() and file_digest(target) == wanted:
        return target

    ways = routes(version, has_pip=_has_pip(), has_npm=shutil.which("npm") is not None)
    if not ways:
        raise ImageBuildFailed(
            f"neither pip nor npm is here to fetch claude {version}; install one, or "
            f"{OVERRIDE_HINT}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for way in ways:
        progress(
            f"fetching claude {version} for Linux {arch} with {way}, about {CLAUDE_MEGABYTES} MB"
        )
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            try:
                argv = _argv(way, version, arch, Path(scratch))
                archive = downloaded(argv, Path(scratch), most_bytes(CLAUDE_MEGABYTES))
                place_claude(archive, target, wanted)
            except FetchFailed as exc:
                failures.append(f"{way}: {exc}")
                continue
            return target
    raise ImageBuildFailed(
        f"claude {version} could not be fetched; check the network, or {OVERRIDE_HINT}. Tried:\n  "
        + "\n  ".join(failures)
    )


def place_claude(archive: Path, target: Path, wanted: str) -> None:
    """The executable inside a wheel or an npm tarball -> target, all of it and checked, or nothing.

    A wrong checksum is not tried again by another route: an operator should look.
    """
    partial = archive.with_name("claude.partial")
    try:
        found = _extract(archive, partial)
        if found != wanted:
            raise ImageBuildFailed(
                f"{archive.name} holds a claude with checksum {found}, not {wanted}; it was not "
                f"used. Try again; if it stays so, {OVERRIDE_HINT}"
            )
        partial.chmod(0o755)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _has_pip() -> bool:
    return importlib.util.find_spec("pip") is not None


def _argv(way: FetchRoute, version: str, arch: Arch, folder: Path) -> list[str]:
    if way == "pip":
        return _pip_argv(version, arch, folder)
    return npm_pack(f"@anthropic-ai/claude-code-linux-{arch}@{version}", folder)


def _pip_argv(version: str, arch: Arch, folder: Path) -> list[str]:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    only = ["--no-deps", "--only-binary=:all:", "--platform", _PLATFORMS[arch]]
    where = ["--dest", str(folder), WHEELS[version]]
    return [sys.executable, "-m", "pip", "download", *quiet, *only, *where]


def _extract(archive: Path, target: Path) -> str:
    """Copy the executable out of the archive, chunk by chunk, and return its checksum."""
    try:
        with target.open("wb") as out:
            if archive.suffix == ".whl":
                with zipfile.ZipFile(archive) as wheel, wheel.open(_WHEEL_MEMBER) as source:
                    return _copy(source, out)
            with tarfile.open(archive, "r|gz") as tarball:
                for member in tarball:
                    file = tarball.extractfile(member) if member.name == _TARBALL_MEMBER else None
                    if file is not None:
                        return _copy(file, out)
    except (OSError, EOFError, KeyError, tarfile.TarError, zipfile.BadZipFile) as exc:
        raise FetchFailed(f"{archive.name} cannot be unpacked: {exc}") from exc
    raise FetchFailed(f"{archive.name} holds no {_TARBALL_MEMBER}")


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    digest, left = hashlib.sha256(), CLAUDE_BYTES
    for chunk in chunks_of(source):
        left -= len(chunk)
        if left < 0:
            raise FetchFailed(f"it unpacks to more than {CLAUDE_BYTES // 1_000_000} MB")
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest()
