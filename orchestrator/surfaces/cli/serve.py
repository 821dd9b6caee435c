"""`orchestrator serve`: the MCP server, on stdin and stdout or over HTTP."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import anyio
import typer

from orchestrator.surfaces.cli.failures import LogLines
from orchestrator.surfaces.cli.options import AgentsDirOption, RunnerConfigOption, RunnerOption


def serve(
    *,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP instead of stdio."),
    ] = None,
    agents_dir: AgentsDirOption = None,
    runner: RunnerOption = None,
    runner_config: RunnerConfigOption = None,
) -> None:
    """Serve MCP to one client on stdin and stdout, or to many over HTTP."""
    from orchestrator.settings import read_settings

    log_in_lines()
    flags = {
        "agents_dir": agents_dir and _served(agents_dir),
        "runner": runner,
        "runner_config": runner_config and runner_config.absolute(),
    }
    # Without the flag, a directory that is not there yet is fine: agents may come while we serve.
    settings = read_settings(flags=flags)
    if settings.runner or settings.runner_config:  # told now, not to the first caller
        with no_collecting():
            from orchestrator.app import runner_wish
        runner_wish(settings)
    if http is None:
        with no_collecting():
            from orchestrator.surfaces.mcp.transports import stdio as mcp_stdio

        anyio.run(mcp_stdio.serve, settings)
    else:
        with no_collecting():
            from orchestrator.surfaces.mcp.transports import http as mcp_http

        anyio.run(mcp_http.serve, settings, http)


def _served(agents_dir: Path) -> Path:
    """Where a directory that was named really is; AgentsDirMissing if it cannot be served: its user
    would wait for agents that never come.
    """
    from orchestrator.errors import AgentsDirMissing

    try:
        real = agents_dir.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise AgentsDirMissing(
            f"--agents-dir {agents_dir} cannot be used: {why}; name a directory that is there, by "
            "its absolute path"
        ) from exc
    if not real.is_dir():
        raise AgentsDirMissing(f"--agents-dir {agents_dir} is not a directory; name one")
    if real == Path(real.anchor):
        raise AgentsDirMissing(
            f"--agents-dir {agents_dir} is the whole machine; name the directory with your agents"
        )
    return real


def log_in_lines() -> None:
    """Before the SDK does it in its own way: a screen full of boxes for each error, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


@contextmanager
def no_collecting() -> Iterator[None]:
    """What imports make stays: looking for garbage in it takes a sixth of the time, and more."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # nor does it need to be looked through ever again
        gc.enable()
