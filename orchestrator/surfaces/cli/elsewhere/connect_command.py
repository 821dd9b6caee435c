"""`orchestrator connect`: MCP for a client here, answered by an orchestrator elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer


def connect_(
    url: Annotated[
        str,
        typer.Argument(
            metavar="[URL]",
            help="Its address: http://127.0.0.1:8900 (ORCHESTRATOR_SERVER).",
        ),
    ] = "",
) -> None:
    """Serve MCP on stdin and stdout with the tools of an orchestrator elsewhere.

    Directories are sent there, and changes are applied here. Its token is ORCHESTRATOR_TOKEN.
    """
    from orchestrator.surfaces.connect.connecting import connect_stdio

    connect_stdio(url)
