"""What each tool does to the world, as clients read it to decide what they ask a person about.

All four hints are said of every tool: a client takes one that is missing for the worst, and codex
does not run such a tool without a person.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import mcp.types as t

from orchestrator.domain.agent import AgentSpec


def _hints(
    title: str,
    *,
    reads: bool = False,
    destroys: bool = False,
    idempotent: bool = False,
    reaches: bool = False,
) -> t.ToolAnnotations:
    return t.ToolAnnotations(
        title=title,
        read_only_hint=reads,
        destructive_hint=destroys,
        idempotent_hint=idempotent or reads,
        open_world_hint=reaches,
    )


HINTS: Mapping[str, t.ToolAnnotations] = {
    "list_agents": _hints("List agents", reads=True),
    "get_all_tasks": _hints("List tasks", reads=True),
    "get_task_details": _hints("Look at a task", reads=True),
    "get_logs": _hints("Read a task's log", reads=True),
    "wait_for_tasks": _hints("Wait for tasks", reads=True),
    "run_subagent": _hints("Run a subagent", reaches=True),
    "run_subagents": _hints("Run several subagents", reaches=True),
    "delegate_task": _hints("Run a subagent on a directory", reaches=True),
    "dynamic_subagent_task": _hints("Make a subagent", reaches=True),
    "reply_subagent": _hints("Answer a subagent", reaches=True),
    "resume_subagent_task": _hints("Decide for a subagent, or tell it something", reaches=True),
    "apply_changes": _hints("Apply an agent's changes", destroys=True, idempotent=True),
    "cancel_task": _hints("End a task", destroys=True, idempotent=True),
    # For agents outside (gateway/)
    "list_servers": _hints("List servers", reads=True),
    "get_server_tools": _hints("Show tools", reads=True),
    "get_gateway_status": _hints("Gateway status", reads=True),
    "execute_tool": _hints("Call a tool", destroys=True, reaches=True),
    # Of older servers (compat.py)
    "run_subagent_": _hints("Start a subagent", reaches=True),
    "check_subagent_status": _hints("Look at a run", reads=True),
    "check_status": _hints("Look at a run", reads=True),
    "get_subagent_logs": _hints("Read a run's log", reads=True),
    "check_message_status": _hints("Look at a question", reads=True),
    "update_subagent_status": _hints("Confirm a run's status", reads=True),
    "update_status": _hints("Confirm a run's status", reads=True),
}
"""By the tool's name. What reaches the open world does so by what an agent's author allowed it, its
model at least; a tool that looks at nothing but our record does not."""

WORKS = frozenset(
    name for name, hints in HINTS.items() if hints.open_world_hint and not hints.destructive_hint
)
"""Tools that have an agent work, or go on."""


def with_hints_for(
    tools: Iterable[Mapping[str, Any]], agents: Iterable[AgentSpec]
) -> list[dict[str, Any]]:
    """Tools as they are listed: those that have an agent work can destroy something where an agent
    works on a directory itself, and not on a copy of it.
    """
    destroys = any(agent.workspace.mode == "rw" for agent in agents)
    return [
        {**tool, "annotations": {**tool["annotations"], "destructiveHint": destroys}}
        if any(tool["name"].startswith(name) for name in WORKS)
        else dict(tool)
        for tool in tools
    ]
