"""A pinned npm package -> its archive in the cache, with a known checksum -> files for a build.

An archive is checked whole before it is opened: what npm calls its integrity, the SHA-512 of all
its bytes, is part of the pin.
"""

from __future__ import annotations

import base64
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.containers.images.build import ContextFile
from orchestrator.containers.images.fetching import (
    FetchFailed,
    Progress,
    chunks_of,
    downloaded,
    file_digest,
    npm_pack,
)
from orchestrator.domain import Frozen
from orchestrator.errors import ImageBuildFailed

_ROOT = "package/"
"""Where an archive of npm's has its files."""


class NpmPackage(Frozen):
    """A package of npm's, by its very bytes, and what of it goes into an image."""

    name: str
    version: str
    integrity: str
    """As npm writes it: "sha512-" and the digest in base64."""
    megabytes: int
    """How much there is to download."""
    takes: dict[str, str]
    """A file or a directory of the package -> its name in the build context."""

    @property
    def spec(self) -> str:
        return f"{self.name}@{self.version}"


def fetch_package(cache_dir: Path, package: NpmPackage, progress: Progress) -> Path:
    """The archive in the cache, checked; fetched first if it is not there.

    Several may fetch at once: each works in a directory of its own and the last rename wins, all
    of them with the same bytes.
    """
    wanted = base64.b64decode(package.integrity.removeprefix("sha512-")).hex()
    target = cache_dir / "packages" / f"{wanted[:32]}.tgz"
    if target.exists() and file_digest(target, "sha512") == wanted:
        return target
    if shutil.which("npm") is None:
        raise ImageBuildFailed(
            f"npm is not here to fetch {package.spec}; install Node.js, which brings npm, and try "
            "again"
        )
    progress(f"fetching {package.spec} with npm, about {package.megabytes} MB")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        try:
            archive = downloaded(npm_pack(package.spec, Path(scratch)), Path(scratch))
        except FetchFailed as exc:
            raise ImageBuildFailed(
                f"{package.spec} could not be fetched; check the network, and that `npm view "
                f"{package.spec}` finds it. npm says: {exc}"
            ) from exc
        found = file_digest(archive, "sha512")
        if found != wanted:
            raise ImageBuildFailed(
                f"npm fetched a {package.spec} with the SHA-512 {found}, not {wanted}; it was not "
                "used. Try again; if it stays so, see which index npm uses: npm config get registry"
            )
        archive.replace(target)
    return target


def package_files(archive: Path, package: NpmPackage) -> Iterator[ContextFile]:
    """What is taken of a package; each file has to be read before the next is asked for."""
    missing = set(package.takes)
    with tarfile.open(archive, "r|gz") as tarball:
        for member in tarball:
            inside = member.name.removeprefix(_ROOT)
            taken = next((each for each in package.takes if _is_in(inside, each)), None)
            file = tarball.extractfile(member) if taken and member.isfile() else None
            if taken is None or file is None:
                continue
            missing.discard(taken)
            name = package.takes[taken] + inside.removeprefix(taken)
            mode = 0o755 if member.mode & 0o100 else 0o644
            yield ContextFile(name, member.size, chunks_of(file), mode)
    if missing:
        raise ImageBuildFailed(f"{package.spec} holds no {', '.join(sorted(missing))}")


def _is_in(path: str, member: str) -> bool:
    return path == member or path.startswith(f"{member}/")
