"""Who is calling -> for how many seconds one call may keep its client waiting. Pure.

Clients give up on a call after a time that they do not tell, and what was under way is lost to
them. A call that would last longer is answered before that, with how to go on: a window that is too
short costs one more call, one that is too long costs the answer.
"""

from __future__ import annotations

import re
from typing import NamedTuple

UNKNOWN_SECONDS = 22.0
"""For a client that we know nothing of: the shortest limit that we know of is 30 s, that of
CodeCompanion.nvim, and what holds for one may hold for others."""

MINUTE_SECONDS = 45.0
"""For a client that gives up after 60 s, the default of the TypeScript SDK."""

LONG_SECONDS = 100.0
"""For a client that waits for minutes. Not longer: Claude Code puts calls of 2 min into the
background, and people want to see something."""


class Patience(NamedTuple):
    """How long a client may be kept waiting, from one of its versions on."""

    name: str
    """What the name in `clientInfo` begins with, in lower case."""
    seconds: float
    since: tuple[int, ...] = ()


CLIENTS = (
    # Calls longer than 2 min go into the background, and their progress is not shown any more;
    # MCP_TOOL_TIMEOUT is far beyond that unless the user sets it. (docs, 2.1.325; its issue 86464)
    Patience("claude-code", LONG_SECONDS),
    # 60 s, whatever is configured, and between 30 and 60 not always. (claude-code issues 22542,
    # 63379, 43791; issue 44032 saw 4 min)
    Patience("claude-ai", 28.0),
    Patience("claude-desktop", 28.0),
    # tool_timeout_sec: 300 unless the user sets it (0.166.0; 140 s seen), 60 in older versions.
    Patience("codex", LONG_SECONDS, since=(0, 166)),
    Patience("codex", MINUTE_SECONDS),
    # 130 s seen (1.0.102).
    Patience("copilot-cli", LONG_SECONDS, since=(1, 0, 102)),
    # `timeout`: 600 s unless the user sets it (0.61.0).
    Patience("gemini-cli", LONG_SECONDS, since=(0, 61)),
    Patience("gemini-cli", MINUTE_SECONDS),
    Patience("copilot-cli", MINUTE_SECONDS),
    # 60 s: seen (opencode 1.18.33, which progress extends; Continue 1.5.47; Cline 3.0.65), in the
    # source (Zed), or the SDK's default (Cursor).
    Patience("opencode", MINUTE_SECONDS),
    Patience("continue", MINUTE_SECONDS),
    Patience("@cline/", MINUTE_SECONDS),
    Patience("cline", MINUTE_SECONDS),
    Patience("zed", MINUTE_SECONDS),
    Patience("cursor", MINUTE_SECONDS),
    # No limit of its own is known.
    Patience("visual studio code", MINUTE_SECONDS),
    Patience("vscode", MINUTE_SECONDS),
)
"""The first that fits counts.

None of them promises a number: each of these is below what was seen or documented, for the version
it was seen in, and no version is known that takes less. An operator who has set another limit in a
client sets ORCHESTRATOR_WINDOW_SECONDS.
"""


def window_seconds(name: str, override: float | None = None, version: str = "") -> float:
    """The name and version that a client gave in its handshake -> seconds; the operator's setting
    wins.
    """
    if override is not None:
        return override
    said, number = name.strip().lower(), _number(version)
    fitting = (
        each.seconds for each in CLIENTS if said.startswith(each.name) and number >= each.since
    )
    return next(fitting, UNKNOWN_SECONDS)


def _number(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    return tuple(map(int, found[0].split("."))) if found else ()
