"""`orchestrator serve`: the MCP server, on stdin and stdout or over HTTP."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer

from orchestrator.surfaces.cli.options import (
    AgentsDirOption,
    LogJsonOption,
    RunnerConfigOption,
    RunnerOption,
)
from orchestrator.surfaces.cli.serving import (
    no_collecting,
    serve_stdio,
    served_here,
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
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Answer a Prometheus there, at /metrics (ORCHESTRATOR_METRICS; 127.0.0.1:9464).",
        ),
    ] = None,
    log_json: LogJsonOption = False,
) -> None:
    """Serve MCP to one client on stdin and stdout, or to many over HTTP."""
    flags = {
        "runner": runner,
        "runner_config": runner_config and runner_config.absolute(),
        "metrics": metrics,
        "log_json": log_json or None,
    }
    if http is None:
        serve_stdio(agents_dir, **flags)
        return
    settings = settings_to_serve(agents_dir, **flags)
    with no_collecting():
        from orchestrator.surfaces.mcp.transports import http as mcp_http
    with served_here(settings) as open_served:
        anyio.run(mcp_http.serve, settings, http, open_served)
