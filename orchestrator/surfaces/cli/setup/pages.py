"""`orchestrator help`: the reference pages, which come with the package."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from orchestrator.surfaces.text import print_lines, table

ABOUT = {
    "agent": "agent.md: every field, with examples",
    "servers": "servers of tools outside of agents",
    "foreign": "agent files of Claude Code, Copilot, OpenHands, as they are",
    "commands": "the command line, exit codes",
    "settings": "variables and files",
    "mcp": "tools, results, tasks",
    "api": "the HTTP API: runs, events, decisions",
    "page": "the page in a browser: what waits, runs, changes",
    "gateway": "your MCP servers for agents outside, by rules",
    "connect": "an orchestrator elsewhere, for your directory here",
    "telemetry": "traces, metrics, the log",
    "install": "install, upgrade, uninstall; macOS, Windows, Podman; a Claude subscription",
    "images": "what agents run in, and how to add programs to it",
    "http": "serving over HTTP, in compose",
}
"""Topic -> what its page tells."""


def pages(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help=f"One of {', '.join(ABOUT)}.")
    ] = None,
) -> None:
    """Show a page of the reference; without a topic, list them."""
    from orchestrator.errors import CallInvalid
    from orchestrator.shipped import reference_pages

    if topic is None:
        print_lines(table([(f"orchestrator help {name}", about) for name, about in ABOUT.items()]))
        print("orchestrator COMMAND --help: the options of a command")
        return
    page = reference_pages().get(topic)
    if page is None:
        raise CallInvalid(f"there is no page {topic[:60]!r}; there are {', '.join(ABOUT)}")
    text = page.read_text(encoding="utf-8")
    if not sys.stdout.isatty():
        print_lines(text.splitlines())
        return
    from rich.console import Console
    from rich.markdown import Markdown

    # A link leads from page to page in the repository, and nowhere in a terminal.
    Console().print(Markdown(re.sub(r"\[([^\]]+)\]\([^)\s]+\)", r"\1", text)))
