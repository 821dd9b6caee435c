"""gemini-cli 0.61.0 behind the contract of runners: its launch, and what it calls its tools.

It takes MCP servers in a trusted directory only, and reads settings, hooks and GEMINI.md of one
that it trusts. So a session is in an empty directory of root's, and the workspace is one more to
work in. GEMINI.md of that would be read all the same, so the CLI is told that there is none. All of
~/.gemini but the conversations goes before each start, and ours takes its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import HOME, File, Launch
from orchestrator.runners.acp.calls import AcpWords
from orchestrator.runners.acp.dialogue import AcpManners
from orchestrator.runners.acp.runner import AcpRunner
from orchestrator.runners.contract import Abilities, LaunchTerms, ToolNames, WireFormat
from orchestrator.runners.launching import (
    ANSWER_SECONDS,
    OWN_FOLDER,
    PLAIN_ENVIRONMENT,
    prompt_text,
    server_command,
    server_urls,
    utf8,
)

GEMINI_PROGRAM = "/usr/local/bin/gemini"

GEMINI_SETTINGS = f"{OWN_FOLDER}/gemini-settings.json"
SYSTEM_FILE = f"{OWN_FOLDER}/gemini-system.md"
POLICY_FILE = f"{OWN_FOLDER}/gemini-policy.toml"

NO_CONTEXT_FILE = f"{OWN_FOLDER}/gemini-no-context.cjs"
NO_CONTEXT = """\
const fs = require("node:fs");
const access = fs.promises.access;
fs.promises.access = (path, ...rest) =>
  /(^|[\\/])GEMINI\\.md$/i.test(String(path))
    ? Promise.reject(Object.assign(new Error("ENOENT"), { code: "ENOENT" }))
    : access(path, ...rest);
require("node:module").syncBuiltinESMExports();
"""
"""For node, before the CLI: files that the CLI would take instructions from are not found by the
call that it looks for them with. Its tools read them as any other."""

POLICY = '[[rule]]\ntoolName = "*"\ndecision = "ask_user"\npriority = 900\n'
"""To ask about every call; it runs commands that it takes for harmless all the same."""

FRESH_GEMINI = (
    'set -e; rm -rf -- "$0.new"; mkdir -p -- "$0.new/tmp"; '
    'if [ ! -L "$0" ] && [ ! -L "$0/tmp" ]; then for d in "$0"/tmp/*; do '
    'if [ ! -L "$d" ] && [ ! -L "$d/chats" ] && [ -d "$d/chats" ]; then '
    'mkdir -- "$0.new/tmp/${d##*/}"; mv -- "$d/chats" "$0.new/tmp/${d##*/}/"; '
    'for f in "$0.new/tmp/${d##*/}/chats"/session-*.jsonl; do if [ -f "$f" ]; '
    'then mv -- "$f" "${f%/*}/session-2000-01-01T00-00-${f##*-}"; fi; done; '
    'if [ -f "$d/.project_root" ]; then mv -- "$d/.project_root" "$0.new/tmp/${d##*/}/"; fi; '
    'fi; done; fi; rm -rf -- "$0"; mv -- "$0.new" "$0"; '
    f'cp -- {GEMINI_SETTINGS} "$0/settings.json"; exec "$@"'
)
"""For a shell: keep nothing of ~/.gemini but conversations, put our settings there, then become the
CLI. Settings of the system would have to be a file of root's. A conversation gets an older name:
when the CLI loads one, it begins a file of this minute and the same id, which may be that one."""

GEMINI_NAMES = {
    "Bash": ("run_shell_command",),
    "Read": ("read_file", "read_many_files"),
    "Edit": ("replace",),
    "Write": ("write_file",),
    "Glob": ("glob", "list_directory"),
    "Grep": ("grep_search", "search_file_content"),
}
"""agent.md's word -> what the CLI calls it."""

GEMINI_WORDS = AcpWords(
    built_in={name: word for word, names in GEMINI_NAMES.items() for name in names},
    server_prefix="mcp_",
    in_id=True,
)


