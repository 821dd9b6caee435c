"""What passes between a run and its caller: questions, approvals, orders."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen

MessageStatus = Literal[
    "pending_parent_reply",
    "parent_replied",
    "acknowledged_by_subagent",
    "unanswered",  # the agent went on, or ended, without an answer
]

AnsweredBy = Literal["", "caller", "default", "withdrawn"]
"""Who spoke: the caller; nobody in time, so the default counted; nobody, as the agent gave up."""

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
    """When the agent goes on without an answer; 0 while no orchestrator has its run."""
    default_answer: str = ""
    """What it goes by then: the agent's own words, unless it gave none."""
    answer: str | None = None
    answered: float | None = None
    answered_by: AnsweredBy = ""
    whom: str = ""
    """Who answered, and from which window, for people."""


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
    """When it is rejected by itself; 0 while no orchestrator has its run."""
    new_input: dict[str, object] | None = None
    """What runs instead of what was asked for."""
    message: str = ""
    """Why it was rejected, for the agent."""
    whom: str = ""
    """Who decided, and from which window, for people."""
    approval_by: ApprovalBy = "parent"
    """As agent.md said when it was asked."""

    @property
    def approved(self) -> bool:
        return self.decision == "approved"


class Order(Frozen):
    """Something to be done with a run, by the process that holds its wire."""

    order_id: int
    run_id: str
    kind: Literal["cancel", "say", "say_now"]
    """To say something now is to stop what the agent is doing."""
    text: str = ""
    whom: str = ""
    """Who gave it, and from which window, for people."""
