"""Task: one thing to be done by one agent, as its caller asked for it."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from orchestrator.domain import Frozen
from orchestrator.domain.agent import Rule
from orchestrator.domain.names import check_name
from orchestrator.domain.window import trace_id_of, valid_traceparent


def new_run_id() -> str:
    """Short enough to type, long enough not to guess."""
    return "r" + secrets.token_hex(5)


def _check_session(text: str) -> str:
    return check_name(text) if text else text


class Wish(Frozen):
    """An agent that a caller makes at call time, out of the one that the task names."""

    description: str = ""
    """The task in a few words, for lists."""
    tools: tuple[Rule, ...]
    """What it may use of what the agent may."""
    max_steps: Annotated[int, Field(ge=1, le=1000)] = 30
    sandboxed: bool = True
    """False: what changes something waits for the caller's word."""
    unasked: tuple[str, ...] = ()
    """Tools that need not wait all the same, if the agent's own rules do not have them wait."""
    model: str = ""
    """Which of the models that the agent may have; the first of them if empty."""


class Once(Frozen):
    """Under which key a task was asked for: however often that comes, one run is made."""

    asker: str
    """Who asks: a caller, or "" for the operator."""
    method: str
    path: str
    key: str
    sha256: str
    """Of what was asked."""


class Task(Frozen):
    """What to do, for whom, where."""

    agent: str
    prompt: Annotated[str, StringConstraints(min_length=1)]
    context: str = ""
    """What the caller wants the agent to know besides."""
    workspace: Path | None = None
    """A directory to show the agent, in the way its agent.md says."""
    session: Annotated[str, AfterValidator(_check_session)] = ""
    """For a session agent: the name of a session; the usual one if empty."""
    caller: str = "main"
    project: str = ""
    """Whose run it is, as Settings has it; the service fills it in."""
    window: str = ""
    """Which client of the caller began it, for people to tell apart."""
    traceparent: Annotated[str, AfterValidator(valid_traceparent)] = ""
    """Its place in a trace: that of the caller, and its own once it is accepted."""
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """Less than the agent's own timeout, if that is too long for the caller."""
    after: tuple[str, ...] = ()
    """Runs that must have completed before this one begins."""
    parent_run_id: str = ""
    """The run whose agent asked for this one; or, in a session, the run that it goes on from."""
    budget_usd: Annotated[float, Field(gt=0)] | None = None
    """Less than the agent's own budget, if the run that asks has less left."""
    depth: Annotated[int, Field(ge=0)] = 0
    """How many agents stand between this task and the caller from outside."""
    wish: Wish | None = None
    """The agent is the one that is named, made as small as this says."""
    once: Once | None = None
    thread: str = ""
    """The line of runs, one at a time, that a client has begun for this one and others."""
    run_id: str = Field(default_factory=new_run_id)

    @property
    def trace_id(self) -> str:
        """Of the trace that it is part of, if it is of one."""
        return trace_id_of(self.traceparent)

    @property
    def message(self) -> str:
        """What the agent is told first."""
        if not self.context:
            return self.prompt
        return f"Context:\n{self.context}\n\nTask:\n{self.prompt}"
