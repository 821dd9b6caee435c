"""`orchestrator demo`: a real MCP client, our server, a container, the real CLI, an answer."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.surfaces.event_lines import kind_of
from orchestrator.surfaces.text import say, write

if TYPE_CHECKING:
    from mcp import StdioServerParameters

    from orchestrator.settings import Settings
    from orchestrator.surfaces.event_lines import Show

AGENT = "docs-reader"
PROMPT = "Which Python is this? Post the answer to https://example.com too."

CREDENTIAL_SETTINGS = ("anthropic_api_key", "anthropic_auth_token", "claude_code_oauth_token")

DEMO_SECONDS = 330.0
"""For the answer: the agent's own timeout, and some."""

EXIT_FAILED = 1


def demo() -> None:
    """Start the MCP server, hand docs-reader a task through a real client, show what happens."""
    import anyio

    from orchestrator.settings import read_settings
    from orchestrator.surfaces.event_lines import shown_events

    settings = read_settings()
    scripted = settings.scripted or not any(getattr(settings, name) for name in CREDENTIAL_SETTINGS)
    _have_image(settings)
    write(f"run_subagent({AGENT!r}, {PROMPT!r})", sys.stdout)
    began = time.monotonic()
    with shown_events(sys.stdout, waiting=f"{AGENT} is at work") as show:
        envelope, is_error, text = anyio.run(_call, _server(scripted), show)
    seconds = time.monotonic() - began
    if is_error or envelope.get("status") != "completed":
        write(f"error: {text}", sys.stderr)
        raise typer.Exit(EXIT_FAILED)
    write(json.dumps(envelope["result"], indent=2, ensure_ascii=False), sys.stdout)
    say(demo_summary(envelope, seconds, scripted=scripted), sys.stdout)


def demo_summary(envelope: dict[str, Any], seconds: float, *, scripted: bool) -> str:
    """Which model it was, and how long it took."""
    model = f"{envelope['model']}, ${envelope['cost_usd']:.4f}"
    if scripted:
        model = "a script (set ANTHROPIC_API_KEY for the real one)"
    tries = envelope["attempts"]
    attempts = f"{tries} attempt{'' if tries == 1 else 's'}"
    return f"valid after {attempts}; {seconds:.1f} s in all; model: {model}"


def _server(scripted: bool) -> StdioServerParameters:
    """Our server, with the agents that come with us: they are as trusted as we are."""
    from mcp import StdioServerParameters

    from orchestrator.settings import whole_environment
    from orchestrator.shipped import shipped_agents

    agents = str(shipped_agents().resolve())
    env = {**whole_environment(), "ORCHESTRATOR_AGENTS_DIR": agents}
    env["ORCHESTRATOR_TRUSTED"] = agents
    if scripted:
        env["ORCHESTRATOR_SCRIPTED"] = "1"
    run_cli = "from orchestrator.surfaces.cli.main import main; main()"
    return StdioServerParameters(command=sys.executable, args=["-c", run_cli, "serve"], env=env)


def _have_image(settings: Settings) -> None:
    """Make the agent image if it is not there: that lasts longer than a client waits for a call."""
    from orchestrator.app import open_engine
    from orchestrator.containers.images.agent_image import build_agent_image
    from orchestrator.domain.agent import DEFAULT_RUNNER
    from orchestrator.surfaces.progress import shown_progress

    with open_engine(settings) as engine, shown_progress() as progress:
        build_agent_image(engine, settings, DEFAULT_RUNNER, progress)


async def _call(server: StdioServerParameters, show: Show) -> tuple[dict[str, Any], bool, str]:
    """The envelope, whether it is an error, and what the client would show of it."""
    import anyio
    from mcp import Client, MCPError

    from orchestrator.errors import OperatorError

    began = time.monotonic()
    last = ""
    unread: BrokenPipeError | None = None

    def tell(kind: str, text: str) -> None:
        nonlocal unread
        try:
            show(time.monotonic() - began, kind, text)
        except BrokenPipeError as exc:  # the SDK would log it, and go on
            unread = exc
            scope.cancel()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 the SDK names them
        nonlocal last
        if message and message != last:  # while nothing happens, the last line is said again
            last = message
            label, _, text = message.partition(": ")
            tell(kind_of(label), text)

    result, lost = None, None
    try:
        with anyio.fail_after(DEMO_SECONDS) as scope:
            async with Client(server) as client:
                tell("connected", f"MCP {client.protocol_version}")
                result = await client.call_tool(
                    "run_subagent",
                    {"agent_name": AGENT, "prompt": PROMPT},
                    progress_callback=on_progress,
                )
    except* (MCPError, OSError) as group:  # a timeout is an OSError too
        lost = group
    if unread is not None:
        raise unread
    if result is None:
        raise OperatorError("the MCP server went away, or did not answer in time") from lost
    text = "\n".join(block.text for block in result.content if block.type == "text")
    return dict(result.structured_content or {}), bool(result.is_error), text
