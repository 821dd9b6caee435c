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
from orchestrator.runners.contract import PARENT

PROMPT_FILE = f"{HOME}/.orchestrator/prompt.md"
MCP_FILE = f"{HOME}/.orchestrator/mcp.json"

AGENT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OWN_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

TOOL_SEARCH = "ToolSearch"
"""The CLI's tool by which a model finds tools that are not in its request."""

ANSWER_MS = 24 * 3600 * 1000
"""How long the CLI waits for an answer from there; ask.answer_seconds ends the wait sooner."""

WITH_LOG = (
    'exec -- "$@" 2> >(n=0; while ((n++ < 60)) && { IFS= read -r -n 300 line || [ -n "$line" ]; }; '
    'do printf "%s\\n" "$line"; done > "$0"; exec cat > /dev/null)'
)
"""For bash: become a program, the beginning of whose stderr goes to a file, line by line, so that
it is there when the program hangs. `head` would keep it to itself until then."""

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
    more_folders: Sequence[str] = (),
    parent_url: str | None = None,
    tool_urls: Mapping[str, str] | None = None,
    defer_tools: bool = False,
    ask_rules: Sequence[str] = (),
    approvals: bool = False,
) -> Launch:
    """The CLI, waiting for messages on stdin until it is closed.

    `env` and `mcp_servers` are the agent's, with their variables filled in. A variable of the
    orchestrator's own is refused rather than overwritten in silence, and so is text that no
    argument can carry. `memory` follows the agent's prompt; `surroundings` are variables, and
    `files` files, of the orchestrator's own; `more_folders` are to be read besides `cwd`. With
    neither `session_id` nor `resume` the conversation is not written down.

    At `parent_url` the agent finds tools to ask its caller, at `tool_urls` servers outside of its
    container, by name; with `defer_tools` the model looks those tools up that it wants. With
    `approvals` the CLI asks us about every call that no rule allows, and about those of
    `ask_rules` though another rule allows them; without, it refuses both by itself.
    """
    own = _environment(base_url, token) | dict(surroundings or {})
    own |= {"ENABLE_TOOL_SEARCH": "true"} if defer_tools else {}
    servers = _server_entries(agent, mcp_servers, parent_url, tool_urls or {})
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
            agent.permissions,
            servers=servers,
            ask_rules=ask_rules,
            approvals=approvals,
            more_tools=(TOOL_SEARCH,) if defer_tools else (),
        ),
        *(part for folder in more_folders for part in ("--add-dir", folder)),
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


def is_own_variable(name: str, own: Mapping[str, str]) -> bool:
    """Whether agent.md cannot set a variable: it is the CLI's, or one of these besides."""
    return name in own or name in _environment("", "") or name.startswith(OWN_PREFIXES)


def _merged(agent: AgentSpec, env: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if is_own_variable(name, own):
            raise AgentInvalid(
                f"agent {agent.name!r} sets {name} in its env, which the orchestrator sets itself; "
                "remove it"
            )
        _utf8(agent, f"the variable {name}", name + value)
    return {**env, **own}


def _server_entries(
    agent: AgentSpec,
    servers: Sequence[McpServer],
    parent_url: str | None,
    tool_urls: Mapping[str, str],
) -> dict[str, dict[str, object]]:
    """MCP servers by their names, as the CLI's file has them."""
    entries: dict[str, dict[str, object]] = {
        server.name: {
            "type": "stdio",
            "command": "/bin/bash",
            "args": ["-c", WITH_LOG, server_log(server.name), *_literals(server)],
            "env": {name: _literal(value) for name, value in server.env.items()},
        }
        for server in servers
    }
    for name, url in tool_urls.items():
        entries[name] = {"type": "http", "url": url, "timeout": ANSWER_MS}
    if parent_url is None:
        return entries
    if PARENT in entries:
        raise AgentInvalid(
            f"agent {agent.name!r} names an MCP server {PARENT!r}, as the orchestrator's own is "
            "called; give it another name"
        )
    parent = {"type": "http", "url": parent_url, "timeout": ANSWER_MS, "alwaysLoad": True}
    return {**entries, PARENT: parent}


def server_log(server: str) -> str:
    """Where the beginning of what an MCP server says on stderr is: of one that does not start, the
    CLI tells only that it failed.
    """
    return f"{HOME}/.orchestrator/{server}.stderr"


def _literals(server: McpServer) -> list[str]:
    return [_literal(text) for text in (server.command, *server.args)]


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
