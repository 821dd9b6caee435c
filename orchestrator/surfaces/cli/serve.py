"""`orchestrator serve`: the MCP server, on stdin and stdout or over HTTP."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from orchestrator.surfaces.cli.options import AgentsDirOption, RunnerConfigOption, RunnerOption
from orchestrator.surfaces.cli.serving import (
    log_in_lines,
    no_collecting,
    serve_stdio,
    settings_to_serve,
)


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
    if http is None:
        serve_stdio(agents_dir, runner, runner_config)
        return
    log_in_lines()
    settings = settings_to_serve(agents_dir, runner, runner_config)
    with no_collecting():
        from orchestrator.surfaces.mcp.transports import http as mcp_http

    anyio.run(mcp_http.serve, settings, http)
