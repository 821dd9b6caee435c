"""The bodies of requests and answers, field by field. Names are those of the envelope that every
surface shows; each field is always there.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from orchestrator.domain import Frozen
from orchestrator.domain.events import EventKind
from orchestrator.domain.exchange import AnsweredBy, ApprovalBy, MessageStatus
from orchestrator.domain.result import RunStatus, TriedRunner, Usage

Cursor = Annotated[str, Field(max_length=200, description="The next_cursor of the page before")]

MAX_NUMBER = 2**63 - 1

MAX_PAGE = 200

MAX_EVENT_PAGE = 1000


class HealthBody(Frozen):
    """The server answers."""

    status: Literal["ok"] = "ok"
    version: str


class MeBody(Frozen):
    """Who asks."""

    caller: str = Field(description="As whom runs are begun")
    person: bool = Field(description="The operator, at the page")
    project: str = Field(description="The project's folder, for a person; otherwise empty")
    project_name: str
    version: str


# Runs


class NewRun(Frozen):
    """A task for an agent."""

    agent: str = Field(min_length=1, max_length=200)
    prompt: str = Field(
        min_length=1, description="The task, complete: the agent knows nothing else"
    )
    context: str = Field("", description="What it should know besides")
    workspace: str = Field(
        "",
        max_length=4096,
        description="An absolute path on the server's machine, or the id of an upload",
    )
    session: str = Field("", max_length=200, description="A session's name, or `new`")
    timeout_ms: int | None = Field(None, gt=0, le=7 * 24 * 3600 * 1000)
    after: tuple[str, ...] = Field(
        (), max_length=100, description="Runs that must have completed before this one begins"
    )


class AskedQuestion(Frozen):
    """A question that waits for an answer."""

    message_id: str
    run_id: str = Field(description="The run that asks: this one, or one that works for it")
    question: str
    asked: float
    deadline: float | None = Field(description="When the agent goes on without an answer")
    default_answer: str = Field(description="What it goes by then")


class PendingCall(Frozen):
    """A tool call that waits to be allowed."""

    call_id: str
    run_id: str
    tool: str
    input: dict[str, JsonValue]
    approval_by: ApprovalBy
    asked: float
    deadline: float | None = Field(description="When it is rejected by itself")


class SettledQuestion(Frozen):
    """A question that waits no more."""

    message_id: str
    question: str
    asked: float
    status: MessageStatus
    answer: str | None
    answered: float | None
    answered_by: AnsweredBy
    whom: str = Field(description="Who answered, and from where")


class FileChange(Frozen):
    """One thing that differs between the workspace and the agent's copy."""

    path: str
    change: Literal["added", "modified", "deleted", "renamed", "mode"]
    old_path: str = ""
    acts: str = Field("", description="What it does on the machine that it is applied on")
    binary: bool = False
    added_lines: int = 0
    removed_lines: int = 0


class Run(Frozen):
    """A run: where it stands, and all that came of it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: str
    message: str
    project: str = Field(description="The project's folder, for a person; otherwise empty")
    window: str
    prompt: str
    context: str
    workspace: str
    session: str
    parent_run_id: str
    depth: int
    created: float
    ended: float | None
    questions: tuple[AskedQuestion, ...]
    pending_tool_calls: tuple[PendingCall, ...]
    asked_before: tuple[SettledQuestion, ...]
    result: JsonValue = Field(description="The answer: text, or a value that fits its schema")
    partial_text: str = Field(description="What the agent said last, where there is no answer")
    schema_errors: tuple[str, ...]
    attempts: int
    duration_ms: int
    scripted: bool
    cost_usd: float
    estimated_usd: float
    family_usd: float
    family_estimated_usd: float
    usage: Usage
    model: str
    runner: str
    tried: tuple[TriedRunner, ...]
    session_id: str
    session_note: str
    denied_tools: tuple[str, ...]
    denied_hosts: tuple[str, ...]
    failed_mcp_servers: tuple[str, ...]
    changed_files: tuple[FileChange, ...]
    patch: str
    patch_cut: bool = Field(description="The patch is too long for this; /patch has it")
    warnings: tuple[str, ...]
    log_tail: tuple[str, ...]
    unheard: tuple[str, ...]
    newest_event_id: int = Field(
        description="Read before the rest: a stream after it misses nothing"
    )


class RunRow(Frozen):
    """A run in a list."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: str
    window: str
    prompt: str = Field(description="Its beginning")
    session: str
    parent_run_id: str
    depth: int
    created: float
    ended: float | None
    model: str
    runner: str
    cost_usd: float
    estimated_usd: float
    family_usd: float
    input_tokens: int
    output_tokens: int
    duration_ms: int
    scripted: bool = Field(description="A script plays the model: nothing is paid")
    requests: int = Field(description="To the model")
    waiting: int = Field(description="Questions and tool calls of it that wait for a word")
    step: str = Field(description="What it was last seen doing")
    step_kind: str = Field(description="The kind of event that tells so; empty if none does")
    step_at: float | None


