"""Decisions that let or refuse something: who decided what about which thing, and why."""

from __future__ import annotations

from typing import Literal, Self

from orchestrator.domain import Frozen
from orchestrator.domain.window import WINDOW, who

AuditAct = Literal[
    "run",  # a caller asks for a run: subject = the agent
    "token",  # a client comes with a token over HTTP: subject = where from
    "call",  # who calls is not known, or says to be another: subject = what was called
    "see",  # a caller asks about a run: subject = the run
    "answer",  # a question is answered: subject = the question
    "approve",  # a tool call is decided: subject = the call and its tool
    "tell",  # a run is told something
    "cancel",  # a run is ended
    "send",  # a caller sends a workspace, or has it removed: subject = its id
    "apply",  # what a run changed is applied: subject = the workspace
    "host",  # an agent wants to reach a host: subject = host:port
    "secret",  # a request of an agent is given a secret: subject = the secret and the host
    "gateway",  # an agent outside asks for something: subject = what, of which server, as whom
    "tool",  # an agent calls a server's tool: subject = server/tool
    "budget",  # an agent has used up its money: subject = the amount
    "trust",  # a project is trusted, or no longer: subject = the project
]


class AuditEntry(Frozen):
    """One decision, written down before the act."""

    number: int = 0
    at: float = 0.0
    project: str = ""
    who: str
    """A caller's name; `operator` for who types commands; `agent NAME` for an agent in its run."""
    window: str = ""
    act: AuditAct
    subject: str = ""
    run_id: str = ""
    allowed: bool
    why: str = ""
    """Why not; or by which rule."""

    @classmethod
    def by(
        cls,
        caller: str | None,
        act: AuditAct,
        *,
        project: str,
        allowed: bool,
        subject: str = "",
        run_id: str = "",
        why: str = "",
    ) -> Self:
        """What a caller does at this moment, from its window; None is the operator."""
        return cls(
            project=project,
            who=who(caller),
            window=WINDOW.get(),
            act=act,
            subject=subject,
            run_id=run_id,
            allowed=allowed,
            why=why,
        )


def stranger(project: str, where: str, why: str) -> AuditEntry:
    """A request that was refused before it was known who calls."""
    return AuditEntry(
        project=project, who="unknown", act="token", subject=where, allowed=False, why=why
    )
