"""`orchestrator demo`: a real MCP client, our server, a container, the real CLI, an answer."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.surfaces.cli.options import AgentsDirOption
from orchestrator.surfaces.text import write

if TYPE_CHECKING:
    from mcp import StdioServerParameters

    from orchestrator.settings import Settings
    from orchestrator.surfaces.event_lines import Show

AGENT = "code-runner"
PROMPT = "Write a Python program that adds up the squares of 1 to 10, run it, and report."

CREDENTIAL_SETTINGS = ("anthropic_api_key", "anthropic_auth_token", "claude_code_oauth_token")

DEMO_SECONDS = 330.0
"""For the answer: the agent's own timeout, and the image if it is not built yet."""

EXIT_FAILED = 1


def demo(*, agents_dir: AgentsDirOption = None) -> None:
    """Start the MCP server, hand code-runner a task through a real client, show what happens."""
    import anyio

    from orchestrator.settings import read_settings
    from orchestrator.surfaces.event_lines import shown_events

    settings = read_settings(flags={"agents_dir": agents_dir and agents_dir.absolute()})
    scripted = settings.scripted or not any(getattr(settings, name) for name in CREDENTIAL_SETTINGS)
    write(f"run_subagent({AGENT!r}, {PROMPT!r})", sys.stdout)
    began = time.monotonic()
    with shown_events(sys.stdout, waiting=f"{AGENT} is at work") as show:
        envelope, is_error, text = anyio.run(_call, _server(settings, scripted), show)
    seconds = time.monotonic() - began
    if is_error or envelope.get("status") != "completed":
        write(f"error: {text}", sys.stderr)
        raise typer.Exit(EXIT_FAILED)
    write(json.dumps(envelope["result"], indent=2, ensure_ascii=False), sys.stdout)
    write(demo_summary(envelope, seconds, scripted=scripted), sys.stdout)


def demo_summary(envelope: dict[str, Any], seconds: float, *, scripted: bool) -> str:
    """Which model it was, and how long it took."""
    model = f"{envelope['model']}, ${envelope['cost_usd']:.4f}"
    if scripted:
        model = "a script (set ANTHROPIC_API_KEY for the real one)"
    tries = envelope["attempts"]
    attempts = f"{tries} attempt{'' if tries == 1 else 's'}"
    return f"valid after {attempts}; {seconds:.1f} s in all; model: {model}"


def _server(settings: Settings, scripted: bool) -> StdioServerParameters:
    from mcp import StdioServerParameters

    from orchestrator.settings import whole_environment

    env = {**whole_environment(), "ORCHESTRATOR_AGENTS_DIR": str(_agents_dir(settings))}
    if scripted:
        env["ORCHESTRATOR_SCRIPTED"] = "1"
    run_cli = "from orchestrator.surfaces.cli.main import main; main()"
    return StdioServerParameters(command=sys.executable, args=["-c", run_cli, "serve"], env=env)


def _agents_dir(settings: Settings) -> Path:
    """The agents here, if the one we need is among them, else those of our repository."""
    import orchestrator
    from orchestrator.errors import AgentNotFound

    shipped = Path(orchestrator.__file__).parent.parent / "agents"
    for folder in (settings.agents_dir, shipped):
        if (folder / AGENT / "agent.md").is_file():
            return folder
    raise AgentNotFound(
        f"the demo runs {AGENT}, which is not in {settings.agents_dir}; run it in a checkout of "
        "the repository, or name its agents/ with --agents-dir"
    )


async def _call(server: StdioServerParameters, show: Show) -> tuple[dict[str, Any], bool, str]:
    """The envelope, whether it is an error, and what the client would show of it."""
    import anyio
    from mcp import Client, MCPError

    from orchestrator.errors import OperatorError

    began = time.monotonic()
    last = ""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001 the SDK names them
        nonlocal last
        if message and message != last:  # while nothing happens, the last line is said again
            last = message
            kind, _, text = message.partition(": ")
            show(time.monotonic() - began, kind, text)

    result, lost = None, None
    try:
        with anyio.fail_after(DEMO_SECONDS):
            async with Client(server) as client:
                show(time.monotonic() - began, "connected", f"MCP {client.protocol_version}")
                result = await client.call_tool(
                    "run_subagent",
                    {"agent_name": AGENT, "prompt": PROMPT},
                    progress_callback=on_progress,
                )
    except* (MCPError, OSError) as group:  # a timeout is an OSError too
        lost = group
    if result is None:
        raise OperatorError("the MCP server went away, or did not answer in time") from lost
    text = "\n".join(block.text for block in result.content if block.type == "text")
    return dict(result.structured_content or {}), bool(result.is_error), text
