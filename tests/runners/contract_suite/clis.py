"""What the model has to say to each CLI to have it do the same, and what one of them cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.domain.container import WORKSPACE

Step = dict[str, object]


@dataclass(frozen=True)
class ScriptedCli:
    """One of the runners, and what it calls things to its model."""

    runner: str
    model: str
    shell: str
    shell_field: str
    server_tool: str
    """How it calls a tool of an MCP server."""
    starts_elsewhere: bool = False
    """Its commands do not begin in the workspace."""
    ends_loops: bool = False
    """It ends a turn in which the same call is made again and again."""

    @property
    def agent(self) -> dict[str, Any]:
        return {"runner": self.runner, "model": self.model}

    def line(self, text: str) -> str:
        """A command line that begins in the workspace."""
        return f"cd {WORKSPACE}; {text}" if self.starts_elsewhere else text

    def command(self, line: str, **more: object) -> Step:
        given = {self.shell_field: self.line(line), "description": "d"}
        return {"tool": self.shell, "input": given, **more}

    def server(self, server: str, tool: str, given: dict[str, object]) -> Step:
        return {"tool": self.server_tool.format(server=server, tool=tool), "input": given}


CLIS = {
    each.runner: each
    for each in (
        ScriptedCli("claude", "claude-sonnet-4-5", "Bash", "command", "mcp__{server}__{tool}"),
        ScriptedCli("codex", "gpt-5.5", "exec_command", "cmd", "mcp__{server}__{tool}"),
        ScriptedCli("copilot", "claude-sonnet-4-5", "bash", "command", "{server}-{tool}"),
        ScriptedCli(
            "gemini",
            "gemini-2.5-pro",
            "run_shell_command",
            "command",
            "mcp_{server}_{tool}",
            starts_elsewhere=True,
            ends_loops=True,
        ),
        ScriptedCli(
            "opencode",
            "claude-sonnet-4-5",
            "bash",
            "command",
            "{server}_{tool}",
            starts_elsewhere=True,
        ),
    )
}
