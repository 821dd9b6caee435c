"""Packages of npm's for images: by their very bytes or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.containers.images import fetching
from orchestrator.containers.images.build import build_context
from orchestrator.containers.images.cli_parts import (
    IMAGE_RUNNERS,
    PACKAGES,
    cli_checksums,
    pinned_runners,
)
from orchestrator.containers.images.npm_package import (
    NpmPackage,
    fetch_package,
    package_files,
)
from orchestrator.errors import ImageBuildFailed
from orchestrator.gateway.http.loopback import serve_on_loopback
from orchestrator.gateway.http.server import HttpRequest, HttpResponse
from orchestrator.settings import Settings, read_settings
from orchestrator.shipped import shipped_images

FILES = {
    "package/package.json": (b"{}", 0o644),
    "package/bin/cli": (b"#!program", 0o755),
    "package/lib/a.js": (b"a", 0o666),
    "package/lib/deep/b.js": (b"b", 0o644),
    "package/library.js": (b"not taken", 0o644),
}


def tarball(path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, (content, mode) in FILES.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            archive.addfile(info, io.BytesIO(content))
    return path


def package(archive: Path, *takes: tuple[str, str]) -> NpmPackage:
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    return NpmPackage(
        name="@maker/cli",
        version="1.2.3",
        integrity=f"sha512-{digest}",
        megabytes=7,
        takes=dict(takes),
    )


def caching(tmp_path: Path, index: str | None = None) -> Settings:
    given = {"cache_dir": tmp_path / "cache", "npm_registry": index}
    return read_settings().model_copy(update=given)


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_what_is_taken_of_a_package_goes_into_the_context_and_nothing_else(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "cli.tgz")
    wanted = package(archive, ("bin/cli", "cli"), ("lib", "modules"))
    context = b"".join(build_context(package_files(archive, wanted)))
    with tarfile.open(fileobj=io.BytesIO(context)) as made:
        found = {each.name: (made.extractfile(each).read(), each.mode) for each in made}  # type: ignore[union-attr]
    assert found == {
        "cli": (b"#!program", 0o755),
        "modules/a.js": (b"a", 0o644),
        "modules/deep/b.js": (b"b", 0o644),
    }


def test_a_package_without_what_is_wanted_of_it_is_refused(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "cli.tgz")
    with pytest.raises(ImageBuildFailed, match=r"@maker/cli@1\.2\.3 holds no bin/other"):
        list(package_files(archive, package(archive, ("bin/other", "x"), ("lib", "y"))))


def test_a_package_is_fetched_once_and_then_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    # `npm pack --silent --pack-destination FOLDER NAME@VERSION`
    fake_npm(tmp_path / "bin", f'cp {tmp_path}/served.tgz "$4/maker-cli.tgz"', monkeypatch)
    told: list[str] = []
    cached = fetch_package(caching(tmp_path), wanted, told.append)
    assert cached.read_bytes() == (tmp_path / "served.tgz").read_bytes()
    assert fetch_package(caching(tmp_path), wanted, told.append) == cached
    assert told == ["fetching @maker/cli@1.2.3 with npm, about 7 MB"]
    assert list(cached.parent.iterdir()) == [cached]


def test_a_package_with_other_bytes_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    fake_npm(tmp_path / "bin", 'echo tampered > "$4/maker-cli.tgz"', monkeypatch)
    with pytest.raises(ImageBuildFailed, match=r"1\.2\.3 came with the SHA-512 .* not used"):
        fetch_package(caching(tmp_path), wanted, lambda _: None)
    assert list((tmp_path / "cache/packages").iterdir()) == []


def test_a_spoiled_cache_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    fake_npm(tmp_path / "bin", f'cp {tmp_path}/served.tgz "$4/maker-cli.tgz"', monkeypatch)
    cached = fetch_package(caching(tmp_path), wanted, lambda _: None)
    cached.write_bytes(b"half")
    fetch_package(caching(tmp_path), wanted, lambda _: None)
    assert cached.read_bytes() == (tmp_path / "served.tgz").read_bytes()


def test_a_failed_download_says_what_npm_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    fake_npm(tmp_path / "bin", "echo 'npm error 404 Not Found' >&2; exit 1", monkeypatch)
    with pytest.raises(ImageBuildFailed, match=r"could not be fetched with npm; .*npm error 404 "):
        fetch_package(caching(tmp_path), wanted, lambda _: None)


def test_a_download_that_does_not_end_is_given_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum would tell, but only when all of it is there."""
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    monkeypatch.setattr(fetching, "SPARE_MEGABYTES", -20)  # of 21
    endless = 'mkdir "$4/cache"; cat /dev/zero | head -c 2000000 > "$4/cache/x"; exec sleep 600'
    fake_npm(tmp_path / "bin", endless, monkeypatch)
    with pytest.raises(ImageBuildFailed, match=r"fetched with npm; .*it brings more than 1 MB"):
        fetch_package(caching(tmp_path), wanted, lambda _: None)
    assert list((tmp_path / "cache/packages").iterdir()) == []


