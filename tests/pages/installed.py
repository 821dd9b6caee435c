"""The wheel, built from this checkout and installed in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]

KEPT_VARIABLES = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "ORCHESTRATOR_BASE_IMAGE")
"""What a reader's machine may have set; the engine of this machine may be elsewhere."""


def build(folder: Path, kind: str) -> Path:
    """A wheel or an sdist of this checkout."""
    argv = (sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder)
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.iterdir())


def install(wheel: Path, folder: Path) -> Path:
    """An environment with nothing of this checkout but the wheel: its bin. What it depends on is
    borrowed from the environment that the tests run in, so that nothing is fetched.
    """
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": folder, "platbase": folder}))
    # A plain path: the .pth files in there, such as that of this checkout, are not obeyed.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    argv = (sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "-qq")
    options = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    # Without --ignore-installed pip would see the editable one next door, and remove that.
    subprocess.run((*argv, *options, "--ignore-installed", wheel), check=True, timeout=120)
    return folder / "bin"


def reader_environment(bin_: Path, home: Path) -> dict[str, str]:
    """What a reader has who just installed it: a home of his own, and no variables of ours."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "HOME": str(home),
        "PATH": f"{bin_}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "USER": "reader",
    }
