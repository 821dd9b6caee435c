"""How a run ends, and what comes of it; filled in as it goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from orchestrator.domain.result import ChangedFile, Reason, RunStatus, Usage
from orchestrator.engine.conversation import Conversation
from orchestrator.gateway.reach import Reach


@dataclass
class Outcome:
    """How it ends, and what comes of it; filled in as the run goes on."""

    status: RunStatus = "failed"
    reason: Reason = "machinery"
    message: str = ""
    result: object = None
    schema_errors: tuple[str, ...] = ()
    attempts: int = 0
    steered: int = 0
    """So many turns are about to end only because the agent was told something."""
    nudged: bool = False
    """One turn is about to be interrupted to have the agent finish."""
    hurried: bool = False
    """The agent was told to finish."""
    partial_text: str = ""
    model: str = ""
    session_id: str = ""
    denied_tools: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    session: str = ""
    session_note: str = ""
    changed_files: tuple[ChangedFile, ...] = ()
    patch: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def decided(self) -> bool:
        return self.status == "completed" or bool(self.message)

    def fail(self, reason: Reason, message: str, status: RunStatus = "failed") -> None:
        self.status, self.reason, self.message = status, reason, message

    def note(self, conversation: Conversation) -> None:
        """Take from the conversation what the envelope tells of it."""
        self.partial_text = conversation.last_text
        self.model = conversation.ready.model
        self.session_id = conversation.ready.session_id
        self.denied_tools = tuple(conversation.denied)
        self.failed_mcp_servers = tuple(conversation.failed_servers)

    def note_use(self, reach: Reach) -> None:
        """Take from the gateway what the run has used, and where it was not let."""
        self.usage = reach.model.bill.usage
        self.denied_hosts = reach.denied_hosts