def test_without_npm_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildFailed, match=r"npm is not here .*; install Node\.js.*REGISTRY"):
        fetch_package(caching(tmp_path), wanted, lambda _: None)


@pytest.mark.anyio
async def test_without_npm_a_package_comes_from_the_index_that_the_operator_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = package(tarball(tmp_path / "served.tgz"), ("bin/cli", "cli"))
    missing = wanted.model_copy(update={"version": "4.5.6", "integrity": f"sha512-{'A' * 86}=="})
    monkeypatch.setenv("PATH", str(tmp_path))

    async def answer(request: HttpRequest) -> HttpResponse:
        if request.path != "/npm/@maker/cli/-/cli-1.2.3.tgz":
            return HttpResponse(status=404, body=b"not here")
        return HttpResponse(status=200, body=(tmp_path / "served.tgz").read_bytes())

    told: list[str] = []
    async with serve_on_loopback(answer) as url:
        settings = caching(tmp_path, f"{url}/npm/")
        fetch = partial(fetch_package, settings, wanted, told.append)
        cached = await anyio.to_thread.run_sync(fetch)
        with pytest.raises(ImageBuildFailed, match=r"could not be fetched from NPM_.*404"):
            await anyio.to_thread.run_sync(fetch_package, settings, missing, told.append)
        monkeypatch.setattr(fetching, "SPARE_MEGABYTES", -21)  # of 21
        cached.rename(cached.with_suffix(".kept"))
        with pytest.raises(ImageBuildFailed, match=r"from NPM_.*it brings more than 0 MB"):
            await anyio.to_thread.run_sync(fetch)
        cached.with_suffix(".kept").rename(cached)
    assert cached.read_bytes() == (tmp_path / "served.tgz").read_bytes()
    assert told[0] == "fetching @maker/cli@1.2.3 from NPM_CONFIG_REGISTRY, about 7 MB"


def test_every_runner_has_a_dockerfile_and_pins_that_name_bytes() -> None:
    for runner in IMAGE_RUNNERS:
        assert (shipped_images() / runner / "Dockerfile").is_file(), runner
    for arches in PACKAGES.values():
        for packages in arches.values():
            for each in packages:
                digest = base64.b64decode(each.integrity.removeprefix("sha512-"), validate=True)
                assert len(digest) == 64, each.spec


def test_a_runner_that_is_not_pinned_for_an_architecture_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PACKAGES, "codex", {"x64": PACKAGES["codex"]["x64"]})
    assert "codex" in pinned_runners("x64")
    assert "codex" not in pinned_runners("arm64")
    with pytest.raises(ImageBuildFailed, match="codex is pinned for x64, and this engine runs arm"):
        cli_checksums(read_settings(), "codex", "arm64")
