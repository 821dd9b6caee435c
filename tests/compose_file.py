"""compose.yaml, read the way `docker compose` reads it, and turned into one `docker run`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
FILE = ROOT / "compose.yaml"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<how>:[-?])(?P<text>[^}]*))?\}")


class VariableMissing(Exception):
    """A variable that compose.yaml insists on."""


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in; VariableMissing as `docker compose` would have it."""

    def fill(match: re.Match[str]) -> str:
        value = environ.get(match["name"], "")
        if not value and match["how"] == ":?":
            raise VariableMissing(match["name"])
        return value or (match["text"] if match["how"] == ":-" else "")

    document = yaml.safe_load(FILE.read_text())
    filled = _VARIABLE.sub(fill, yaml.safe_dump(document, width=10_000))
    return dict(yaml.safe_load(filled))


def _mounted(volume: str | Mapping[str, Any], state: str) -> tuple[str, str]:
    if isinstance(volume, str):
        return "--volume", re.sub(r"^state:", f"{state}:", volume)
    if volume["bind"] != {"create_host_path": False} or not volume["read_only"]:
        raise NotImplementedError(volume)
    # --mount, unlike --volume, makes no directory that is not there.
    return "--mount", f"type=bind,source={volume['source']},target={volume['target']},readonly"


def docker_run(service: Mapping[str, Any], *, name: str, state: str) -> list[str]:
    """The service's settings as options; every setting is translated, or this fails."""
    flags = {
        "ports": "--publish",
        "tmpfs": "--tmpfs",
        "cap_drop": "--cap-drop",
        "cap_add": "--cap-add",
        "security_opt": "--security-opt",
    }
    left_out = {"build", "restart", "stop_grace_period"}
    argv = ["docker", "run", "--detach", "--name", name]
    for key, value in service.items():
        if key in flags:
            argv += [part for item in value for part in (flags[key], item)]
        elif key == "environment":
            argv += [part for k, v in value.items() for part in ("--env", f"{k}={v or ''}")]
        elif key == "volumes":
            argv += [part for volume in value for part in _mounted(volume, state)]
        elif key == "read_only":
            argv += ["--read-only"] if value else []
        elif key not in (*left_out, "image", "command"):
            raise NotImplementedError(key)
    return [*argv, service["image"], *service["command"]]
