"""How a rule of agent.md names tools, and those of MCP servers. For every CLI. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from orchestrator.domain.agent import AgentSpec, Permissions
from orchestrator.runners.contract import PARENT, ToolNames

MCP = "mcp__"


def rule_tool(rule: str) -> str:
    """The tool of a rule, without its pattern."""
    return rule.partition("(")[0]


def spelled(server: str) -> str:
    """The name of an MCP server as it stands in names of tools."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", server)


def server_prefix(server: str) -> str:
    """What rules call all tools of an MCP server; a tool of it has "__" and its name besides."""
    return MCP + spelled(server)


def server_names(agent: AgentSpec) -> tuple[str, ...]:
    """The MCP servers whose tools an agent can be given."""
    inside = (server.name for server in agent.mcp_servers)
    outside = (use.use for use in agent.server_uses)
    return (*inside, *outside, *((PARENT,) if agent.parent_tools else ()))


def names_server(tool: str, server: str) -> bool:
    """Whether a rule's tool is an MCP server, or one of its tools."""
    prefix = server_prefix(server)
    return tool == prefix or tool.startswith(f"{prefix}__")


def has_tool(tools: ToolNames, name: str, servers: Iterable[str] = ()) -> bool:
    """Whether an agent can be given this tool by this name."""
    if name.startswith(MCP):
        return any(names_server(name, server) for server in servers)
    return name in tools.built_in or name in tools.other_names


def server_rules(permissions: Permissions, servers: Iterable[str]) -> list[str]:
    """Rules that allow servers of which the author names no tool."""
    named = [rule_tool(rule) for rule in permissions.allow]
    return [
        server_prefix(server)
        for server in servers
        if server_prefix(server) not in permissions.deny
        and not any(names_server(tool, server) for tool in named)
    ]


def whole_tools(rules: Sequence[str]) -> frozenset[str]:
    """The tools that rules name without a pattern."""
    return frozenset(rule_tool(rule) for rule in rules if "(" not in rule or rule.endswith("(*)"))


def is_named(tool: str, rules: Sequence[str]) -> bool:
    """Whether a rule names the tool, or the MCP server that has it."""
    names = {rule_tool(rule) for rule in rules}
    servers = (name for name in names if name.startswith(MCP))
    parts = tuple(name[:-1] if name.endswith("*") else f"{name}__" for name in servers)
    return tool in names or tool.startswith(parts)


def is_offered(agent: AgentSpec, tool: str) -> bool:
    """Whether the model is to know of a tool: not of one of an MCP server that no rule lets it
    call. The CLI would show it, and refuse the call.
    """
    if not tool.startswith(MCP):
        return True
    whole = server_rules(agent.permissions, server_names(agent))
    return is_named(tool, (*agent.permissions.allow, *agent.ask_rules, *whole))


def without_brokered_asks(agent: AgentSpec) -> AgentSpec:
    """The agent as its CLI has it. Who is asked about tools of servers outside is decided where
    they are called, by the same rules: the CLI lets those calls go, and its caller is asked once.
    """
    outside = {use.use for use in agent.server_uses}
    inside = [name for name in server_names(agent) if name not in outside]
    approval = dict(agent.approval)
    allow = list(agent.permissions.allow)
    for rule in agent.ask_rules:
        named, _, tool = rule_tool(rule).removeprefix(MCP).partition("__")
        meant = [server for server in outside if fnmatchcase(server, named)]
        if not rule.startswith(MCP) or not meant:
            continue
        told = ["__".join(filter(None, (server_prefix(server), tool))) for server in meant]
        approval |= dict.fromkeys((rule, *told), "auto")
        for server in inside:  # a pattern may mean these as well
            if fnmatchcase(server, named):
                approval["__".join(filter(None, (server_prefix(server), tool)))] = "ask"
        rest = map(rule_tool, agent.permissions.allow)
        if any(names_server(each, server) for each in rest for server in meant):
            allow += [each for each in told if each not in allow]
    permissions = agent.permissions.model_copy(update={"allow": tuple(allow)})
    return agent.model_copy(update={"approval": approval, "permissions": permissions})