class RunPage(Frozen):
    items: tuple[RunRow, ...]
    next_cursor: str | None
    newest_event_id: int


class RunQuery(Frozen):
    status: tuple[RunStatus | Literal["open"], ...] = Field(
        (), description="`open` is all that have not ended; may be given repeatedly"
    )
    agent: str = Field("", max_length=200)
    parent: str = Field("", max_length=64, description="Those that work for this run")
    roots: bool = Field(False, description="Only those that no agent asked for")
    caller: str = Field("", max_length=200, description="Of this caller; for a person")
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: Cursor = ""


class ToldText(Frozen):
    """Something for the agent to hear, at its work or after it."""

    text: str = Field(min_length=1)
    now: bool = Field(False, description="Stop the step that it is at")


class HeardBy(Frozen):
    run_id: str = Field(description="The run that hears it; a new one if this one has ended")


class GivenAnswer(Frozen):
    answer: str = Field(min_length=1)


class CallDecision(Frozen):
    action: Literal["approve", "reject"]
    input: dict[str, JsonValue] | None = Field(None, description="What runs instead")
    why: str = Field("", max_length=4000, description="Of a rejection, for the agent")


class CallDecisions(Frozen):
    decisions: dict[str, CallDecision] = Field(min_length=1, max_length=100)


class InboxItem(Frozen):
    """Something that waits for a word."""

    kind: Literal["question", "approval"]
    run_id: str = Field(description="The run that asks; perhaps one that works for yours")
    agent: str
    caller: str
    asked: float
    deadline: float | None
    message_id: str = ""
    question: str = ""
    default_answer: str = ""
    call_id: str = ""
    tool: str = ""
    input: dict[str, JsonValue] = {}
    approval_by: ApprovalBy = "parent"
    may_decide: bool = Field(description="False: only a person may allow it")


class Inbox(Frozen):
    items: tuple[InboxItem, ...]
    newest_event_id: int


# Events


class EventBody(Frozen):
    """Something that happened in a run."""

    id: int = Field(description="One number for all runs, in the order of what happened")
    run_id: str
    seq: int = Field(description="Counts up within the run")
    at: float
    kind: str
    text: str
    data: dict[str, JsonValue]


class EventGap(Frozen):
    """Events after the place that was asked for were removed, or there is no such place."""

    requested_after_id: int
    oldest_available_id: int
    newest_available_id: int
    resume_hint: Literal["refresh_snapshot_then_resume"] = "refresh_snapshot_then_resume"


class EventPage(Frozen):
    items: tuple[EventBody, ...]
    next_after: int = Field(
        description="Where the next page begins: the last event that was looked at, yours or not. "
        "On /v1/events there is more to read while it is less than newest_event_id, also after a "
        "page without items"
    )
    newest_event_id: int
    gap: EventGap | None = Field(description="null: nothing is missing before these events")
    ended: bool = Field(description="There will be no more of this run")


class EventQuery(Frozen):
    after: int | None = Field(None, ge=0, le=MAX_NUMBER, description="An event's id")
    limit: int = Field(200, ge=1, le=MAX_EVENT_PAGE, description="Of a JSON page")


class RunEventQuery(EventQuery):
    kind: tuple[EventKind, ...] = Field((), description="May be given repeatedly")


# Agents


class AgentBody(Frozen):
    """An agent that can be run."""

    name: str
    description: str
    model: str
    runner: str
    session: bool
    workspace: str
    timeout_ms: int
    max_turns: int
    max_budget_usd: float | None
    allowed_callers: tuple[str, ...]
    tools: tuple[str, ...]
    hosts: tuple[str, ...]
    secrets: tuple[str, ...] = Field(description="Their names")
    servers: tuple[str, ...]
    approval_by: ApprovalBy
    warnings: tuple[str, ...]


class BrokenAgentBody(Frozen):
    name: str
    problems: tuple[str, ...]


