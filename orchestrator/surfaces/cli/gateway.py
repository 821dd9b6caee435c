"""`orchestrator gateway`: our servers of tools for agents outside, by rules."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from orchestrator.domain.words import counted
from orchestrator.surfaces.cli.failures import log_as_json
from orchestrator.surfaces.cli.options import AgentsDirOption, LogJsonOption
from orchestrator.surfaces.cli.serving import log_in_lines, no_collecting
from orchestrator.surfaces.text import visible, write


def gateway(
    *,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="HOST:PORT", help="Serve streamable HTTP instead of stdio."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The rules (GATEWAY_RULES; .mcp-gateway-rules.json)."),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Offer get_gateway_status too (GATEWAY_DEBUG).")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only say what is wrong with the rules.")
    ] = False,
    agents_dir: AgentsDirOption = None,
    log_json: LogJsonOption = False,
) -> None:
    """Serve the MCP servers in agents/servers to agents outside, by the rules for each of them."""
    from orchestrator.settings import read_settings
    from orchestrator.state import open_rules

    log_in_lines()
    settings = read_settings(
        flags={
            "agents_dir": agents_dir and agents_dir.absolute(),
            "gateway_rules": rules and rules.absolute(),
            "gateway_debug": debug or None,
            "log_json": log_json or None,
        }
    )
    if settings.log_json:
        log_as_json(settings)
    # Before a transport is there: the thread that reads stdin would keep an error from its client.
    opened = open_rules(settings, _tell)
    if check:
        agents = counted(len(opened.current().agents), "agent")
        warnings = counted(len(opened.warnings()), "warning")
        print(f"{opened.path}: rules for {agents}, {warnings}")
        return
    with no_collecting():
        from orchestrator.surfaces.mcp.gateway.serving import gateway_served
        from orchestrator.surfaces.mcp.transports import http as mcp_http
        from orchestrator.surfaces.mcp.transports import stdio as mcp_stdio
    served = partial(gateway_served, opened)
    if http is None:
        anyio.run(mcp_stdio.serve, settings, served)
    else:
        anyio.run(mcp_http.serve, settings, http, served)


def _tell(text: str) -> None:
    write(visible(f"gateway: {text}"), sys.stderr)
