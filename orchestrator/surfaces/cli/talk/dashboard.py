"""`orchestrator dashboard`: the page, opened for the person at this terminal."""

from __future__ import annotations

import os
import socket
import sys
import webbrowser
from html import escape
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from orchestrator.surfaces.cli.options import AgentsDirOption
from orchestrator.surfaces.cli.serving import no_collecting, served_here, settings_to_serve

if TYPE_CHECKING:
    from orchestrator.settings import Settings

DASHBOARD_PORT = 8900
"""Where a server for the page listens, unless something else does: a browser knows a page by it."""

LOOPBACK = "127.0.0.1"


def dashboard(
    *,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the link, and open no browser.")
    ] = False,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="URL", help="How your browser reaches the server, if not as we do."
        ),
    ] = None,
    agents_dir: AgentsDirOption = None,
) -> None:
    """Open the page: what waits for you, what runs, and what came of it.

    It uses the server of this project, if one serves HTTP, and otherwise serves until you end it.
    """
    settings = settings_to_serve(agents_dir)
    with no_collecting():
        from orchestrator.state import living_http_server, page_link

    async def tell(url: str) -> None:
        link = await page_link(settings, (at or url).rstrip("/"))
        print(link, flush=True)
        if not no_open:
            _open(settings, link)

    url = living_http_server(settings)
    if url is not None:
        anyio.run(tell, url)
        return
    with no_collecting():
        from orchestrator.surfaces.mcp.transports import http as mcp_http

    print("no server of this project answers; serving until Ctrl-C", file=sys.stderr, flush=True)
    address = f"{LOOPBACK}:{_free_port()}"
    with served_here(settings) as open_served:
        anyio.run(mcp_http.serve, settings, address, open_served, tell)


def _free_port() -> int:
    """The usual port; 0, which is any, if it is taken."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((LOOPBACK, DASHBOARD_PORT))
        except OSError:
            return 0
    return DASHBOARD_PORT


def _open(settings: Settings, link: str) -> None:
    """Start a browser with a file that leads to the link: all users of a machine can read with
    which arguments a program was started, and the link is for one.
    """
    file = settings.state_dir / "open-page.html"
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(file, how, 0o600), "w") as opened:
        opened.write(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}">'
            f'<a href="{escape(link)}">open</a>'
        )
    webbrowser.open(file.as_uri())
