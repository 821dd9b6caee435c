"""opencode 1.18.33 behind the contract of runners: its launch, and what it calls its tools.

Everything that it is told is in one variable, and its configuration directory is new at each start.
It imports plugins of the directory that a session is in, whatever it is told, so that is an empty
one of root's and not the workspace: the agent gives absolute paths.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, Launch
from orchestrator.runners.acp.calls import AcpWords
from orchestrator.runners.acp.dialogue import AcpManners
from orchestrator.runners.acp.runner import AcpRunner
from orchestrator.runners.contract import LaunchTerms, ToolNames, WireFormat
from orchestrator.runners.launching import (
    ANSWER_SECONDS,
    OWN_FOLDER,
    PLAIN_ENVIRONMENT,
    prompt_text,
    server_command,
    server_urls,
    utf8,
)

OPENCODE_FOLDER = f"{OWN_FOLDER}/opencode"

NOTHING_TO_INSTALL = '{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}'
"""As package-lock.json, beside a node_modules: otherwise the CLI looks up an index of packages at
each start, to install this one there.
"""

FRESH_OPENCODE = (
    'set -e; d="$0/data/opencode"; rm -rf -- "$0.new"; mkdir -p -- "$0.new/data/opencode"; '
    'if [ ! -L "$0" ] && [ ! -L "$0/data" ] && [ ! -L "$d" ]; then '
    'for f in "$d"/opencode*.db*; do if [ -f "$f" ] && [ ! -L "$f" ]; '
    'then mv -- "$f" "$0.new/data/opencode/"; fi; done; fi; '
    f'rm -rf -- "$0" {HOME}/.opencode; mv -- "$0.new" "$0"; '
    'mkdir -p -- "$0/config/opencode/node_modules" "$0/cache" "$0/state"; '
    f'echo \'{NOTHING_TO_INSTALL}\' > "$0/config/opencode/package-lock.json"; exec "$@"'
)
"""For a shell: keep nothing of the CLI's directories but its database, then become the CLI."""

OPENCODE_WORDS = AcpWords(
    built_in={
        "bash": "Bash",
        "read": "Read",
        "edit": "Edit",
        "multiedit": "Edit",
        "patch": "Edit",
        "apply_patch": "Edit",
        "write": "Write",
        "glob": "Glob",
        "list": "Glob",
        "grep": "Grep",
        "webfetch": "WebFetch",
    },
    server_prefix="",
    in_id=False,
)

_PERMISSIONS = {
    "Bash": ("bash",),
    "Read": ("read",),
    "Edit": ("edit",),
    "Write": ("edit",),
    "Glob": ("glob", "list"),
    "Grep": ("grep",),
    "WebFetch": ("webfetch",),
}
"""agent.md's word -> what its permissions call it."""

OWN_OPENCODE = ("OPENCODE_", "XDG_", "BUN_")
"""Variables that decide what the CLI loads, and from where."""

_SWITCHES = (
    *("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "PROJECT_CONFIG"),
    *("CLAUDE_CODE", "EXTERNAL_SKILLS", "SHARE"),
)

_OUTPUT_TOKENS = 32_000
_CONTEXT_TOKENS = 200_000
"""What it takes the model for; it compacts a conversation before that."""


_PROVIDERS: dict[WireFormat, tuple[str, str]] = {
    "anthropic": ("@ai-sdk/anthropic", "v1"),
    "responses": ("@ai-sdk/openai", "v1"),
    "gemini": ("@ai-sdk/google", "v1beta"),
    "chat": ("@ai-sdk/openai-compatible", "v1"),
}
"""What it speaks -> the part of it that does, and where at the gateway."""


class Opencode(AcpRunner):
    """opencode, version 1.18.33."""

    name = "opencode"
    default_model = "claude-sonnet-5-5"
    wire_formats: tuple[WireFormat, ...] = tuple(_PROVIDERS)
    tools = ToolNames(version="opencode 1.18.33", built_in=frozenset(_PERMISSIONS))
    own_names = _PERMISSIONS
    manners = AcpManners(
        words=OPENCODE_WORDS,
        steers=True,
        resume_method="session/resume",
        replays=False,
        tells_input_later=True,
    )

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        servers = _servers(agent, terms)
        config = json.dumps(_config(agent, terms, self.words(agent), servers))
        # It fills in {env:VARIABLE} and {file:PATH} before it reads the JSON.
        config = re.sub(r"\{(?=env:|file:)", r"\\u007b", config)
        return self.launched(
            *(agent, terms),
            ("/bin/sh", "-c", FRESH_OPENCODE, OPENCODE_FOLDER, "opencode", "acp"),
            {**_environment(), "OPENCODE_CONFIG_CONTENT": config},
            servers=list(servers),
        )

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        return name in own or name in _environment() or name.startswith(OWN_OPENCODE)


def _environment() -> dict[str, str]:
    return {
        **PLAIN_ENVIRONMENT,
        **{f"OPENCODE_DISABLE_{name}": "1" for name in _SWITCHES},
        "OPENCODE_PURE": "1",
        **{f"XDG_{name.upper()}_HOME": f"{OPENCODE_FOLDER}/{name}" for name in _DIRECTORIES},
    }


_DIRECTORIES = ("config", "data", "cache", "state")


def _config(
    agent: AgentSpec,
    terms: LaunchTerms,
    words: tuple[str, ...],
    servers: Mapping[str, Mapping[str, object]],
) -> dict[str, object]:
    prompt = prompt_text(agent, terms)
    utf8(agent, "the prompt", prompt)
    place = f"Your files are in {terms.cwd}. Give absolute paths, and that as `workdir`."
    model = f"gw/{agent.model}"
    package, path = _PROVIDERS[terms.wire_format]
    limit = {"context": _CONTEXT_TOKENS, "output": _OUTPUT_TOKENS}
    permission: dict[str, object] = {"*": "deny"}
    permission |= {key: "ask" for word in words for key in _PERMISSIONS[word]}
    permission |= {f"{server}_*": "ask" for server in servers}
    # The rules decide about each call, and the container about what can be reached.
    permission |= {"external_directory": "allow", "doom_loop": "allow"}
    return {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "lsp": False,
        "formatter": False,
        "enabled_providers": ["gw"],
        "model": model,
        "small_model": model,
        "provider": {
            "gw": {
                "npm": package,
                "options": {"baseURL": f"{terms.base_url}/{path}", "apiKey": terms.token},
                "models": {agent.model: {"limit": limit}},
            }
        },
        "permission": permission,
        "agent": {
            "build": {"prompt": f"{prompt}\n\n{place}".strip()},
            "title": {"disable": True},
        },
        "mcp": servers,
        "experimental": {"continue_loop_on_deny": True},
    }


def _servers(agent: AgentSpec, terms: LaunchTerms) -> dict[str, dict[str, object]]:
    wait = ANSWER_SECONDS * 1000
    servers: dict[str, dict[str, object]] = {}
    for server in terms.mcp_servers:
        servers[server.name] = {
            "type": "local",
            "command": list(server_command(server)),
            "environment": dict(server.env),
            "timeout": wait,
        }
    for name, url in server_urls(agent, terms).items():
        servers[name] = {"type": "remote", "url": url, "oauth": False, "timeout": wait}
    return servers
