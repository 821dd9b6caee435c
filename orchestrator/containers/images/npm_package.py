"""A pinned npm package -> its archive in the cache, with a known checksum -> files for a build.

An archive is checked whole before it is opened: what npm calls its integrity, the SHA-512 of all
its bytes, is part of the pin.
"""

from __future__ import annotations

import base64
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import requests

from orchestrator.containers.images.build import ContextFile
from orchestrator.containers.images.fetching import (
    FILE_CHUNK_BYTES,
    FetchFailed,
    Progress,
    chunks_of,
    downloaded,
    file_digest,
    most_bytes,
    npm_pack,
)
from orchestrator.domain import Frozen
from orchestrator.errors import ImageBuildFailed
from orchestrator.settings import Settings

INDEX_SILENCE_SECONDS = 60
"""An index that neither sends nor refuses is given up after so long."""

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


def fetch_package(settings: Settings, package: NpmPackage, progress: Progress) -> Path:
    """The archive in the cache, checked; fetched first if it is not there: by npm, or, where there
    is none, from the index that the operator names.

    Several may fetch at once: each works in a directory of its own and the last rename wins, all
    of them with the same bytes.
    """
    wanted = base64.b64decode(package.integrity.removeprefix("sha512-")).hex()
    target = settings.cache_dir / "packages" / f"{wanted[:32]}.tgz"
    if target.exists() and file_digest(target, "sha512") == wanted:
        return target
    index = None if shutil.which("npm") else settings.npm_registry
    if index is None and shutil.which("npm") is None:
        raise ImageBuildFailed(
            f"npm is not here to fetch {package.spec}; install Node.js, which brings npm, or name "
            "the address of an npm index in NPM_CONFIG_REGISTRY, and try again"
        )
    by = "from NPM_CONFIG_REGISTRY" if index else "with npm"
    progress(f"fetching {package.spec} {by}, about {package.megabytes} MB")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        try:
            archive = _fetched(package, index, Path(scratch))
        except FetchFailed as exc:
            raise ImageBuildFailed(
                f"{package.spec} could not be fetched {by}; check the network, and that this index "
                f"has it: {exc}"
            ) from exc
        found = file_digest(archive, "sha512")
        if found != wanted:
            raise ImageBuildFailed(
                f"{package.spec} came with the SHA-512 {found}, not {wanted}; it was not used. Try "
                "again; if it stays so, look at the index that it comes from (npm config get "
                "registry, NPM_CONFIG_REGISTRY)"
            )
        archive.replace(target)
    return target


def _fetched(package: NpmPackage, index: str | None, folder: Path) -> Path:
    if index is None:
        return downloaded(npm_pack(package.spec, folder), folder, most_bytes(package.megabytes))
    name = package.name.rpartition("/")[2]
    url = f"{index.rstrip('/')}/{package.name}/-/{name}-{package.version}.tgz"
    target = folder / "package.tgz"
    try:
        # Of what comes, nothing is used but what has our checksum.
        with requests.get(url, stream=True, timeout=INDEX_SILENCE_SECONDS) as answer:
            answer.raise_for_status()
            most = left = most_bytes(package.megabytes)
            with target.open("wb") as out:
                for chunk in answer.iter_content(FILE_CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise FetchFailed(f"it brings more than {most // 1_000_000} MB")
                    out.write(chunk)
    except (requests.RequestException, OSError) as exc:
        raise FetchFailed(re.sub(r"//[^/@\s]*@", "//…@", str(exc))) from exc
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
