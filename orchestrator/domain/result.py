"""RunResult: the same envelope for every ending. Work is never thrown away."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen

RunStatus = Literal[
    "pending",  # waits for its turn
    "running",
    "paused",  # a tool call waits to be approved
    "waiting_parent_reply",  # the agent has asked something
    "parent_replied",  # the answer is on its way to the agent
    "completed",
    "failed",
    "cancelled",
    "timed_out",
]
WAITING: frozenset[RunStatus] = frozenset(("paused", "waiting_parent_reply"))
"""The caller has to answer or decide before it goes on."""

_AT_WORK: tuple[RunStatus, ...] = ("running", "paused", "waiting_parent_reply", "parent_replied")
_END_STATUSES: tuple[RunStatus, ...] = ("completed", "failed", "cancelled", "timed_out")
FINAL: frozenset[RunStatus] = frozenset(_END_STATUSES)

TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    "pending": frozenset(("running", "failed", "cancelled")),
    **{status: FINAL.union(_AT_WORK) - {status} for status in _AT_WORK},
    **{status: frozenset() for status in _END_STATUSES},
}
"""What may follow what; a run that has ended stays as it is."""

Reason = Literal[
    "ok",
    "invalid_output",  # the answer broke the schema until the retries were used up
    "refusal",  # the model would not do it
    "max_tokens",  # the model's answer was cut at its length limit
    "api_auth",  # 401, 403
    "api_rate_limit",  # 429
    "api_overloaded",  # 529, 503
    "api_error",  # any other answer of the model API, or none
    "stream_cut",  # the model's answer broke off
    "max_turns",
    "budget",
    "deadline",
    "cancelled",
    "cli_crashed",  # the CLI ended without a result
    "oom_killed",  # memory ran out
    "disk_full",
    "pids_exhausted",  # no process could be started any more
    "output_limit",  # the CLI wrote more than it may
    "container_killed",  # from outside
    "engine_lost",
    "orchestrator_lost",  # the process that held its wire has died
    "dependency_failed",  # a task that it was to follow did not complete
    "start_failed",  # no container, or no CLI in it
    "machinery",  # a bug of ours
]


class Tokens(Frozen):
    """Of a model, by what they were for."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class Spent(Tokens):
    """Tokens, and what they cost. Where there is an estimate, it is in the tokens as well."""

    cost_usd: float = 0.0
    """Of what the API said that it used: a fact."""
    estimated_usd: float = 0.0
    """Besides, of what it did not say, because an answer broke off or never came."""


class Usage(Spent):
    """What a run took from the model, as the gateway counted it."""

    requests: int = 0
    unanswered_usd: float = 0.0
    """Of the estimate: requests that the API never answered. No budget counts it: nobody knows
    that they cost anything, and a run should not end for money that it has not spent."""

    @property
    def budgeted_usd(self) -> float:
        """What counts against a budget."""
        return self.cost_usd + self.estimated_usd - self.unanswered_usd

    def plus(self, other: Usage) -> Usage:
        """Both together."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields}
        return Usage.model_validate(sums)


class TriedRunner(Frozen):
    """A runner that a run began on and that could not go on, or was not worth beginning on."""

    runner: str
    model: str
    reason: Reason
    message: str = ""
    cost_usd: float = 0.0
    """Of the run's own: what it had cost there."""
    estimated_usd: float = 0.0
    passed_over: bool = False
    """It was not begun on: its provider had just said what holds for every runner."""


class ChangedFile(Frozen):
    """One thing that differs between the workspace and the agent's copy."""

    path: str
    change: Literal["added", "modified", "deleted", "renamed", "mode"]
    old_path: str = ""
    """What it was called before it was renamed."""
    acts: str = ""
    """What it does on this machine when a person or a tool uses the directory; empty for most."""


class RunResult(Frozen):
    """How a run ended, and all that came of it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: Reason
    trace_id: str = ""
    """Of the trace that it is part of, if there is one."""
    message: str = ""
    """For people: what happened and what to do next; empty when all is well."""
    result: object = None
    """The answer: text, or the validated JSON value. None unless completed."""
    partial_text: str = ""
    """What the agent had said last, when there is no answer."""
    schema_errors: tuple[str, ...] = ()
    attempts: int = 0
    """Turns of the CLI: one, and one for each retry, nudge or follow-up."""
    duration_ms: int = 0
    scripted: bool = False
    """A script played the model: nothing was paid, whatever its tokens would have cost."""
    cost_usd: float = 0.0
    """What the model API said that the run used, in dollars: a fact."""
    estimated_usd: float = 0.0
    """Besides, for answers that broke off or never came; 0 when all came to their end."""
    family_usd: float = 0.0
    """`cost_usd` of this run and of all that its agent had others do, each counted once."""
    family_estimated_usd: float = 0.0
    """The same of `estimated_usd`."""
    usage: Usage = Usage()
    model: str = ""
    runner: str = ""
    """The agent CLI that it ran on, at last."""
    tried: tuple[TriedRunner, ...] = ()
    """Those before that could not go on, in order; what they cost is in the figures above."""
    session_id: str = ""
    """What the CLI calls the conversation."""
    session: str = ""
    """The session's name, for an agent that has them; give it again to go on in it."""
    session_note: str = ""
    """What happened to the session since the last call, if it is not what it was."""
    denied_tools: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    changed_files: tuple[ChangedFile, ...] = ()
    """What the agent did to its copy of the workspace."""
    patch: str = ""
    """The same as a diff, unless it is too long; all of it: `orchestrator show RUN --patch`."""
    warnings: tuple[str, ...] = ()
    """What else the caller should know: what was left out, cut, or not as it should be."""
    log_tail: tuple[str, ...] = ()
    """The last things that happened, one line each; empty when all is well."""
