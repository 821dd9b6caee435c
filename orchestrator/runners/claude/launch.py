"""AgentSpec -> Launch of the claude CLI. For versions 2.1.197 and 2.1.325.

Every flag here answers a trap. Without `--setting-sources ''` a file in the workspace, or one that
the agent left in its HOME, runs hooks and redirects the API traffic; without `--strict-mcp-config`
a `.mcp.json` starts servers; an unset `--model` differs by version; a 401 is retried for three
minutes. What an author wrote is passed as `--flag=value`, one argument: the CLI also scans its
arguments for some flags by name, and a rule that reads "--bare" is not to be one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from orchestrator.domain.agent import AgentSpec, McpServer
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.errors import AgentInvalid
from orchestrator.runners.claude.permissions import permission_flags

PROMPT_FILE = f"{HOME}/.orchestrator/prompt.md"
MCP_FILE = f"{HOME}/.orchestrator/mcp.json"

AGENT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OWN_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

PARENT = "parent"
"""The name of the MCP server through which the agent reaches its caller."""

ANSWER_MS = 24 * 3600 * 1000
"""How long the CLI waits for an answer from there; ask.answer_seconds ends the wait sooner."""

_DOLLAR = "ORCHESTRATOR_DOLLAR"
_SESSION = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def launch(
    agent: AgentSpec,
    *,
    base_url: str,
    token: str,
    env: Mapping[str, str],
    mcp_servers: Sequence[McpServer],
    cwd: str,
    session_id: str | None = None,
    resume: str | None = None,
    memory: str = "",
    surroundings: Mapping[str, str] | None = None,
    files: Sequence[File] = (),
    parent_url: str | None = None,
    ask_rules: Sequence[str] = (),
    approvals: bool = False,
) -> Launch:
    """The CLI, waiting for messages on stdin until it is closed.

    `env` and `mcp_servers` are the agent's, with their variables filled in. A variable of the
    orchestrator's own is refused rather than overwritten in silence, and so is text that no
    argument can carry. `memory` follows the agent's prompt; `surroundings` are variables, and
    `files` files, of the orchestrator's own. With neither `session_id` nor `resume`
    the conversation is not written down.

    At `parent_url` the agent finds tools to ask its caller. With `approvals` the CLI asks
    us about every call that no rule allows, and about those of `ask_rules` though another rule
    allows them; without, it refuses both by itself.
    """
    own = _environment(base_url, token) | dict(surroundings or {})
    servers = _server_entries(agent, mcp_servers, parent_url)
    config = json.dumps({"mcpServers": servers}, indent=1)
    if _DOLLAR in config:
        own[_DOLLAR] = "$"
    placed = [*files, File(path=MCP_FILE, content=config.encode())]
    argv = [
        *("claude", "-p", "--verbose"),
        *("--input-format", "stream-json", "--output-format", "stream-json"),
        "--include-partial-messages",
        *("--setting-sources", "", "--strict-mcp-config", "--mcp-config", MCP_FILE),
        *permission_flags(
            agent.permissions, servers=servers, ask_rules=ask_rules, approvals=approvals
        ),
        f"--model={agent.model}",
        f"--max-turns={agent.max_turns}",
    ]
    prompt = "\n\n".join(part for part in (agent.prompt.strip(), memory.strip()) if part)
    if prompt:
        argv += ["--system-prompt-file", PROMPT_FILE]
        placed.append(File(path=PROMPT_FILE, content=_utf8(agent, "the prompt", prompt)))
    argv += _session_flags(session_id, resume)
    for argument in argv:
        _utf8(agent, f"the argument {argument[:40]!r}", argument)
    return Launch(argv=tuple(argv), env=_merged(agent, env, own), cwd=cwd, files=tuple(placed))


def history_file(session_id: str, cwd: str) -> str:
    """Where the CLI keeps a conversation that it can take up again."""
    return f"{HOME}/.claude/projects/{re.sub(r'[^A-Za-z0-9]', '-', cwd)}/{session_id}.jsonl"


def _environment(base_url: str, token: str) -> dict[str, str]:
    return {
        "PATH": AGENT_PATH,
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",  # noqa: S108 inside the container
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_API_KEY": token,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",  # else HOME/.claude/projects/…/MEMORY.md is read
        "CLAUDE_CODE_DISABLE_CLAUDE_MDS": "1",
        "CLAUDE_CODE_EAGER_FLUSH": "1",  # else a kill loses the last 100 ms of a conversation
        "CLAUDE_CODE_MAX_RETRIES": "2",
        "MCP_CONNECTION_NONBLOCKING": "0",
        "MCP_CONNECT_TIMEOUT_MS": "15000",
        "ENABLE_TOOL_SEARCH": "false",
    }


def _merged(agent: AgentSpec, env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if name in own or name.startswith(OWN_PREFIXES):
            raise AgentInvalid(
                f"agent {agent.name!r} sets {name} in its env, which the orchestrator sets itself; "
                "remove it"
            )
        _utf8(agent, f"the variable {name}", name + value)
    return {**env, **own}


def _server_entries(
    agent: AgentSpec, servers: Sequence[McpServer], parent_url: str | None
) -> dict[str, dict[str, object]]:
    """MCP servers by their names, as the CLI's file has them."""
    entries: dict[str, dict[str, object]] = {
        server.name: {
            "type": "stdio",
            "command": _literal(server.command),
            "args": [_literal(arg) for arg in server.args],
            "env": {name: _literal(value) for name, value in server.env.items()},
        }
        for server in servers
    }
    if parent_url is None:
        return entries
    if PARENT in entries:
        raise AgentInvalid(
            f"agent {agent.name!r} names an MCP server {PARENT!r}, as the orchestrator's own is "
            "called; give it another name"
        )
    parent = {"type": "http", "url": parent_url, "timeout": ANSWER_MS, "alwaysLoad": True}
    return {**entries, PARENT: parent}


def _literal(text: str) -> str:
    # The CLI fills in ${VAR} as well, once more than the author asked for.
    return text.replace("${", f"${{{_DOLLAR}}}{{")


def _session_flags(session_id: str | None, resume: str | None) -> list[str]:
    for given in (session_id, resume):
        if given is not None and not _SESSION.fullmatch(given):
            raise ValueError(f"{given!r} is no session id; it takes a UUID")
    if resume is not None:
        return [f"--resume={resume}"]
    if session_id is not None:
        return [f"--session-id={session_id}"]
    return ["--no-session-persistence"]


def _utf8(agent: AgentSpec, what: str, text: str) -> bytes:
    if "\0" in text:
        raise AgentInvalid(f"agent {agent.name!r}: {what} holds a NUL character; remove it")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise AgentInvalid(
            f"agent {agent.name!r}: {what} holds half a character (a lone surrogate); remove it"
        ) from None
