"""The tools of the claude CLI by their names. Pure.

Recorded from 2.1.325, which is in the image: `--tools` with every name, and what its first event
then lists. `tests/runners/claude/test_tools_real.py` asks the CLI again.
"""

from __future__ import annotations

from orchestrator.runners.contract import ToolNames

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

CLAUDE_TOOLS = ToolNames(
    version=f"claude {TOOLS_VERSION}",
    built_in=BUILT_IN_TOOLS,
    other_names=OTHER_NAMES,
    former=FORMER_TOOLS,
)
