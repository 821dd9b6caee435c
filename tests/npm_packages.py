"""Programs from npm for tests: exactly as locked, checked, and installed once into the cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from orchestrator.containers.file_lock import file_lock
from orchestrator.settings import read_settings

INSTALL_SECONDS = 280
"""For some hundred MB of packages, once for each lock."""


def npm_commands(packages: Path) -> Path:
    """The folder with the commands of the packages that a folder's lock names."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not here to install {packages.name}")
    lock = (packages / "package-lock.json").read_bytes()
    place = read_settings().cache_dir / "npm" / hashlib.sha256(lock).hexdigest()[:12]
    place.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(place.with_suffix(".lock"), INSTALL_SECONDS, lambda: None):
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                folder = shutil.copytree(packages, Path(scratch) / packages.name)
                quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
                done = subprocess.run(
                    [npm, "ci", *quiet],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=INSTALL_SECONDS,
                )
                assert done.returncode == 0, done.stderr.decode()
                folder.rename(place)
    return place / "node_modules" / ".bin"
