"""How each MCP client is told of our server: which file, what entry, and what it asks its person.

Pure. What is said of a client was seen with the version that stands beside it, or is documented by
its makers where it says so; `tests/surfaces/mcp/test_clients.py` runs those that can be had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from orchestrator.settings import OWN_VARIABLES
from orchestrator.surfaces.cli.setup.merging import Entry

SERVER = "subagents"
"""What the server is called in every client."""

AGENTS_DIR = "ORCHESTRATOR_AGENTS_DIR"

OPENED_AGENTS = "${workspaceFolder}/agents"
"""In the folder that an editor has open, in the words of VS Code and Cursor."""

CODEX_APPROVED = (
    *("run_subagent", "run_subagents", "delegate_task", "wait_for_tasks"),
    *("reply_subagent", "resume_subagent_task"),
)
"""Tools that codex need not ask about: what an agent may do is decided in its agent.md, and none of
these changes anything outside of its container. It asks about the others that do: apply_changes and
cancel_task. Those that only look are known by their annotations."""

CODEX_CALL_SECONDS = 300
"""What codex 0.166 waits for a call; written, since it was 60 in older ones."""

_WITHHELD_BY_GEMINI = re.compile("TOKEN|SECRET|PASSWORD|PASSWD|KEY|AUTH|CREDENTIAL|CREDS|CERT")
"""Variables with such a name are not handed to a server unless its entry names them (0.61)."""


def _plain(command: str, agents: Path) -> Entry:  # noqa: ARG001 the shape of an entry
    """For clients that start servers in the project's folder, where the server looks by itself."""
    return {"command": command, "args": ["serve"]}


def _vscode(command: str, agents: Path) -> Entry:
    return {"type": "stdio", **_cursor(command, agents)}


def _cursor(command: str, agents: Path) -> Entry:
    return {**_plain(command, agents), "env": {AGENTS_DIR: OPENED_AGENTS}}


def _zed(command: str, agents: Path) -> Entry:
    """Zed may start servers in /, and expands nothing."""
    return {**_plain(command, agents), "env": {AGENTS_DIR: str(agents)}}


def _gemini(command: str, agents: Path) -> Entry:
    withheld = [name for name in OWN_VARIABLES if _WITHHELD_BY_GEMINI.search(name)]
    return {**_plain(command, agents), "env": {name: f"${{{name}:-}}" for name in withheld}}


def _codex(command: str, agents: Path) -> Entry:
    return {
        **_plain(command, agents),
        "env_vars": list(OWN_VARIABLES),
        "required": True,  # else the first turn begins after a second, with the server or without
        "tool_timeout_sec": CODEX_CALL_SECONDS,
        "tools": {tool: {"approval_mode": "approve"} for tool in CODEX_APPROVED},
    }


class Client(NamedTuple):
    """One program that can call us."""

    title: str
    file: str
    """In the project."""
    asks: str
    """For people: what it asks, what it was told not to ask, what it withholds."""
    entry: Callable[[str, Path], Entry] = _plain
    """Our command and the agents directory -> the entry. A team shares the file: so the entry names
    no place of one machine where the client can do without."""
    path: tuple[str, ...] = ("mcpServers", SERVER)
    """Where in the file the entry belongs."""
    kind: Literal["json", "toml"] = "json"


def connecting_to(client: Client, url: str) -> Client:
    """The client, told of the orchestrator at an address instead of the agents in its folder."""

    def entry(command: str, agents: Path) -> Entry:
        usual = client.entry(command, agents)
        made = {**usual, "args": ["connect", url]}
        env = usual.get("env")
        if isinstance(env, dict):
            made["env"] = {name: value for name, value in env.items() if name != AGENTS_DIR}
        return {name: value for name, value in made.items() if value != {}}

    return client._replace(entry=entry)


KNOWN_CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        title="Claude Code",
        file=".mcp.json",
        asks="""\
It asks whether you trust the folder ("No, exit" is preselected), then whether to use the server
subagents: choose "Use this MCP server". The preselected "Continue without" is remembered; `claude
mcp reset-project-choices` has it ask again. `claude -p` asks nothing and needs
--allowedTools mcp__subagents.""",
    ),
    "codex": Client(
        title="codex",
        file=".codex/config.toml",
        asks="""\
It asks whether you trust the folder, and reads the file only if you do; `codex exec` does not ask,
and reads it in a folder that you have trusted. The file approves the tools that start agents, wait
for them and talk to them; codex asks before apply_changes and cancel_task, and `codex exec` does
without those two. codex waits for the server and does not begin without it (`required`); it hands
the server only the variables that env_vars names: add those that hold secrets of yours
(ORCHESTRATOR_SECRET_...).""",
        entry=_codex,
        path=("mcp_servers", SERVER),
        kind="toml",
    ),
    "copilot": Client(
        title="Copilot CLI",
        file=".mcp.json",
        asks="""\
It asks whether you trust the folder ("Yes" is preselected) and starts the server only if you do; it
asks before each tool. `copilot -p` needs --trust-folder and --allow-tool=subagents.""",
    ),
    "gemini": Client(
        title="gemini",
        file=".gemini/settings.json",
        asks="""\
It asks whether you trust the folder ("Trust folder" is preselected) and starts the server only if
you do; it asks before each tool. `gemini -p` cannot ask: in a folder that you have not trusted, set
GEMINI_CLI_TRUST_WORKSPACE=true (--skip-trust comes too late for this file), and name the tools in
--allowed-tools, such as mcp_subagents_run_subagent. gemini withholds variables with KEY, TOKEN,
SECRET and the like in their names: the entry hands over those of the orchestrator; add those that
hold secrets of yours (ORCHESTRATOR_SECRET_...).""",
        entry=_gemini,
    ),
    "vscode": Client(
        title="VS Code",
        file=".vscode/mcp.json",
        asks="It asks whether you trust the server before it first starts it, and before tools.",
        entry=_vscode,
        path=("servers", SERVER),
    ),
    "cursor": Client(
        title="Cursor",
        file=".cursor/mcp.json",
        asks="""\
Switch the server subagents on in its settings, under MCP. It asks before each tool unless auto-run
is on.""",
        entry=_cursor,
    ),
    "zed": Client(
        title="Zed",
        file=".zed/settings.json",
        asks="""\
It reads the file in a folder that you have trusted, and asks before each tool unless
agent.tool_permissions says otherwise. The entry names this folder by its path on this machine: in
another copy of the project it has to be another one.""",
        entry=_zed,
        path=("context_servers", SERVER),
    ),
}
"""All whose files `orchestrator init --client` writes."""
