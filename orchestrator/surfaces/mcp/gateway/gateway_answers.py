"""What agents outside are answered: each half, the text and the structured one, says all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import mcp.types as t
from pydantic import BaseModel, ConfigDict

from orchestrator.catalog.folder import KnownServer
from orchestrator.catalog.foreign.secret_values import secret_parts
from orchestrator.domain.outside import OutsideRules
from orchestrator.domain.tool_server import SERVERS, ToolServer
from orchestrator.engine.outside.outside_service import OutsideAnswer, ShownTools
from orchestrator.errors import OrchestratorError
from orchestrator.gateway.tools.results import shown_result
from orchestrator.runners.json_fields import dicts_of
from orchestrator.surfaces.mcp.answers.answer import plain

if TYPE_CHECKING:
    from orchestrator.catalog import AgentsDir
    from orchestrator.catalog.rules_file import RulesFile


class ListedServer(BaseModel):
    """A server that the agent may use."""

    model_config = ConfigDict(extra="allow")

    name: str
    description: str


class ServersAnswer(BaseModel):
    """Of list_servers."""

    result: list[ListedServer]


class ToolDefinition(BaseModel):
    """A tool that the agent may call."""

    name: str
    description: str
    inputSchema: dict[str, Any]  # noqa: N815 as MCP calls it


class ToolsAnswer(BaseModel):
    """Of get_server_tools."""

    tools: list[ToolDefinition]
    server: str
    total_available: int
    returned: int
    tokens_used: int


class StatusAnswer(BaseModel):
    """Of get_gateway_status."""

    reload_status: dict[str, dict[str, Any]]
    policy_state: dict[str, Any]
    available_servers: list[str]
    config_paths: dict[str, str]
    message: str


def listed_servers(found: Sequence[KnownServer], *, metadata: bool) -> t.CallToolResult:
    servers = [_listed(known.server, metadata=metadata) for known in found]
    return plain(_json(servers), {"result": servers})


def _listed(server: ToolServer, *, metadata: bool) -> dict[str, object]:
    said: dict[str, object] = {"name": server.name, "description": server.description}
    if not metadata:
        return said
    if server.url is None:
        # A program's name, and no sentence of its author's to a model.
        named = re.fullmatch(r"[\w./+@-]{1,200}", server.command[0], re.ASCII)
        return {**said, "transport": "stdio", "command": server.command[0] if named else "?"}
    return {**said, "transport": "http", "url": _without_key(server.url)}


def _without_key(url: str) -> str:
    """An address may carry a key behind its question mark, or in its path."""
    parts = urlsplit(url)._replace(query="", fragment="")
    return urlunsplit(parts._replace(path="") if any(secret_parts(urlunsplit(parts))) else parts)


def shown_tools(server: str, found: ShownTools) -> t.CallToolResult:
    document: dict[str, object] = {
        "tools": list(found.tools),
        "server": server,
        "total_available": found.total,
        "returned": len(found.tools),
        "tokens_used": found.tokens,
    }
    return plain(_json(document), document)


def executed(found: OutsideAnswer, server: str, tool: str) -> t.CallToolResult:
    """What a server answered: its words in a fence for a model, and as they are for programs.

    With a picture there is no structured half: clients show a model that half alone, and a picture
    in it is a page of letters.
    """
    show = partial(shown_result, found.answer, server=server, name=tool, limit=found.limit_bytes)
    shown = show().result
    answer: dict[str, object] = dict(shown)
    if all(block["type"] == "text" for block in dicts_of(shown, "content")):
        answer["structuredContent"] = show(fenced=False).result
    return t.CallToolResult.model_validate(answer)


def status(file: RulesFile, rules: OutsideRules, servers: AgentsDir) -> t.CallToolResult:
    """How things stand. The folder of servers is what .mcp.json is elsewhere."""
    catalog = servers.current()
    reloads, warnings = file.reloads, list(file.warnings())
    broken = [str(problem) for each in catalog.broken_servers for problem in each.problems]
    broken += [str(problem) for each in catalog.servers.values() for problem in each.problems]
    wrong = [*([reloads.last_error] if reloads.last_error else []), *broken]
    document: dict[str, object] = {
        "reload_status": {
            "mcp_config": {"last_error": "\n".join(broken) or None},
            "gateway_rules": {
                "last_attempt": _time(reloads.last_attempt),
                "last_success": _time(reloads.last_success),
                "last_error": reloads.last_error or None,
                "attempt_count": reloads.attempt_count,
                "success_count": reloads.success_count,
                "last_warnings": warnings,
            },
        },
        "policy_state": {
            "total_agents": len(rules.agents),
            "agent_ids": list(rules.agents),
            "defaults": {"deny_on_missing_agent": rules.deny_on_missing_agent},
        },
        "available_servers": list(catalog.servers),
        "config_paths": {
            "mcp_config": str(servers.path / SERVERS),
            "gateway_rules": str(file.path),
        },
        "message": "The gateway works, but something is wrong: see reload_status."
        if wrong
        else "The gateway works.",
    }
    return plain(_json(document), document)


def refused(exc: OrchestratorError, rule: str) -> t.CallToolResult:
    """An error; clients show a model only the text of one, so the code stands there too."""
    error = {"code": exc.code, "message": str(exc)} | ({"rule": rule} if rule else {})
    return t.CallToolResult(
        content=[t.TextContent(type="text", text=f"{exc.code}: {exc}")],
        structured_content={"error": error},
        is_error=True,
    )


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
