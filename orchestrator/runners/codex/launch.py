"""AgentSpec -> Launch of `codex app-server`. For version 0.166.0.

Every switch here answers a trap. codex has to be given full access, since its own sandbox cannot be
made in a container like ours; then it trusts the workspace by itself unless that is called
untrusted, and a file in there starts servers. AGENTS.md and skills are read in any case unless it
is told not to. What an agent left in CODEX_HOME counts as the user's own, so all of it but its
conversations goes before each start. Without the switches for features it looks up names of its
maker's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, WORKSPACE, Launch
from orchestrator.runners.contract import LaunchTerms
from orchestrator.runners.launching import (
    ANSWER_SECONDS,
    PLAIN_ENVIRONMENT,
    prompt_text,
    server_command,
    server_urls,
    utf8,
    variables,
)
from orchestrator.runners.rule_names import is_named, spelled

CODEX_HOME = f"{HOME}/.codex"

TOKEN = "ORCHESTRATOR_MODEL_TOKEN"  # noqa: S105 a name
"""The variable that codex takes its key from."""

CODEX_PREFIXES = ("CODEX_", "OPENAI_")
"""Variables of the CLI that decide where it talks to, as whom, and what it loads."""

SERVER_START_SECONDS = 60
"""For an MCP server to start, on a machine under load."""

CLEANED = (
    'if [ -L "$CODEX_HOME" ]; then rm -- "$CODEX_HOME"; fi; mkdir -p -- "$CODEX_HOME" && '
    'find "$CODEX_HOME" -mindepth 1 -maxdepth 1 ! -name sessions -exec rm -rf -- {} + && exec "$@"'
)
"""For sh: forget all that CODEX_HOME holds but conversations, then become codex."""

FEATURES_OFF = (
    *("api_key_model_discovery", "apps", "auth_elicitation", "browser_use", "browser_use_external"),
    *("browser_use_full_cdp_access", "code_mode_host", "computer_use", "daemon_auto_start"),
    *("enable_request_compression", "fast_mode", "goals", "guardian_approval", "hooks"),
    *("image_generation", "in_app_browser", "in_app_chat", "in_app_local_automation"),
    *("in_app_updates", "in_app_voice", "memories", "mentions_v2", "multi_agent"),
    *("plugin_discovery_prefetch", "plugin_sharing", "plugins", "remote_plugin", "shell_snapshot"),
    *("skill_mcp_dependency_install", "skill_search", "sleep_tool", "tool_suggest"),
    *("unbounded_connection_retries", "workspace_dependencies"),
)

_RUNNING = ("Bash", "Read", "Glob", "Grep")
"""Rules that a command can be run by: it also reads by commands."""

_EDITING = ("Edit", "Write")


def launch(agent: AgentSpec, terms: LaunchTerms) -> Launch:
    """codex, waiting for requests on stdin until it is closed."""
    own = {**PLAIN_ENVIRONMENT, "CODEX_HOME": CODEX_HOME, TOKEN: terms.token, **terms.surroundings}
    env = variables(agent, terms.env, own, is_own_variable)
    servers = _server_entries(agent, terms)
    thread: dict[str, object] = {
        "model": agent.model,
        "cwd": terms.cwd,
        "approvalPolicy": "untrusted",  # it asks about every command and every change
        "sandbox": "danger-full-access",
        "config": {"mcp_servers": servers},
    }
    if prompt := prompt_text(agent, terms):
        utf8(agent, "the prompt", prompt)
        thread["baseInstructions"] = prompt
    if not terms.conversation:
        thread["ephemeral"] = True
    opening: dict[str, object] = {
        "thread": thread,
        "tools": [tool for tool in (*_RUNNING[:1], *_EDITING) if _may_use(agent, (tool,))],
        "servers": {spelled(name): name for name in _names(agent, terms)},
    }
    if terms.resume:
        opening["resume"] = terms.conversation
    off = [*FEATURES_OFF]
    if not _may_use(agent, _RUNNING):
        off += ["shell_tool", "unified_exec"]
    if not _may_use(agent, ("Read",)):
        off.append("view_image")
    argv = ["/bin/sh", "-c", CLEANED, "sh", "codex", "app-server"]
    for setting in _settings(terms):
        argv += ["-c", setting]
    for feature in off:
        argv += ["--disable", feature]
    return Launch(argv=tuple(argv), env=env, cwd=terms.cwd, files=terms.files, opening=opening)


def is_own_variable(name: str, own: Mapping[str, str]) -> bool:
    """Whether agent.md cannot set a variable: it is the CLI's, or one of these besides."""
    return name in own or name in (*PLAIN_ENVIRONMENT, TOKEN) or name.startswith(CODEX_PREFIXES)


def _settings(terms: LaunchTerms) -> list[str]:
    provider = (
        f'{{name="gateway",base_url={json.dumps(terms.base_url + "/v1")},env_key="{TOKEN}",'
        'wire_api="responses",request_max_retries=0,stream_max_retries=0,supports_websockets=false}'
    )
    untrusted = ",".join(
        f'{json.dumps(folder)}={{trust_level="untrusted"}}'
        for folder in dict.fromkeys((WORKSPACE, terms.cwd))
    )
    return [
        "model_provider=gateway",
        f"model_providers.gateway={provider}",
        f"projects={{{untrusted}}}",  # its dotted form does nothing
        "project_doc_max_bytes=0",
        "skills.include_instructions=false",
        "skills.bundled.enabled=false",
        "analytics.enabled=false",
        "feedback.enabled=false",
        "check_for_update_on_startup=false",
        "include_permissions_instructions=false",
        'web_search="disabled"',
        "allow_login_shell=false",
        'shell_environment_policy={inherit="all",ignore_default_excludes=true}',
    ]


def _server_entries(agent: AgentSpec, terms: LaunchTerms) -> dict[str, dict[str, object]]:
    """MCP servers by their names, as codex has them."""
    entries: dict[str, dict[str, object]] = {}
    for server in terms.mcp_servers:
        command, *args = server_command(server)
        entries[spelled(server.name)] = {
            "command": command,
            "args": args,
            "env": {**terms.env, **terms.surroundings, **server.env},
            "startup_timeout_sec": SERVER_START_SECONDS,
            "tool_timeout_sec": ANSWER_SECONDS,
        }
    for name, url in server_urls(agent, terms).items():
        entries[spelled(name)] = {
            "url": url,
            "startup_timeout_sec": SERVER_START_SECONDS,
            "tool_timeout_sec": ANSWER_SECONDS,
        }
    return entries


def _names(agent: AgentSpec, terms: LaunchTerms) -> list[str]:
    return [*(server.name for server in terms.mcp_servers), *server_urls(agent, terms)]


def _may_use(agent: AgentSpec, tools: tuple[str, ...]) -> bool:
    rules = (*agent.permissions.allow, *agent.ask_rules)
    return any(is_named(tool, rules) for tool in tools)
