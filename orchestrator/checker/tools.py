"""Rules of an agent against the tools that its CLI has, and what those need to be of use. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.catalog import Remark
from orchestrator.catalog.problems import NEAR_ENOUGH, did_you_mean
from orchestrator.domain.agent import DEFAULT_RUNNER, AgentSpec
from orchestrator.errors import AgentInvalid
from orchestrator.plain_yaml import Loc, shortened
from orchestrator.runners.choice import ways_of
from orchestrator.runners.contract import PARENT, Runner
from orchestrator.runners.known import RUNNERS
from orchestrator.runners.rule_names import (
    MCP,
    has_tool,
    names_server,
    rule_tool,
    server_names,
    server_prefix,
)

NETWORK_PROGRAMS = frozenset(
    (
        *("curl", "wget", "npx", "npm", "pnpm", "yarn", "bunx", "pip", "pip3", "uv", "uvx"),
        *("pipx", "apt", "apt-get", "ssh", "scp", "rsync", "nc", "ping", "gh"),
    )
)
"""What Bash is allowed for that is of no use without a network."""

FETCHING_PROGRAMS = frozenset(("npx", "bunx", "uvx", "pipx"))
"""Commands that download an MCP server before they start it."""

NOT_IN_OUR_IMAGE = frozenset(
    (
        *("npx", "npm", "node", "pnpm", "yarn", "bun", "bunx", "deno", "uv", "uvx", "pipx"),
        *("pip", "pip3", "docker", "podman", "go", "cargo", "java", "ruby", "php", "dotnet", "gh"),
    )
)
"""Commands that many MCP servers are started with, and that the agent image does not have."""


def tool_remarks(agent: AgentSpec, *, own_image: bool = True) -> Iterator[Remark]:
    """Rules that name nothing, or what cannot work; servers whose program is not there."""
    servers, runners = server_names(agent), _runners(agent)
    for field, rules in (("allow", agent.permissions.allow), ("deny", agent.permissions.deny)):
        for at, rule in enumerate(rules):
            loc: Loc = ("permissions", field, at)
            yield from _rule_remarks(rule, loc, servers, agent, runners, opens=field == "allow")
    yield from _approval_remarks(agent, servers, runners)
    if agent.network.mode == "none" and not any(secret.hosts for secret in agent.secrets):
        yield from _offline_remarks(agent)
    if own_image and agent.image is None:
        yield from _program_remarks(agent)


def _runners(agent: AgentSpec) -> list[Runner]:
    """Those that the agent could run on; of one that has none, the usual one."""
    try:
        ways = ways_of(agent, RUNNERS).candidates
    except AgentInvalid:
        return [RUNNERS[DEFAULT_RUNNER]]
    return [RUNNERS[way.runner] for way in ways]


def _rule_remarks(
    rule: str,
    loc: Loc,
    servers: Sequence[str],
    agent: AgentSpec,
    runners: Sequence[Runner],
    *,
    opens: bool,
) -> Iterator[Remark]:
    """What is wrong with the tool of a rule. One that only opens less is told; one that would
    close less than its author thinks stops the agent.
    """
    tool = rule_tool(rule)
    lacking = [each.tools for each in runners if not has_tool(each.tools, tool, servers)]
    if not lacking:
        return
    tools = lacking[0]
    if len(lacking) < len(runners) or tool in RUNNERS[DEFAULT_RUNNER].tools.built_in:
        how = tools.former.get(tool, "the rule changes nothing there")
        yield Remark(loc, f"{tools.version} has no tool {tool}; {how}", stops=False)
        return
    if tool.startswith(MCP):
        yield Remark(loc, _no_server(tool, servers, agent))
    elif tool in tools.former:
        message = f"{tools.version} has no {tool} for agents; {tools.former[tool]}"
        yield Remark(loc, message, stops=False)
    elif tool.lower().startswith("mcp"):
        message = f"'{shortened(tool)}' is no tool; those of MCP servers are mcp__SERVER__TOOL"
        yield Remark(loc, message)
    else:
        guess = did_you_mean(tool, (*tools.built_in, *tools.other_names), NEAR_ENOUGH)
        hint = (
            f"did you mean '{guess}'?" if guess else f"it has {', '.join(sorted(tools.built_in))}"
        )
        message = f"{tools.version} has no tool '{shortened(tool)}'; {hint}"
        yield Remark(loc, message, stops=not opens or guess is not None)


def _no_server(tool: str, servers: Sequence[str], agent: AgentSpec) -> str:
    name = tool.removeprefix(MCP).partition("__")[0]
    if name == PARENT:
        return (
            "the agent cannot reach its caller; write `ask: parent` for ask_parent, or `subagents` "
            "for run_subagent, and no rule is needed"
        )
    known = [server_prefix(server).removeprefix(MCP) for server in servers]
    guess = did_you_mean(name, known, NEAR_ENOUGH)
    if guess:
        return f"mcp_servers has no '{shortened(name)}'; did you mean '{MCP}{guess}'?"
    there = f"it has {', '.join(known)}" if agent.mcp_servers else "the agent has none"
    return f"mcp_servers has no '{shortened(name)}' ({there}); add it there, or remove this rule"


def _approval_remarks(
    agent: AgentSpec, servers: Sequence[str], runners: Sequence[Runner]
) -> Iterator[Remark]:
    for rule, verdict in agent.approval.items():
        if rule == "*":
            continue
        loc: Loc = ("approval", rule)
        wrong = list(_rule_remarks(rule, loc, servers, agent, runners, opens=False))
        yield from wrong
        if wrong or _is_allowed(rule_tool(rule), agent, servers, runners):
            continue
        tool = rule_tool(rule)
        what = (
            f"{tool} is not under permissions.allow, and yet the agent can use it when a call is "
            "approved"
            if verdict == "ask"
            else f"{tool} is not under permissions.allow, so this changes nothing"
        )
        yield Remark(loc, f"{what}; add {tool} there, or remove this", stops=False)


def _is_allowed(
    tool: str, agent: AgentSpec, servers: Sequence[str], runners: Sequence[Runner]
) -> bool:
    other_names = {
        name: known for each in runners for name, known in each.tools.other_names.items()
    }
    allowed = {rule_tool(rule) for rule in agent.permissions.allow}
    if tool in allowed or other_names.get(tool) in allowed:
        return True
    if any(other_names.get(each) == tool for each in allowed):
        return True
    for server in servers:
        if names_server(tool, server):
            named = [each for each in allowed if names_server(each, server)]
            return not named or server_prefix(server) in named
    return False


def _offline_remarks(agent: AgentSpec) -> Iterator[Remark]:
    advice = "add `network: {allow: [api.example.org]}` with the hosts it needs, or remove it"
    for at, rule in enumerate(agent.permissions.allow):
        tool, _, pattern = rule.partition("(")
        words = pattern.rstrip(")").replace(":", " ").split()
        program = words[0] if words else ""
        what = tool if tool == "WebFetch" else program if tool == "Bash" else ""
        if what == "WebFetch" or what in NETWORK_PROGRAMS:
            message = f"{what} reaches nothing: the agent has no network; {advice}"
            yield Remark(("permissions", "allow", at), message, stops=False)
    for at, server in enumerate(agent.mcp_servers):
        if server.command in FETCHING_PROGRAMS:
            message = (
                f"{server.command} downloads the server first, and the agent has no network; have "
                "the server in an image (`image`) or in the agent's folder (`files`)"
            )
            yield Remark(("mcp_servers", at, "command"), message, stops=False)


def _program_remarks(agent: AgentSpec) -> Iterator[Remark]:
    for at, server in enumerate(agent.mcp_servers):
        if server.command in NOT_IN_OUR_IMAGE:
            message = (
                f"the agent image has no {server.command}; build one on it that has "
                "(images/README.md says how), and name it under `image`"
            )
            yield Remark(("mcp_servers", at, "command"), message, stops=False)
