"""Servers that others wrote, from npm and PyPI: exactly as locked, in an image of theirs."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from orchestrator.containers.docker.engine import connect
from orchestrator.containers.file_lock import file_lock
from orchestrator.containers.images.base_image import image_exists
from orchestrator.containers.images.build import build_image, path_file, text_file
from orchestrator.domain.container import EGRESS_URL
from orchestrator.settings import read_settings
from tests.engine.harness import Harness
from tests.node_binary import fetch_node
from tests.npm_packages import npm_commands

LOCKS = Path(__file__).with_name("real")

REPOSITORY = "orchestrator-tests/servers"

INSTALL_SECONDS = 600
"""For a hundred MB of packages, once for each lock."""

DOCKERFILE = "ARG BASE\nFROM ${BASE}\nADD servers.tar /opt/\n"

NODE_MODULES = "/opt/node_modules/@modelcontextprotocol"


def _node(name: str, *args: str) -> dict[str, Any]:
    return {"command": ["/opt/node", f"{NODE_MODULES}/server-{name}/dist/index.js", *args]}


def _python(site: str, *command: str) -> dict[str, Any]:
    return {"command": [*command], "env": {"PYTHONPATH": f"/opt/{site}"}}


_SQLITE = "import mcp_server_sqlite; mcp_server_sqlite.main()"

REAL: dict[str, dict[str, Any]] = {
    "everything": _node("everything"),
    "filesystem": _node("filesystem", "/tmp"),
    "memory": {**_node("memory"), "env": {"MEMORY_FILE_PATH": "/tmp/memory.json"}},
    "sequential-thinking": _node("sequential-thinking"),
    "git": _python(
        "newer", "sh", "-c", "git init -q /tmp/it && exec python3 -m mcp_server_git -r /tmp/it"
    ),
    "fetch": _python(
        *("newer", "python3", "-m", "mcp_server_fetch", "--ignore-robots-txt"),
        *("--allow-private-ips", "--proxy-url", EGRESS_URL),
    ),
    "sqlite": _python("older", "python3", "-c", _SQLITE, "--db-path", "/tmp/it.db"),
}
"""server.yaml of each, without its image. git and fetch speak the protocol of 2026, the others that
of the years before; sqlite is from 2025 and has the SDK of then."""


def write_real_server(harness: Harness, name: str, image: str, **fields: Any) -> None:
    """One of them in its folder."""
    folder = harness.agents_dir / "servers" / name
    folder.mkdir(parents=True, exist_ok=True)
    room = {"memory_mb": 256, "scratch_mb": 16}
    given = {"image": image, "resources": room, **REAL[name], **fields}
    (folder / "server.yaml").write_text(json.dumps(given))


def servers_image(base: str) -> str:
    """The image that they are in, on that of agents; made once for each lock and base."""
    settings = read_settings()
    node = fetch_node(settings.cache_dir)
    inputs = [DOCKERFILE, base, node.name, *(_text(path) for path in sorted(LOCKS.iterdir()))]
    tag = f"{REPOSITORY}:{hashlib.sha256(''.join(inputs).encode()).hexdigest()[:12]}"
    engine = connect(settings)
    place = settings.cache_dir / "servers"
    place.mkdir(parents=True, exist_ok=True)
    try:
        with file_lock(place / "lock", INSTALL_SECONDS, lambda: None):
            if not image_exists(engine, tag):
                with tempfile.TemporaryDirectory(dir=place) as scratch:
                    packed = path_file("servers.tar", _packed(Path(scratch), node), 0o644)
                    files = (text_file("Dockerfile", DOCKERFILE), packed)
                    build_image(engine, tag, base, files, lambda _: None)
    finally:
        engine.close()
    return tag


def _packed(folder: Path, node: Path) -> Path:
    with tarfile.open(folder / "servers.tar", "w") as archive:
        archive.add(node, "node")
        archive.add(npm_commands(LOCKS).parent, "node_modules")
        for name in ("newer", "older"):
            _install(LOCKS / f"{name}.lock", folder / name)
            archive.add(folder / name, name)
            shutil.rmtree(folder / name)
    return folder / "servers.tar"


def _install(lock: Path, folder: Path) -> None:
    """Packages for the image's Python, which need not be this one."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
    only = ("--no-deps", "--only-binary=:all:", "--require-hashes", "--python-version", "3.11")
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 26, 24, 17, 12, 5)]
    where = [word for each in (*platforms, "manylinux2014_x86_64") for word in ("--platform", each)]
    argv = (sys.executable, "-m", "pip", "install", *quiet, *only, *where)
    subprocess.run(
        (*argv, "--target", str(folder), "--requirement", str(lock)),
        check=True,
        capture_output=True,
        timeout=INSTALL_SECONDS,
    )


def _text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""
