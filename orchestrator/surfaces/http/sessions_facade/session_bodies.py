"""Bodies of requests and answers, with the names that these clients know."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Rule
from orchestrator.surfaces.http.bodies import MAX_NUMBER, MAX_PAGE, EventQuery

SESSION_TITLE_CHARS = 1000
SESSION_ID_CHARS = 200
RUN_UUID_CHARS = 100
MOST_STEPS = 256
SYSTEM_PROMPT_CHARS = 32 * 1024
CONTEXT_PARTS = 32
CONTEXT_NAME_CHARS = 256
CONTEXT_PART_CHARS = 50_000
DECISIONS_AT_ONCE = 1000
MAX_NAMED_TOOLS = 500
MODEL_NAME_CHARS = 200
PARTS_OF_A_MESSAGE = 1000

RunUuid = Annotated[str, Field(min_length=1, max_length=RUN_UUID_CHARS)]

NamedTools = Annotated[tuple[str, ...], Field(max_length=MAX_NAMED_TOOLS)]

RunState = Literal["idle", "starting", "running", "failed"]

DecisionAction = Literal["accept", "reject", "custom_result"]


class Loose(BaseModel):
    """A part of a message: what we do not know in it is passed over, as it is elsewhere."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class MessagePart(Loose):
    """One part of what a message says; only text is told to an agent."""

    type: Literal["text", "image", "tool_call", "tool_result"]
    text: str = ""


class ClientMessage(Loose):
    """What a client says."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | Annotated[tuple[MessagePart, ...], Field(max_length=PARTS_OF_A_MESSAGE)]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if part.type == "text")


class ContextPart(Frozen):
    """Something that the agent should know besides."""

    name: str = Field(min_length=1, max_length=CONTEXT_NAME_CHARS)
    content: str = Field(min_length=1, max_length=CONTEXT_PART_CHARS)
    priority: str | None = Field(None, max_length=CONTEXT_NAME_CHARS, description="Not heeded")


class RunOverrides(Frozen):
    """For one run; each makes it smaller, or is refused."""

    model: str | None = Field(None, max_length=MODEL_NAME_CHARS)
    auto_approve: Literal["all", "none"] | NamedTools | None = Field(
        None, description="Tools that need not wait, unless the agent has them wait"
    )
    system_prompt: str | None = Field(
        None,
        max_length=SYSTEM_PROMPT_CHARS,
        description="Told to the agent as context: its own prompt stays",
    )
    max_turns: int | None = Field(None, ge=1, le=MOST_STEPS)


class NewSession(Frozen):
    """A session to be created."""

    title: str = Field(max_length=SESSION_TITLE_CHARS)
    cwd: str | None = Field(
        None, max_length=4096, description="A directory to work on: absolute, or an upload's id"
    )
    parent_session_id: str | None = Field(None, max_length=SESSION_ID_CHARS)


class SessionChange(Frozen):
    """What is to be another one."""

    title: str | None = Field(None, max_length=SESSION_TITLE_CHARS)
    visibility: Literal["PRIVATE"] | None = Field(None, description="There is no other")


class SessionMessage(Frozen):
    """A message for a session's agent."""

    message: ClientMessage
    type: Literal["message", "steering", "follow_up"] = "message"
    run_id: RunUuid | None = Field(None, description="Needed for steering and follow_up")
    model: str | None = Field(None, max_length=MODEL_NAME_CHARS)
    sandbox: bool | None = Field(None, description="Every run has a container, whatever it says")
    context: Annotated[tuple[ContextPart, ...], Field(max_length=CONTEXT_PARTS)] | None = None
    allowed_tools: (
        Annotated[tuple[Rule, ...], Field(min_length=1, max_length=MAX_NAMED_TOOLS)] | None
    ) = Field(None, description="Of the agent's tools; all of them unless given")
    max_steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    auto_approve: bool | None = Field(
        None, description="true: only what the agent itself has wait waits"
    )
    overrides: RunOverrides | None = None


class SessionsQuery(Frozen):
    """Which sessions."""

    limit: int = Field(50, ge=1, le=MAX_PAGE)
    offset: int = Field(0, ge=0, le=MAX_NUMBER)
    search: str = Field("", max_length=SESSION_TITLE_CHARS, description="A part of the title")
    status: str = Field("", max_length=20, description="ACTIVE; of others there are none")
    parent_session_id: str = Field("", max_length=SESSION_ID_CHARS)


class MessagesQuery(Frozen):
    """Which messages."""

    limit: int = Field(100, ge=1, le=1000)
    offset: int = Field(0, ge=0, le=MAX_NUMBER)


class SessionEventQuery(EventQuery):
    """Where to read on."""


class RunStatusBody(Frozen):
    """What a session is doing."""

    state: RunState
    run_id: str | None = Field(description="The run that is under way")


class SessionBody(Frozen):
    """A session."""

    id: str
    title: str
    cwd: str | None
    parent_session_id: str | None
    created_at: str
    updated_at: str
    run_status: RunStatusBody


class SessionsBody(Frozen):
    """Sessions, those changed last first."""

    sessions: tuple[SessionBody, ...]
    total: int = Field(description="How many there are in all")


class ConfigBody(Frozen):
    """What runs are begun with."""

    default_model: str | None
    auto_approve_mode: Literal["none", "all", "custom"]


class SessionDetail(Frozen):
    """A session, and what its runs are begun with."""

    session: SessionBody
    config: ConfigBody


class BegunBody(Frozen):
    """The run that a message goes to."""

    run_id: str


class HistoryMessage(Frozen):
    """One message of a conversation."""

    role: Literal["user", "assistant", "tool"]
    content: JsonValue = Field(description="A text, or a list of parts")


class HistoryBody(Frozen):
    """What was said in a session, the oldest first."""

    messages: tuple[HistoryMessage, ...]
    total: int


class ProposedCall(Frozen):
    """A tool call that waits for a decision."""

    id: str
    name: str
    arguments: dict[str, JsonValue]


class PendingTools(Frozen):
    """What waits in a session."""

    run_id: str | None
    tool_calls: tuple[ProposedCall, ...]


class DecisionWish(Frozen):
    """What is to become of a tool call."""

    action: DecisionAction
    content: str | None = Field(None, description="Of custom_result: what the agent is told")


class OneDecision(DecisionWish):
    """The same, with the run that it is for."""

    run_id: RunUuid


class ManyDecisions(Frozen):
    """Decisions by the ids of tool calls."""

    run_id: RunUuid
    decisions: dict[str, DecisionWish] = Field(min_length=1, max_length=DECISIONS_AT_ONCE)


class AcceptedBody(Frozen):
    """The decisions count."""

    accepted: bool = True
    run_id: str


class CancelWish(Frozen):
    """Which run is to end."""

    run_id: RunUuid


class CancelledBody(Frozen):
    """The run ends."""

    cancelled: bool = True
    run_id: str


class ModelWish(Frozen):
    """Another model, from the next run of the session on."""

    run_id: RunUuid
    model: str = Field(max_length=MODEL_NAME_CHARS)


class ModelAccepted(Frozen):
    """The model is another one."""

    accepted: bool = True
    run_id: str
    model: str


class ModelLimit(Frozen):
    """0: not known."""

    context: int = 0
    output: int = 0


class ModelBody(Frozen):
    """A model that runs of sessions can have."""

    id: str
    name: str
    provider: str
    reasoning: bool = False
    limit: ModelLimit = ModelLimit()


class ModelsBody(Frozen):
    """The first is taken unless another is named."""

    models: tuple[ModelBody, ...]


def timestamp(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()
