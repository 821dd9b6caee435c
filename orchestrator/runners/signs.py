"""Signs: what a CLI's output means, in words that no CLI owns."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen
from orchestrator.domain.result import Reason

STATUS_REASONS: dict[int, Reason] = {
    401: "api_auth",
    403: "api_auth",
    429: "api_rate_limit",
    503: "api_overloaded",
    529: "api_overloaded",
}
"""What the model API answered -> why a turn ended; what is not here is an api_error."""


UNKNOWN = "unknown"
"""Of an MCP server, where the CLI does not tell whether it has started."""


class Ready(Frozen):
    """The CLI has said who it is. May come once per turn."""

    session_id: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    mcp_servers: dict[str, str] = {}
    """Name -> status; "connected" is the only good one, and UNKNOWN may be one."""


class Said(Frozen):
    """A piece of the agent's text."""

    text: str


class Saying(Frozen):
    """A bit of a text that is not whole yet; `Said` follows with all of it, if nothing cuts it."""

    text: str
    begins: bool = False
    """It is the first of its text."""


class ToolCalled(Frozen):
    id: str
    tool: str
    input: dict[str, object] = {}


class ToolReturned(Frozen):
    id: str
    text: str = ""
    is_error: bool = False


class Retrying(Frozen):
    """The CLI asks the model API again."""

    attempt: int = 0
    status: int | None = None
    error: str = ""


class Listening(Frozen):
    """The CLI has started and can take messages."""

    conversation: str = ""
    """The id by which it can be told to take this conversation up again, if it gave it itself."""


class CannotBegin(Frozen):
    """The CLI will take no messages: it does not know the conversation, or refuses its terms."""

    why: str = ""


class TakenUp(Frozen):
    """The CLI has taken up a message of ours: the model hears it with the next request."""

    message_id: str


class PermissionAsked(Frozen):
    """May this tool call run? The CLI waits for the answer, for ever if need be."""

    request_id: str
    call_id: str
    """Of the ToolCalled that it is about."""
    tool: str
    input: dict[str, object] = {}
    is_whole: bool = True
    """False if parts of the input are left out: who approves it would not know what."""
    why: Literal["rule", "parts", "no_rule"] = "no_rule"
    """A rule says to ask about it; or it has several parts, and some of them may not simply run,
    for either reason; or no rule covers it."""


class PermissionWithdrawn(Frozen):
    """The CLI does not wait for that answer any more: the turn was interrupted."""

    request_id: str


class TurnEnded(Frozen):
    """The verdict on one turn. Decided from the CLI's result event, never from an exit code."""

    reason: Reason
    """ "ok", or why not."""
    text: str = ""
    """The answer; the error text when it is not ok."""
    denials: tuple[ToolCalled, ...] = ()
    """The calls of this turn that the permissions forbade."""
    interrupted: bool = False
    """It was stopped, by an interrupt of ours or by the CLI itself."""
    more: bool = False
    """Something had been said by then that the CLI had not taken up: another turn follows."""


class Noise(Frozen):
    """A line that means nothing to us: junk, or an event of a kind not known."""

    text: str = ""


Sign = (
    Ready
    | Said
    | Saying
    | ToolCalled
    | ToolReturned
    | Retrying
    | Listening
    | CannotBegin
    | TakenUp
    | PermissionAsked
    | PermissionWithdrawn
    | TurnEnded
    | Noise
)
