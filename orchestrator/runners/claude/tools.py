"""The tools of the claude CLI by their names, and how a rule names those of MCP servers. Pure.

Recorded from 2.1.325, which is in the image: `--tools` with every name, and what its first event
then lists. `tests/runners/claude/test_tools_real.py` asks the CLI again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from orchestrator.domain.agent import AgentSpec
from orchestrator.runners.contract import PARENT

TOOLS_VERSION = "2.1.325"

BUILT_IN_TOOLS = frozenset(
    (
        *("Agent", "Bash", "CronCreate", "CronDelete", "CronList", "Edit", "EnterWorktree"),
        *("ExitWorktree", "Glob", "Grep", "ListAgents", "Monitor", "NotebookEdit", "Read"),
        *("ReportFindings", "ScheduleWakeup", "SendMessage", "Skill", "TaskCreate", "TaskGet"),
        *("TaskList", "TaskStop", "TaskUpdate", "WebFetch", "WebSearch", "Workflow", "Write"),
    )
)
"""What `--tools` gives an agent that is run as ours are."""

OTHER_NAMES = {"Task": "Agent", "KillShell": "TaskStop"}
"""Names that it takes as well."""

FORMER_TOOLS = {
    "MultiEdit": "write Edit",
    "TodoWrite": "write TaskCreate, TaskUpdate, TaskList and TaskGet",
    "TodoRead": "write TaskList and TaskGet",
    "LS": 'write Glob or "Bash(ls:*)"',
    "NotebookRead": "write Read",
    "BashOutput": "remove it: Bash tells where its output is, for Read",
    "KillBash": "write TaskStop",
    "TaskOutput": "remove it: Bash tells where its output is, for Read",
    "SlashCommand": "write Skill",
    "AskUserQuestion": "remove it, and let the agent ask its caller with `ask: parent`",
    "EnterPlanMode": "remove it: an agent has no person beside it to show a plan to",
    "ExitPlanMode": "remove it: an agent has no person beside it to show a plan to",
    "ListMcpResourcesTool": "remove it: an agent has the tools of MCP servers, not their resources",
    "ReadMcpResourceTool": "remove it: an agent has the tools of MCP servers, not their resources",
    "LSP": "remove it",
}
"""What other releases have, or this one where a person sits before it -> what to do here."""

MCP = "mcp__"


def rule_tool(rule: str) -> str:
    """The tool of a rule, without its pattern."""
    return rule.partition("(")[0]


def server_prefix(server: str) -> str:
    """How the CLI calls all tools of an MCP server; a tool of it has "__" and its name besides."""
    return MCP + re.sub(r"[^A-Za-z0-9_-]", "_", server)


def server_names(agent: AgentSpec) -> tuple[str, ...]:
    """The MCP servers whose tools an agent can be given."""
    inside = (server.name for server in agent.mcp_servers)
    outside = (use.use for use in agent.server_uses)
    return (*inside, *outside, *((PARENT,) if agent.parent_tools else ()))


def names_server(tool: str, server: str) -> bool:
    """Whether a rule's tool is an MCP server, or one of its tools."""
    prefix = server_prefix(server)
    return tool == prefix or tool.startswith(f"{prefix}__")


def has_tool(name: str, servers: Iterable[str] = ()) -> bool:
    """Whether an agent can be given this tool by this name."""
    if name.startswith(MCP):
        return any(names_server(name, server) for server in servers)
    return name in BUILT_IN_TOOLS or name in OTHER_NAMES
