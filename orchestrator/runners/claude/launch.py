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
from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.runners.claude.permissions import permission_flags
from orchestrator.runners.contract import PARENT, LaunchTerms
from orchestrator.runners.launching import (
    ANSWER_SECONDS,
    OWN_FOLDER,
    PLAIN_ENVIRONMENT,
    prompt_text,
    server_command,
    server_urls,
    utf8,
    variables,
)

PROMPT_FILE = f"{OWN_FOLDER}/prompt.md"
MCP_FILE = f"{OWN_FOLDER}/mcp.json"

OWN_PREFIXES = ("ANTHROPIC_", "CLAUDE_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

TOOL_SEARCH = "ToolSearch"
"""The CLI's tool by which a model finds tools that are not in its request."""

_DOLLAR = "ORCHESTRATOR_DOLLAR"
_SESSION = re.compile(r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")


def launch(agent: AgentSpec, terms: LaunchTerms) -> Launch:
    """The CLI, waiting for messages on stdin until it is closed.

    A variable of the orchestrator's own is refused rather than overwritten in silence, and so is
    text that no argument can carry. If agent.md says to ask about calls, the CLI asks us about
    every call that no rule allows, and about those though another rule allows them; if not, it
    refuses both by itself.
    """
    own = _environment(terms.base_url, terms.token) | terms.surroundings
    own |= {"ENABLE_TOOL_SEARCH": "true"} if terms.defer_tools else {}
    servers = _server_entries(agent, terms)
    config = json.dumps({"mcpServers": servers}, indent=1)
    if _DOLLAR in config:
        own[_DOLLAR] = "$"
    placed = [*terms.files, File(path=MCP_FILE, content=config.encode())]
    argv = [
        *("claude", "-p", "--verbose"),
        *("--input-format", "stream-json", "--output-format", "stream-json"),
        "--include-partial-messages",
        *("--setting-sources", "", "--strict-mcp-config", "--mcp-config", MCP_FILE),
        *permission_flags(
            agent.permissions,
            servers=servers,
            ask_rules=agent.ask_rules,
            more_tools=(TOOL_SEARCH,) if terms.defer_tools else (),
        ),
        *(part for folder in terms.more_folders for part in ("--add-dir", folder)),
        f"--model={agent.model}",
        f"--max-turns={agent.max_turns}",
    ]
    if prompt := prompt_text(agent, terms):
        argv += ["--system-prompt-file", PROMPT_FILE]
        placed.append(File(path=PROMPT_FILE, content=utf8(agent, "the prompt", prompt)))
    argv += _session_flags(terms)
    for argument in argv:
        utf8(agent, f"the argument {argument[:40]!r}", argument)
    env = variables(agent, terms.env, own, is_own_variable)
    return Launch(argv=tuple(argv), env=env, cwd=terms.cwd, files=tuple(placed))


def history_file(session_id: str, cwd: str) -> str:
    """Where the CLI keeps a conversation that it can take up again."""
    return f"{HOME}/.claude/projects/{re.sub(r'[^A-Za-z0-9]', '-', cwd)}/{session_id}.jsonl"


def _environment(base_url: str, token: str) -> dict[str, str]:
    return {
        **PLAIN_ENVIRONMENT,
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


def _server_entries(agent: AgentSpec, terms: LaunchTerms) -> dict[str, dict[str, object]]:
    """MCP servers by their names, as the CLI's file has them."""
    entries: dict[str, dict[str, object]] = {}
    for server in terms.mcp_servers:
        command, *args = map(_literal, server_command(server))
        entries[server.name] = {
            "type": "stdio",
            "command": command,
            "args": args,
            "env": {name: _literal(value) for name, value in server.env.items()},
        }
    for name, url in server_urls(agent, terms).items():
        entries[name] = {"type": "http", "url": url, "timeout": ANSWER_SECONDS * 1000}
        if name == PARENT and terms.parent_url is not None:
            entries[name]["alwaysLoad"] = True
    return entries


def _literal(text: str) -> str:
    # The CLI fills in ${VAR} as well, once more than the author asked for.
    return text.replace("${", f"${{{_DOLLAR}}}{{")


def _session_flags(terms: LaunchTerms) -> list[str]:
    if not terms.conversation:
        return ["--no-session-persistence"]
    if not _SESSION.fullmatch(terms.conversation):
        raise ValueError(f"{terms.conversation!r} is no session id; it takes a UUID")
    return [f"--{'resume' if terms.resume else 'session-id'}={terms.conversation}"]
