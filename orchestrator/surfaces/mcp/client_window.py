"""Who is calling -> for how many seconds one call may keep its client waiting. Pure.

Clients give up on a call after a time that they do not tell, and what was under way is lost to
them. A call that would last longer is answered before that, with how to go on: a window that is too
short costs one more call, one that is too long costs the answer.
"""

from __future__ import annotations

UNKNOWN_SECONDS = 45.0
"""For a client that we know nothing of: the usual limit, that of the TypeScript SDK, is 60 s."""

CLIENTS: dict[str, float] = {
    # Calls longer than 2 min go into the background, and their progress is not shown any more;
    # MCP_TOOL_TIMEOUT is far beyond that unless the user sets it. (docs, 2.1.325; its issue 86464)
    "claude-code": 100.0,
    # 60 s, whatever is configured, and between 30 and 60 not always. (claude-code issues 22542,
    # 63379, 43791; issue 44032 saw 4 min)
    "claude-ai": 28.0,
    "claude-desktop": 28.0,
    # tool_timeout_sec, 60 unless the user sets it.
    "codex": 45.0,
    # 60 s, the SDK's default.
    "cursor": 45.0,
    # No limit of its own is known.
    "visual studio code": 50.0,
    "vscode": 50.0,
}
"""What the name in `clientInfo` begins with, in lower case, and the window; the first that fits.

None of them promises a number: each of these is below what was seen or documented, for the version
it was seen in, and no version is known that takes less. An operator who has
set another limit in a client sets ORCHESTRATOR_WINDOW_SECONDS.
"""


def window_seconds(name: str, override: float | None = None) -> float:
    """The name that a client gave in its handshake -> seconds; the operator's setting wins."""
    if override is not None:
        return override
    said = name.strip().lower()
    fitting = (seconds for start, seconds in CLIENTS.items() if said.startswith(start))
    return next(fitting, UNKNOWN_SECONDS)
