"""Getting the claude executable: which way, checked or not at all."""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.containers.docker.engine import connect
from orchestrator.containers.images import claude_binary
from orchestrator.containers.images.agent_image import current_tags
from orchestrator.containers.images.claude_binary import (
    CHECKSUMS,
    CLAUDE_VERSION,
    FetchRoute,
    checksum_of,
    elf_arch,
    fetch_claude,
    own_claude,
    place_claude,
    routes,
)
from orchestrator.containers.images.fetching import Arch, FetchFailed, arch_of
from orchestrator.domain.agent import DEFAULT_RUNNER
from orchestrator.errors import ImageBuildFailed
from orchestrator.settings import read_settings

X64_HEADER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\x3e\x00"
ARM64_HEADER = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00"
MACH_O_HEADER = b"\xcf\xfa\xed\xfe" + bytes(16)


def wheel_with(content: bytes, folder: Path) -> Path:
    path = folder / "claude_agent_sdk-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("claude_agent_sdk/_bundled/claude", content)
    return path


def tarball_with(content: bytes, folder: Path) -> Path:
    source = folder / "source"
    source.write_bytes(content)
    path = folder / "claude-code-linux-x64-1.tgz"
    with tarfile.open(path, "w:gz") as tarball:
        tarball.add(source, "package/claude")
    source.unlink()
    return path


@pytest.mark.parametrize(
    ("version", "has_pip", "has_npm", "expected"),
    [
        ("2.1.325", True, True, ("pip", "npm")),
        ("2.1.325", True, False, ("pip",)),
        ("2.1.325", False, True, ("npm",)),
        ("2.1.197", True, True, ("npm",)),  # no wheel bundles this one
        ("2.1.197", True, False, ()),
        ("2.1.325", False, False, ()),
    ],
)
def test_pip_comes_first_where_a_wheel_is_known(
    version: str, has_pip: bool, has_npm: bool, expected: tuple[FetchRoute, ...]
) -> None:
    assert routes(version, has_pip=has_pip, has_npm=has_npm) == expected


def test_every_known_version_has_a_checksum_for_both_architectures() -> None:
    versions = {version for version, _ in CHECKSUMS}
    assert CLAUDE_VERSION in versions
    assert set(CHECKSUMS) == {(v, a) for v in versions for a in ("x64", "arm64")}


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ImageBuildFailed, match=r"known versions: 2\.1\.325, 2\.1\.197"):
        checksum_of("9.9.9", "x64")


def test_an_engine_of_another_kind_is_refused() -> None:
    assert (arch_of("amd64"), arch_of("aarch64")) == ("x64", "arm64")
    with pytest.raises(ImageBuildFailed, match="this engine runs 'riscv64'"):
        arch_of("riscv64")


@pytest.mark.parametrize("archive_with", [wheel_with, tarball_with])
def test_an_executable_with_the_right_checksum_is_placed(
    archive_with: Callable[[bytes, Path], Path], tmp_path: Path
) -> None:
    target = tmp_path / "cache-claude"
    archive = archive_with(b"#!program", tmp_path)
    place_claude(archive, target, hashlib.sha256(b"#!program").hexdigest())
    assert target.read_bytes() == b"#!program"
    assert target.stat().st_mode & 0o777 == 0o755
    assert sorted(tmp_path.iterdir()) == sorted([target, archive])


@pytest.mark.parametrize("archive_with", [wheel_with, tarball_with])
def test_a_wrong_checksum_is_refused_and_nothing_is_left(
    archive_with: Callable[[bytes, Path], Path], tmp_path: Path
) -> None:
    archive = archive_with(b"tampered", tmp_path)
    with pytest.raises(ImageBuildFailed, match=r"holds a claude with checksum .* it was not used"):
        place_claude(archive, tmp_path / "claude", CHECKSUMS["2.1.325", "x64"])
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize("archive_with", [wheel_with, tarball_with])
def test_an_executable_that_unpacks_without_end_is_given_up(
    archive_with: Callable[[bytes, Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claude_binary, "CLAUDE_BYTES", 2_000_000)
    archive = archive_with(bytes(3_000_000), tmp_path)
    with pytest.raises(FetchFailed, match="it unpacks to more than 2 MB"):
        place_claude(archive, tmp_path / "claude", CHECKSUMS["2.1.325", "x64"])
    assert list(tmp_path.iterdir()) == [archive]


def test_without_pip_or_npm_the_override_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildFailed, match="ORCHESTRATOR_CLAUDE_BINARY"):
        fetch_claude(tmp_path, "2.1.197", "x64", lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_says_which_way_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = tmp_path / "bin/npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'npm error 404 Not Found' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent))
    told: list[str] = []
    with pytest.raises(ImageBuildFailed, match=r"Tried:\n  npm: npm error 404 Not Found"):
        fetch_claude(tmp_path / "cache", "2.1.197", "x64", told.append)
    assert told == ["fetching claude 2.1.197 for Linux x64 with npm, about 170 MB"]
    assert list((tmp_path / "cache/claude").iterdir()) == []


@pytest.mark.parametrize(
    ("header", "arch"),
    [
        (X64_HEADER, "x64"),
        (ARM64_HEADER, "arm64"),
        (MACH_O_HEADER, None),
        (b"#!/usr/bin/env node\n", None),
        (b"", None),
    ],
)
def test_an_executable_says_what_it_is_for(header: bytes, arch: Arch | None) -> None:
    assert elf_arch(header) == arch


def test_an_executable_of_ones_own_must_fit_the_engine(tmp_path: Path) -> None:
    mine = tmp_path / "claude"
    mine.write_bytes(X64_HEADER)
    assert own_claude(mine, "x64") == mine
    with pytest.raises(
        ImageBuildFailed, match="a Linux executable for x64; the engine needs one for"
    ):
        own_claude(mine, "arm64")
    mine.write_bytes(MACH_O_HEADER)
    with pytest.raises(ImageBuildFailed, match="is not a Linux executable"):
        own_claude(mine, "arm64")
    with pytest.raises(ImageBuildFailed, match=r"cannot be read: .*name an existing file"):
        own_claude(tmp_path / "none", "x64")


def test_an_executable_of_ones_own_makes_an_image_of_its_own(tmp_path: Path) -> None:
    settings = read_settings()
    engine = connect(settings)
    try:
        arch = arch_of(str(engine.api.version()["Arch"]))
        mine = tmp_path / "claude"
        mine.write_bytes(X64_HEADER if arch == "x64" else ARM64_HEADER)
        own = settings.model_copy(update={"claude_binary": mine})
        first = current_tags(engine, own, DEFAULT_RUNNER)
        mine.write_bytes(mine.read_bytes() + b"another version")
        second = current_tags(engine, own, DEFAULT_RUNNER)
        assert len({*first, *second, *current_tags(engine, settings, DEFAULT_RUNNER)}) == 6
    finally:
        engine.close()
