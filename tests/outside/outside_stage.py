"""A gateway for agents outside on stage: servers with their locks, rules, a store of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from pydantic import JsonValue

from orchestrator.catalog import AgentsDir
from orchestrator.catalog.rules_file import RulesFile
from orchestrator.domain.tool_lock import TOOL_FIELDS, JsonMap, Pinned, ToolLock
from orchestrator.engine.outside.outside_service import (
    CheckTrusted,
    OutsideService,
    UpstreamCall,
)
from orchestrator.errors import GatewayRefused
from orchestrator.store.runs import Store

DATABASE_TOOLS = ("query", "list_tables", "drop_table", "truncate_table")

LENIENT = {"deny_on_missing_agent": False}

SEED_RULES: dict[str, Any] = {
    "agents": {
        "front-end": {
            "allow": {
                "servers": ["browser", "ui-components"],
                "tools": {"browser": ["*"], "ui-components": ["search_*", "validate_*"]},
            },
            "deny": {"servers": ["database"]},
        },
        "back-end": {
            "allow": {
                "servers": ["database", "api-server"],
                "tools": {"database": ["query", "list_*"], "api-server": ["*"]},
            },
            "deny": {"tools": {"database": ["drop_*", "truncate_*"]}},
        },
        "security-reviewer": {"allow": {"servers": ["*"], "tools": {"*": ["*"]}}},
        "default": {"deny": {"servers": ["*"]}},
    },
    "defaults": LENIENT,
}
"""The rules that the document on subagent identification has."""


def tool(name: str, description: str = "", **properties: JsonValue) -> JsonMap:
    schema: JsonMap = {"type": "object", "properties": properties}
    return {"name": name, "description": description or f"What {name} does", "inputSchema": schema}


def lock_of(*tools: JsonMap, protocol: str = "2025-11-25") -> ToolLock:
    return ToolLock(
        server="a server 1",
        protocol=protocol,
        tools=tuple(Pinned.of(each, TOOL_FIELDS) for each in tools),
    )


class OutsideStage:
    """Folders for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agents = folder / "agents"
        self.rules = folder / ".mcp-gateway-rules.json"
        self.state = folder / "state"
        self.told: list[str] = []
        self.agents.mkdir()

    def add_server(self, name: str, *tools: JsonMap, **fields: object) -> None:
        """One in agents/servers; without tools it is not pinned."""
        home = self.agents / "servers" / name
        home.mkdir(parents=True, exist_ok=True)
        fields = {"description": f"What {name} is for", "command": ["serve", name]} | fields
        written = {key: value for key, value in fields.items() if value is not None}
        (home / "server.yaml").write_text(json.dumps(written))
        if tools:
            (home / "tools.lock.json").write_text(lock_of(*tools).model_dump_json())

    def add_seed_servers(self) -> None:
        """Those that the document's rules name."""
        self.add_server("database", *map(tool, DATABASE_TOOLS))
        self.add_server("browser", tool("open"), tool("close"))
        self.add_server("ui-components", tool("search_buttons"), tool("delete_button"))

    def write_rules(self, rules: object) -> None:
        self.rules.with_suffix(".new").write_text(
            rules if isinstance(rules, str) else json.dumps(rules, indent=1)
        )
        self.rules.with_suffix(".new").replace(self.rules)


class Answers:
    """OutsideUpstreams without servers: it notes what it is asked, and answers what it is told."""

    def __init__(self, answer: JsonMap | GatewayRefused | None = None) -> None:
        self.answer = answer or {"content": [{"type": "text", "text": "done"}]}
        self.asked: list[tuple[str, str, Mapping[str, JsonValue], str, float | None]] = []
        self.sessions: list[str] = []
        self.ended: list[str] = []
        self.hold: anyio.Event | None = None
        self.reached = anyio.Event()

    async def call(self, call: UpstreamCall) -> JsonMap:
        name, arguments = call.known.server.name, call.arguments
        self.asked.append((name, call.tool, arguments, call.agent, call.seconds))
        self.sessions.append(call.connection.session)
        self.reached.set()
        await call.on_progress(1, 2, "half")
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.answer, GatewayRefused):
            raise self.answer
        return self.answer

    async def end(self, session: str) -> None:
        self.ended.append(session)


@asynccontextmanager
async def outside_service(
    stage: OutsideStage,
    answers: Answers,
    default_agent: str = "",
    check_trust: CheckTrusted = lambda *_: None,
) -> AsyncIterator[OutsideService]:
    agents = AgentsDir(stage.agents)
    store = Store(stage.state / "runs.sqlite")
    try:
        yield OutsideService(
            rules=RulesFile(stage.rules, lambda: agents.current().tool_names, stage.told.append),
            agents=agents,
            upstreams=answers,
            store=store,
            project=str(stage.folder),
            check_trust=check_trust,
            default_agent=default_agent,
        )
    finally:
        store.close()
