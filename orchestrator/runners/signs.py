"""Signs: what a CLI's output means, in words that no CLI owns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.domain import Frozen
from orchestrator.domain.result import Reason


class Ready(Frozen):
    """The CLI has said who it is. May come once per turn."""

    kind: Literal["ready"] = "ready"
    session_id: str = ""
    model: str = ""
    tools: tuple[str, ...] = ()
    mcp_servers: dict[str, str] = {}
    """Name -> status; "connected" is the only good one."""


class Said(Frozen):
    """A piece of the agent's text."""

    kind: Literal["said"] = "said"
    text: str


class ToolCalled(Frozen):
    kind: Literal["tool_called"] = "tool_called"
    id: str
    tool: str
    input: dict[str, object] = {}


class ToolReturned(Frozen):
    kind: Literal["tool_returned"] = "tool_returned"
    id: str
    text: str = ""
    is_error: bool = False


class Retrying(Frozen):
    """The CLI asks the model API again."""

    kind: Literal["retrying"] = "retrying"
    attempt: int = 0
    status: int | None = None
    error: str = ""


class ControlAnswered(Frozen):
    """The CLI has answered a control request of ours (initialize, interrupt)."""

    kind: Literal["control_answered"] = "control_answered"
    request_id: str
    ok: bool = True


class PermissionAsked(Frozen):
    """May this tool call run? The CLI waits for the answer, for ever if need be."""

    kind: Literal["permission_asked"] = "permission_asked"
    request_id: str
    call_id: str
    """Of the ToolCalled that it is about."""
    tool: str
    input: dict[str, object] = {}
    is_whole: bool = True
    """Otherwise parts of the input are left out, and whoever approves it would not know what."""
    why: Literal["rule", "parts", "no_rule"] = "no_rule"
    """A rule says to ask about it; or it has several parts, and some of them may not simply run,
    for either reason; or no rule covers it, and whoever is asked would be the first to allow it."""


class PermissionWithdrawn(Frozen):
    """The CLI does not wait for that answer any more: the turn was interrupted."""

    kind: Literal["permission_withdrawn"] = "permission_withdrawn"
    request_id: str


class ControlAsked(Frozen):
    """The CLI wants something of us that we do not know; it is to be told so."""

    kind: Literal["control_asked"] = "control_asked"
    request_id: str
    what: str = ""


class TurnEnded(Frozen):
    """The verdict on one turn. Decided from the CLI's result event, never from an exit code."""

    kind: Literal["turn_ended"] = "turn_ended"
    reason: Reason
    """ "ok", or why not."""
    text: str = ""
    """The answer; the error text when it is not ok."""
    session_id: str = ""
    num_turns: int = 0
    cost_usd: float = 0.0
    """As the CLI counts, cumulative over its process."""
    denials: tuple[ToolCalled, ...] = ()
    """The calls of this turn that the permissions forbade."""
    interrupted: bool = False
    """Somebody stopped it; who, and why, is known to whoever asked for it."""

    @property
    def denied_tools(self) -> tuple[str, ...]:
        """Their names, each once."""
        return tuple(dict.fromkeys(denial.tool for denial in self.denials))


class Noise(Frozen):
    """A line that means nothing to us: junk, or an event of a kind not known."""

    kind: Literal["noise"] = "noise"
    text: str = ""


Sign = Annotated[
    Ready
    | Said
    | ToolCalled
    | ToolReturned
    | Retrying
    | ControlAnswered
    | PermissionAsked
    | PermissionWithdrawn
    | ControlAsked
    | TurnEnded
    | Noise,
    Field(discriminator="kind"),
]
