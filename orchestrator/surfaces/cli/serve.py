"""`orchestrator serve`: the MCP server, on stdin and stdout or over HTTP."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import anyio
import typer

from orchestrator.surfaces.cli.failures import LogLines
from orchestrator.surfaces.cli.options import AgentsDirOption


def serve(
    *,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP instead of stdio."),
    ] = None,
    agents_dir: AgentsDirOption = None,
) -> None:
    """Serve MCP to one client on stdin and stdout, or to many over HTTP."""
    from orchestrator.settings import read_settings

    log_in_lines()
    # A directory that is not there yet is fine: agents may come while we serve.
    settings = read_settings(flags={"agents_dir": agents_dir and agents_dir.absolute()})
    if http is None:
        with no_collecting():
            from orchestrator.surfaces.mcp.transports import stdio as mcp_stdio

        anyio.run(mcp_stdio.serve, settings)
    else:
        with no_collecting():
            from orchestrator.surfaces.mcp.transports import http as mcp_http

        anyio.run(mcp_http.serve, settings, http)


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
