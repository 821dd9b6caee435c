"""Which servers an agent uses, and under which rules; no engine is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.tool_lock import TOOL_FIELDS, Pinned, ToolLock
from orchestrator.domain.tool_server import ToolServer
from orchestrator.engine.servers.tool_servers import brokered_of


def test_the_broker_keeps_what_the_agents_own_rules_say_of_a_server() -> None:
    names = ("get", "drop", "put", "send")
    tools = tuple(Pinned.of({"name": name, "inputSchema": {}}, TOOL_FIELDS) for name in names)
    lock = ToolLock(server="s 1", protocol="2025-11-25", tools=tools)
    known = SimpleNamespace(server=ToolServer(name="s", command=("x",)), lock=lock, problems=())
    catalog: Any = SimpleNamespace(server=lambda _: known)
    agent = AgentSpec.model_validate(
        {
            "name": "a",
            "description": "d",
            "permissions": {"allow": ("mcp__s",), "deny": ("mcp__s__drop",)},
            "approval": {"mcp__s__put": "ask", "mcp__s__send": "deny", "mcp__t__get": "deny"},
            "server_uses": ({"use": "s", "allow": ("*",)},),
        }
    )
    (each,) = brokered_of(agent, catalog)
    assert (each.use.deny, each.use.approve) == (("drop", "send"), {"put": "ask"})
