"""What `/v1` answers, as far as this client reads it; fields that it does not know are let pass."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from orchestrator.domain.exchange import Approval, Question
from orchestrator.domain.result import ChangedFile, RunStatus, TriedRunner, Usage


class RemoteDocument(BaseModel):
    """Of a server that may be newer than we are."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class RemoteQuestion(RemoteDocument):
    message_id: str
    run_id: str
    question: str = ""
    asked: float = 0.0
    deadline: float | None = None
    default_answer: str = ""

    def here(self) -> Question:
        return Question(**{**dict(self), "deadline": self.deadline or 0.0})


class RemoteCall(RemoteDocument):
    """A tool call that waits."""

    call_id: str
    run_id: str
    tool: str = ""
    input: dict[str, object] = {}
    approval_by: str = "parent"
    asked: float = 0.0
    deadline: float | None = None

    def here(self) -> Approval:
        return Approval.model_validate({**dict(self), "deadline": self.deadline or 0.0})


class RemoteRun(RemoteDocument):
    """The envelope of a run."""

    run_id: str
    agent: str
    caller: str = ""
    status: RunStatus
    reason: str = ""
    message: str = ""
    project: str = ""
    window: str = ""
    prompt: str = ""
    context: str = ""
    workspace: str = ""
    session: str = ""
    parent_run_id: str = ""
    depth: int = 0
    created: float = 0.0
    ended: float | None = None
    questions: tuple[RemoteQuestion, ...] = ()
    pending_tool_calls: tuple[RemoteCall, ...] = ()
    result: object = None
    partial_text: str = ""
    schema_errors: tuple[str, ...] = ()
    attempts: int = 0
    duration_ms: int = 0
    scripted: bool = False
    cost_usd: float = 0.0
    estimated_usd: float = 0.0
    family_usd: float = 0.0
    family_estimated_usd: float = 0.0
    usage: Usage = Usage()
    model: str = ""
    runner: str = ""
    tried: tuple[TriedRunner, ...] = ()
    session_id: str = ""
    session_note: str = ""
    denied_tools: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    changed_files: tuple[RemoteFile, ...] = ()
    patch: str = ""
    patch_cut: bool = False
    warnings: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    unheard: tuple[str, ...] = ()
    newest_event_id: int = 0

    @property
    def has_ended(self) -> bool:
        return self.ended is not None

    @property
    def asks(self) -> bool:
        """A caller or a person has to answer or to decide before it goes on."""
        return bool(self.questions or self.pending_tool_calls)


class RemoteFile(RemoteDocument):
    """Something that a run changed."""

    path: str
    change: str
    old_path: str = ""
    acts: str = ""

    def here(self) -> ChangedFile:
        return ChangedFile.model_validate(dict(self))


class RemoteRow(RemoteDocument):
    """A run in a list."""

    run_id: str
    agent: str
    caller: str = ""
    status: RunStatus
    reason: str = ""
    window: str = ""
    prompt: str = ""
    session: str = ""
    parent_run_id: str = ""
    depth: int = 0
    created: float = 0.0
    ended: float | None = None
    model: str = ""
    runner: str = ""
    cost_usd: float = 0.0
    estimated_usd: float = 0.0
    family_usd: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    duration_ms: int = 0
    waiting: int = 0
    step: str = ""
    step_kind: str = ""
    step_at: float | None = None


class RemoteEvent(RemoteDocument):
    """Something that happened in a run."""

    id: int = 0
    run_id: str
    seq: int
    at: float
    kind: str
    text: str = ""
    data: dict[str, object] = {}


class WaitingWord(RemoteDocument):
    """A question, or a tool call, that waits for a caller or a person."""

    kind: str
    run_id: str
    agent: str = ""
    caller: str = ""
    asked: float = 0.0
    deadline: float | None = None
    message_id: str = ""
    question: str = ""
    default_answer: str = ""
    call_id: str = ""
    tool: str = ""
    input: dict[str, object] = {}
    approval_by: str = "parent"


class RemoteAgent(RemoteDocument):
    """An agent that can be run there."""

    name: str
    description: str = ""
    model: str = ""
    runner: str = ""
    session: bool | str = False
    workspace: str = ""
    allowed_callers: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()


class WhoAmI(RemoteDocument):
    """As whom the server knows us."""

    caller: str
    person: bool = False
    project: str = ""
    project_name: str = ""
    version: str = ""


class RemoteUpload(RemoteDocument):
    """A workspace that was sent."""

    workspace: str
    files: int = 0
    bytes: int = 0
    expires: float = 0.0


RemoteRun.model_rebuild()
