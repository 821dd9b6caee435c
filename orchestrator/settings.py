"""Process settings, read once at the edge. The only place that knows the environment."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.domain import Frozen


class Settings(Frozen):
    """What the operator decides for the whole process."""

    state_dir: Path
    """ORCHESTRATOR_STATE_DIR: locks and records, shared by all orchestrators of a user."""
    cache_dir: Path
    """ORCHESTRATOR_CACHE_DIR: downloads that can be fetched again."""
    engine_candidates: tuple[str, ...]
    """Addresses to try for a container engine, first answer wins. DOCKER_HOST alone, if set."""
    tls_dir: Path | None = None
    """DOCKER_CERT_PATH, when DOCKER_TLS_VERIFY is set."""
    allowed_roots: tuple[Path, ...] = ()
    """ORCHESTRATOR_ALLOWED_ROOTS: directories below which a container may be shown something."""
    home: Path
    agent_image: str | None = None
    """ORCHESTRATOR_AGENT_IMAGE: use this image instead of the one that we build."""
    claude_binary: Path | None = None
    """ORCHESTRATOR_CLAUDE_BINARY: a claude executable for Linux to put into the image."""
    claude_version: str | None = None
    """ORCHESTRATOR_CLAUDE_VERSION: one whose checksum we know; None is the newest."""
    base_image: str | None = None
    """ORCHESTRATOR_BASE_IMAGE: build on this Debian or Ubuntu image instead of the default."""


def read_settings(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> Settings:
    """The environment -> Settings."""
    env = os.environ if environ is None else environ
    home = Path(env.get("HOME") or Path.home())
    here = cwd or Path.cwd()
    state = Path(env.get("XDG_STATE_HOME") or home / ".local/state")
    cache = Path(env.get("XDG_CACHE_HOME") or home / ".cache")
    roots = env.get("ORCHESTRATOR_ALLOWED_ROOTS")
    return Settings(
        state_dir=Path(env.get("ORCHESTRATOR_STATE_DIR") or state / "subagent-orchestrator"),
        cache_dir=Path(env.get("ORCHESTRATOR_CACHE_DIR") or cache / "subagent-orchestrator"),
        engine_candidates=_engine_candidates(env, home),
        tls_dir=_tls_dir(env, home),
        allowed_roots=_roots(roots) if roots else tuple(dict.fromkeys((home, here))),
        home=home,
        agent_image=env.get("ORCHESTRATOR_AGENT_IMAGE") or None,
        claude_binary=_path(env.get("ORCHESTRATOR_CLAUDE_BINARY")),
        claude_version=env.get("ORCHESTRATOR_CLAUDE_VERSION") or None,
        base_image=env.get("ORCHESTRATOR_BASE_IMAGE") or None,
    )


def _roots(text: str) -> tuple[Path, ...]:
    return tuple(Path(part).expanduser() for part in text.split(os.pathsep) if part)


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser() if text else None


def _tls_dir(env: Mapping[str, str], home: Path) -> Path | None:
    if not env.get("DOCKER_TLS_VERIFY"):
        return None
    return Path(env.get("DOCKER_CERT_PATH") or home / ".docker")


def _engine_candidates(env: Mapping[str, str], home: Path) -> tuple[str, ...]:
    """DOCKER_HOST if set, else the docker context, then the usual sockets, Podman's last."""
    if env.get("DOCKER_HOST"):
        return (env["DOCKER_HOST"],)
    context = _docker_context(env, home)
    if context:
        return (context,)
    run = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    sockets = (
        Path("/var/run/docker.sock"),
        Path(run) / "docker.sock",
        home / ".docker/run/docker.sock",
        home / ".orbstack/run/docker.sock",
        home / ".colima/default/docker.sock",
        Path(run) / "podman/podman.sock",
        Path("/run/podman/podman.sock"),
    )
    return tuple(f"unix://{path}" for path in sockets)


def _docker_context(env: Mapping[str, str], home: Path) -> str | None:
    """The address that `docker context use` selected, if it is not the default one."""
    base = Path(env.get("DOCKER_CONFIG") or home / ".docker")
    try:
        config = json.loads((base / "config.json").read_text())
        name = env.get("DOCKER_CONTEXT") or config.get("currentContext") or "default"
    except (OSError, ValueError):
        name = env.get("DOCKER_CONTEXT") or "default"
    if name == "default":
        return None
    meta = base / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    try:
        host = json.loads(meta.read_text())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError):
        return None
    return str(host)