class AgentList(Frozen):
    items: tuple[AgentBody, ...]
    broken: tuple[BrokenAgentBody, ...] = Field((), description="For a person")


class ApplyWish(Frozen):
    dry_run: bool = Field(False, description="Only say what would be done")
    allow_acting: bool = Field(
        False, description="Also files that act on the machine; a person has looked at them"
    )


class AppliedBody(Frozen):
    files: tuple[FileChange, ...]
    already: bool = Field(description="The workspace was like that already")
    dry_run: bool
    kept_folders: tuple[str, ...]


class LoginBody(Frozen):
    """Goes with the cookie: a request is the page's with both."""

    key: str = Field(description="For the header X-Orchestrator")


class LoginCode(Frozen):
    code: str = Field(min_length=1, max_length=200)


class PlanQuery(Frozen):
    workspace: str = Field("", max_length=4096, description="As a run would be given it")
    rows: Literal["", "first", "all"] = Field(
        "", description="Also as `orchestrator plan` prints it: its first screen, or all of it"
    )


class PlanBody(BaseModel):
    """What a run would launch: the document of `orchestrator plan --json`. A caller is not told of
    places on the server's machine that it has not named, nor what servers of tools are made of.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    agent: str
    image: str


class ServerBody(BaseModel):
    """A server of tools outside of agents: what its server.yaml says, and how it is used."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    pinned_tools: int | None = Field(description="null if no person has pinned it")
    used_by: tuple[str, ...]


class ServerList(Frozen):
    items: tuple[ServerBody, ...]
    broken: tuple[BrokenAgentBody, ...] = Field((), description="For a person")


# Records


class AgentSession(Frozen):
    """A conversation that is kept, and its container."""

    agent: str
    caller: str
    name: str
    state: str = Field(description="running, ready, resting or stopped")
    conversation: str
    runs: int
    created: float
    used: float
    expires: float


class AgentSessionList(Frozen):
    items: tuple[AgentSession, ...]


class SessionQuery(Frozen):
    caller: str = Field("", max_length=200, description="Whose it is; for a person")


class StoppedBody(Frozen):
    stopped: bool = Field(description="False: it was not running")


class DecisionBody(Frozen):
    """Who was let or refused what."""

    number: int
    at: float
    who: str
    window: str
    act: str
    subject: str
    run_id: str
    allowed: bool
    why: str


class DecisionPage(Frozen):
    items: tuple[DecisionBody, ...]
    next_cursor: str | None


class DecisionQuery(Frozen):
    act: str = Field("", max_length=40)
    run: str = Field("", max_length=64)
    refused: bool = Field(False, description="Only what was refused")
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: Cursor = ""


class CostRow(Frozen):
    name: str
    runs: int
    scripted_runs: int
    requests: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float
    estimated_usd: float


class CostBody(Frozen):
    by: Literal["agent", "day", "model"]
    since: float | None
    rows: tuple[CostRow, ...]
    total: CostRow


class CostQuery(Frozen):
    by: Literal["agent", "day", "model"] = "agent"
    since: float | None = Field(None, ge=0, le=1e12, description="Seconds since 1970")


# The machine


class EngineBody(Frozen):
    address: str
    version: str
    api_version: str


class ContainerBody(Frozen):
    name: str
    status: str
    kind: Literal["disposable", "kept"]
    agent: str
    run_id: str = Field(description="The run that it serves, if it does")
    session: str
    server: str = Field(description="The server of tools that it is, if it is one")
    spare: bool = Field(description="It waits for a run")
    created: float


class QueueBody(Frozen):
    under_way: int
    waiting: int
    max_runs: int
    max_runs_per_agent: int


class DiskBody(Frozen):
    path: str
    used_bytes: int
    free_bytes: int


class MachineBody(Frozen):
    """What the orchestrator has and does on its machine."""

    engine: EngineBody | None
    engine_error: str
    containers: tuple[ContainerBody, ...]
    spares: dict[str, int] = Field(description="Agent -> containers that wait for a run of it")
    queue: QueueBody
    disk: DiskBody
    event_readers: int


class CheckBody(Frozen):
    name: str
    promise: str
    ok: bool
    warning: bool
    detail: str
    advice: str


class DoctorBody(Frozen):
    ok: bool
    error: str
    checks: tuple[CheckBody, ...]


# Workspaces that are sent


class UploadBody(Frozen):
    workspace: str = Field(description="What a run takes as its workspace")
    files: int
    bytes: int
    expires: float
