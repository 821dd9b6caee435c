"""The Claude Code plugin that is part of this package, installed with Claude Code's own command.

The plugin is read where it lies, so it is always as new as the package.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

PLUGIN = "subagents"

PLUGIN_DIR = Path(__file__).parents[2] / "claude_plugin"
"""A plugin, and a marketplace with nothing else in it."""

INSTALL = (
    *("claude", "plugin", "install", PLUGIN),
    *("--marketplace", str(PLUGIN_DIR), "--json"),
)

INSTALL_SECONDS = 120
"""It is a matter of seconds, and more where Claude Code waits for a network that is not there."""

TITLE = "Claude Code"

ASKS = """\
It has the plugin subagents in every project of yours, and starts its server without asking, with
the agents/ of the project; it asks before a tool is used. `/subagents` shows what agents there are,
what they do and what waits; with a task, it hands that to one of them. What waits for you is also
told when a session begins and after each turn. `claude -p` needs
--allowedTools mcp__plugin_subagents_subagents. A server subagents in .mcp.json would be a second
one: have either."""


class Installed(NamedTuple):
    """What became of it."""

    done: bool
    why: str = ""
    """It was not done."""


def install() -> Installed:
    """Have Claude Code install the plugin for this user; a second time changes nothing."""
    if shutil.which(INSTALL[0]) is None:
        return Installed(done=False, why="`claude` is not on the PATH; install it, then type")
    try:
        done = subprocess.run(
            INSTALL,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return Installed(done=False, why=f"`claude` did not do it: {exc}; try it yourself")
    said = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        answer = json.loads(said[-1] if said else "")
        if done.returncode == 0 and answer.get("outcome") == "ok":
            return Installed(done=True)
        why = str(answer.get("message", answer))
    except (ValueError, AttributeError):
        why = (done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}")[
            -300:
        ]
    return Installed(done=False, why=f"`claude` did not do it: {why}; try it yourself")


def line_to_type() -> str:
    """What installs it by hand."""
    return shlex.join(INSTALL[:-1])
