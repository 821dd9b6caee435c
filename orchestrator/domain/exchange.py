"""What passes between a run and its caller: questions, approvals, orders."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen

MessageStatus = Literal["pending_parent_reply", "parent_replied", "acknowledged_by_subagent"]

Decision = Literal["pending", "approved", "rejected", "timed_out"]

ApprovalBy = Literal["parent", "user"]
"""Who may allow a tool call: the caller, or only a person."""


class Question(Frozen):
    """Something that the agent asked, and what it was told."""

    message_id: str
    run_id: str
    question: str
    status: MessageStatus = "pending_parent_reply"
    asked: float = 0.0
    deadline: float = 0.0
    """When it is answered by itself."""
    default_answer: str = ""
    """What the answer is then."""
    answer: str | None = None
    answered: float | None = None


class Approval(Frozen):
    """A tool call that waits, or waited, for the caller to allow it."""

    call_id: str
    """As the CLI calls it."""
    run_id: str
    tool: str
    input: dict[str, object] = {}
    decision: Decision = "pending"
    asked: float = 0.0
    deadline: float = 0.0
    """When it is rejected by itself."""
    new_input: dict[str, object] | None = None
    """What runs instead of what was asked for."""
    message: str = ""
    """Why it was rejected, for the agent."""
    approval_by: ApprovalBy = "parent"
    """As agent.md said when it was asked."""

    @property
    def approved(self) -> bool:
        return self.decision == "approved"


class Order(Frozen):
    """Something to be done with a run, by the process that holds its wire."""

    order_id: int
    run_id: str
    kind: Literal["cancel", "say"]
    text: str = ""
