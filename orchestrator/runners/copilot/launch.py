"""AgentSpec -> Launch of copilot 1.0.102, and the session that it is asked for.

The CLI speaks to the gateway alone, needs no login and looks up no name. Every field
of the session answers a trap: without them files of the workspace run hooks, start servers and add
to the prompt. What `configDir` holds acts on it as well, so all of it but the conversations goes
before each start.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.copilot.calls import BUILT_IN
from orchestrator.runners.launching import (
    ANSWER_SECONDS,
    DOLLAR,
    OWN_FOLDER,
    PLAIN_ENVIRONMENT,
    prompt_text,
    server_command,
    server_urls,
    utf8,
    variables,
    with_dollars,
)
from orchestrator.runners.rule_names import MCP, rule_tool

CONFIG = f"{OWN_FOLDER}/copilot"
CACHE = "/opt/copilot"
"""Where the image has what the CLI would unpack at its first start."""

OWN_COPILOT = ("COPILOT_", "GITHUB_", "GH_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

FRESH = (
    'set -e; rm -rf -- "$0.new"; mkdir -p -- "$0.new"; '
    'if [ ! -L "$0" ] && [ ! -L "$0/session-state" ] && [ -d "$0/session-state" ]; '
    'then mv -- "$0/session-state" "$0.new/"; fi; '
    'rm -rf -- "$0"; mv -- "$0.new" "$0"; exec "$@"'
)
"""For a shell: keep nothing of a directory but the conversations, then become the CLI."""

_SESSION_TERMS: dict[str, object] = {
    "clientName": "orchestrator",
    "streaming": True,
    "requestPermission": True,
    "envValueMode": "direct",
    "enableConfigDiscovery": False,
    "enableFileHooks": False,
    "enableSkills": False,
    "enableOnDemandInstructionDiscovery": False,
    "enableHostGitOperations": False,
    "enableSessionTelemetry": False,
    "skipEmbeddingRetrieval": True,
    "embeddingCacheStorage": "in-memory",
    "mcpOAuthTokenStorage": "in-memory",
    "memory": {"enabled": False},
    "customAgentsLocalOnly": True,
}


def launch(agent: AgentSpec, terms: LaunchTerms) -> Launch:
    """The CLI, waiting on stdin to be asked for a session."""
    tools = _tools(agent)
    prompt = prompt_text(agent, terms)
    utf8(agent, "the prompt", prompt)
    servers = _servers(agent, terms)
    session: dict[str, object] = {
        **_SESSION_TERMS,
        "model": agent.model,
        "workingDirectory": terms.cwd,
        "configDir": CONFIG,
        "systemMessage": {"mode": "replace", "content": prompt or "You are an agent."},
        "provider": {**_provider(terms), "apiKey": terms.token},
        "availableTools": [*(f"builtin:{name}" for name in tools), "mcp:*"],
        "mcpServers": servers,
    }
    if terms.more_folders:
        session["additionalDirectories"] = list(terms.more_folders)
    if terms.conversation:
        session["sessionId"] = terms.conversation
    own = _environment(_provider(terms)["baseUrl"], agent.model) | terms.surroundings
    cli = ("copilot", "--headless", "--no-auto-update", "--stdio", "--no-auto-login")
    return Launch(
        argv=("/bin/sh", "-c", FRESH, CONFIG, *cli),
        env=variables(agent, terms.env, own, is_own_variable),
        cwd=terms.cwd,
        files=terms.files,
        opening={"session": session, "resumes": terms.resume, "tools": list(_words(agent))},
    )


def history_file(conversation: str) -> str:
    """Where the CLI keeps a conversation that it can take up again."""
    return f"{CONFIG}/session-state/{conversation}/events.jsonl"


def is_own_variable(name: str, own: Mapping[str, str]) -> bool:
    """Whether agent.md cannot set a variable: it is the CLI's, or one of these besides."""
    return name in own or name in PLAIN_ENVIRONMENT or name.startswith(OWN_COPILOT)


def _provider(terms: LaunchTerms) -> dict[str, str]:
    """What it speaks to the gateway, and where."""
    if terms.wire_format == "anthropic":
        return {"type": "anthropic", "baseUrl": terms.base_url}
    wire_api = "responses" if terms.wire_format == "responses" else "completions"
    return {"type": "openai", "wireApi": wire_api, "baseUrl": f"{terms.base_url}/v1"}


def _environment(base_url: str, model: str) -> dict[str, str]:
    return {
        **PLAIN_ENVIRONMENT,
        "COPILOT_HOME": CONFIG,
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_CACHE_HOME": CACHE,
        "COPILOT_PROVIDER_BASE_URL": base_url,
        "COPILOT_MODEL": model,
        DOLLAR: "$",
    }


def _words(agent: AgentSpec) -> tuple[str, ...]:
    """The tools of the CLI's own that rules name, in their words."""
    named = map(rule_tool, (*agent.permissions.allow, *agent.ask_rules))
    return tuple(dict.fromkeys(word for word in named if not word.startswith(MCP)))


def _tools(agent: AgentSpec) -> tuple[str, ...]:
    names = (name for word in _words(agent) for name in BUILT_IN.get(word, ()))
    return tuple(dict.fromkeys(names))


def _servers(agent: AgentSpec, terms: LaunchTerms) -> dict[str, dict[str, object]]:
    servers: dict[str, dict[str, object]] = {}
    for server in terms.mcp_servers:
        command, *args = map(with_dollars, server_command(server))
        env = {name: with_dollars(value) for name, value in server.env.items()}
        entry = {"type": "local", "command": command, "args": args, "env": env}
        servers[server.name] = {**entry, "tools": ["*"]}
    for name, url in server_urls(agent, terms).items():
        # It waits as long for the server's first answer; ours is there.
        wait = ANSWER_SECONDS * 1000
        servers[name] = {"type": "http", "url": url, "tools": ["*"], "timeout": wait}
    return servers
