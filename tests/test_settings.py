"""The environment -> Settings."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from orchestrator.settings import read_settings


def test_docker_host_alone_decides(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DOCKER_HOST": "tcp://engine:2375"}
    assert read_settings(env).engine_candidates == ("tcp://engine:2375",)


def test_the_selected_docker_context_is_used(tmp_path: Path) -> None:
    base = tmp_path / ".docker"
    meta = base / "contexts/meta" / hashlib.sha256(b"desktop").hexdigest()
    meta.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps({"currentContext": "desktop"}))
    endpoint = {"Endpoints": {"docker": {"Host": "unix:///somewhere/docker.sock"}}}
    (meta / "meta.json").write_text(json.dumps(endpoint))

    env = {"HOME": str(tmp_path)}
    assert read_settings(env).engine_candidates == ("unix:///somewhere/docker.sock",)


def test_the_usual_sockets_are_tried_and_podman_last(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/me"}
    candidates = read_settings(env).engine_candidates

    assert candidates[0] == "unix:///var/run/docker.sock"
    assert f"unix://{tmp_path}/.orbstack/run/docker.sock" in candidates
    assert candidates[-2:] == (
        "unix:///run/me/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    )


def test_directories_follow_the_environment(tmp_path: Path) -> None:
    plain = read_settings({"HOME": str(tmp_path)}, cwd=Path("/srv/work"))
    told = read_settings(
        {
            "HOME": str(tmp_path),
            "ORCHESTRATOR_STATE_DIR": "/state",
            "ORCHESTRATOR_CACHE_DIR": "/cache",
            "ORCHESTRATOR_ALLOWED_ROOTS": "/a:/b",
        }
    )

    assert plain.state_dir == tmp_path / ".local/state/subagent-orchestrator"
    assert plain.cache_dir == tmp_path / ".cache/subagent-orchestrator"
    assert plain.allowed_roots == (tmp_path, Path("/srv/work"))
    assert (told.state_dir, told.cache_dir) == (Path("/state"), Path("/cache"))
    assert told.allowed_roots == (Path("/a"), Path("/b"))


def test_tls_is_used_when_docker_says_so(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "DOCKER_TLS_VERIFY": "1"}
    assert read_settings(env).tls_dir == tmp_path / ".docker"
    assert read_settings({"HOME": str(tmp_path)}).tls_dir is None
