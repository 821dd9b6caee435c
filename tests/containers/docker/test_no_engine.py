"""What an operator is told when no engine answers, or not to this user."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.containers.docker.engine import no_engine

AS_ANOTHER_USER = """
import os, sys
from orchestrator.containers.docker.engine import connect
from orchestrator.errors import EngineUnreachable
from orchestrator.settings import read_settings
settings = read_settings({"HOME": "/nonexistent", "DOCKER_HOST": "unix://" + sys.argv[1]})
if os.getuid() == 0:
    os.setuid(65534)
try:
    connect(settings)
except EngineUnreachable as exc:
    print(exc)
"""


def test_a_socket_that_this_user_may_not_use_is_told_with_what_to_do() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="orch-") as folder,
        socket.socket(socket.AF_UNIX) as own,
    ):
        path = Path(folder) / "docker.sock"
        own.bind(str(path))
        own.listen()
        path.chmod(0)
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, str(path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.stdout == (
        "Docker runs, but you may not use it: sudo usermod -aG docker $USER, then log in again. "
        "(Members of that group can become root here.) Tried:\n"
        f"  unix://{path}: Permission denied\n"
    ), done.stderr


def test_podmans_socket_of_another_user_is_told_apart() -> None:
    denied = PermissionError(13, os.strerror(13))
    said = no_engine({"unix:///run/podman/podman.sock": denied})
    assert said.startswith("Podman runs, but not for you: systemctl --user enable --now")


def test_an_engine_that_is_not_there_is_told_with_where_it_was_looked_for() -> None:
    gone = FileNotFoundError(2, os.strerror(2))
    assert no_engine({"unix:///a": gone, "tcp://b:1": ConnectionRefusedError(111, "refused")}) == (
        "no container engine answers; start Docker or Podman, or set DOCKER_HOST. Tried:"
        "\n  unix:///a: No such file or directory\n  tcp://b:1: refused"
    )