class Gemini(AcpRunner):
    """gemini-cli, version 0.61.0."""

    name = "gemini"
    abilities = Abilities(
        asks_about_all=False,
        tells_reason=False,
        steers=False,
        tells_servers=False,
        tells_cut=False,
    )
    default_model = "gemini-2.5-pro"
    wire_formats: tuple[WireFormat, ...] = ("gemini",)
    tools = ToolNames(version="gemini 0.61.0", built_in=frozenset(GEMINI_NAMES))
    own_names = GEMINI_NAMES
    manners = AcpManners(
        words=GEMINI_WORDS,
        steers=False,
        resume_method="session/load",
        replays=True,
        authenticate="gemini-api-key",
    )

    def launch(self, agent: AgentSpec, terms: LaunchTerms) -> Launch:
        servers = _servers_outside(agent, terms)
        settings = json.dumps(_settings(terms, self.words(agent), servers), indent=1)
        prompt = prompt_text(agent, terms)
        place = f"Your files are in {terms.cwd}. Give absolute paths, and that as `dir_path`."
        files = (
            File(path=GEMINI_SETTINGS, content=settings.encode()),
            File(path=NO_CONTEXT_FILE, content=NO_CONTEXT.encode()),
            File(path=POLICY_FILE, content=POLICY.encode()),
            File(path=SYSTEM_FILE, content=utf8(agent, "the prompt", f"{prompt}\n\n{place}\n")),
        )
        node = ("node", "--no-warnings=DEP0040", "--require", NO_CONTEXT_FILE, GEMINI_PROGRAM)
        cli = (*node, "--acp", f"--model={agent.model}", "--policy", POLICY_FILE)
        utf8(agent, "the model", agent.model)
        return self.launched(
            *(agent, terms, ("/bin/sh", "-c", FRESH_GEMINI, f"{HOME}/.gemini", *cli)),
            _environment(terms),
            files=files,
            servers=[*(server.name for server in terms.mcp_servers), *servers],
            servers_inside=_servers_inside(terms),
        )

    def is_own_variable(self, name: str, own: Mapping[str, str]) -> bool:
        ours = name in own or name in PLAIN_ENVIRONMENT or name == "NO_COLOR"
        return ours or name.startswith(("GEMINI_", "GOOGLE_", "NODE_"))


def _environment(terms: LaunchTerms) -> dict[str, str]:
    return {
        **PLAIN_ENVIRONMENT,
        "GEMINI_API_KEY": terms.token,
        "GOOGLE_GEMINI_BASE_URL": terms.base_url,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_SYSTEM_MD": SYSTEM_FILE,
        "GEMINI_TELEMETRY_ENABLED": "false",
        "NO_COLOR": "1",
    }


def _settings(
    terms: LaunchTerms,
    words: tuple[str, ...],
    servers: Mapping[str, Mapping[str, object]],
) -> dict[str, object]:
    return {
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": True},
        },
        "hooksConfig": {"enabled": False},
        "skills": {"enabled": False},
        "context": {
            "includeDirectories": [terms.cwd, *terms.more_folders],
            "loadMemoryFromIncludeDirectories": False,
            "includeDirectoryTree": False,
        },
        "tools": {
            "sandbox": False,
            "core": [name for word in words for name in GEMINI_NAMES[word]],
            "discoveryCommand": "",
            "callCommand": "",
        },
        "mcp": {"allowed": [*(server.name for server in terms.mcp_servers), *servers]},
        "mcpServers": servers,
        "model": {"maxSessionTurns": -1},
    }


def _servers_inside(terms: LaunchTerms) -> list[dict[str, object]]:
    """Not in the settings, where it fills in variables."""
    servers: list[dict[str, object]] = []
    for server in terms.mcp_servers:
        command, *args = server_command(server)
        # It fills in variables there, too.
        literal = {name: value.replace("$", "\\$") for name, value in server.env.items()}
        env = [{"name": name, "value": value} for name, value in literal.items()]
        servers.append({"name": server.name, "command": command, "args": args, "env": env})
    return servers


def _servers_outside(agent: AgentSpec, terms: LaunchTerms) -> dict[str, dict[str, object]]:
    """In the settings, where they can have a longer time than a minute to answer."""
    wait = ANSWER_SECONDS * 1000
    urls = server_urls(agent, terms)
    return {name: {"httpUrl": url, "timeout": wait} for name, url in urls.items()}
