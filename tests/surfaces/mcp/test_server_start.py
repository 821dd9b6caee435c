"""How `orchestrator serve` begins and ends on stdin and stdout, without a run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.surfaces.mcp.mcp_stage import PATIENCE

BESIDE = """
import sys
from contextlib import asynccontextmanager

import anyio
from mcp.server import MCPServer

from orchestrator.settings import read_settings
from orchestrator.surfaces.mcp.transports.served import Served
from orchestrator.surfaces.mcp.transports.stdio import serve

async def beside():
    print("at work", file=sys.stderr, flush=True)
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.2)
        print("stopped", file=sys.stderr, flush=True)

@asynccontextmanager
async def opened(*_):
    yield Served(MCPServer("x"), (beside,), lambda _: None, lambda *_: None)
    print("closed", file=sys.stderr, flush=True)

anyio.run(serve, read_settings(), opened)
"""


@contextmanager
def started(folder: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A Python with a state directory of its own."""
    env = {"ORCHESTRATOR_STATE_DIR": str(folder), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, *argv], env=env, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["stdin ends", "SIGTERM"])
def test_what_runs_beside_a_server_ends_before_what_it_uses_is_closed(
    tmp_path: Path, how: str
) -> None:
    """Else a watcher reads the store while it is being closed: SIGSEGV."""
    with started(tmp_path, "-c", BESIDE) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stderr.readline() == "at work\n"
        if how == "stdin ends":
            process.stdin.close()
        else:
            process.send_signal(signal.Signals[how])
        rest = process.stderr.read()
        assert (rest, process.wait(PATIENCE)) == ("stopped\nclosed\n", 0)
