"""RunResult: the same envelope for every ending. Work is never thrown away."""

from __future__ import annotations

from typing import Literal

from orchestrator.domain import Frozen

RunStatus = Literal["pending", "running", "completed", "failed", "cancelled", "timed_out"]
FINAL = frozenset(("completed", "failed", "cancelled", "timed_out"))

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
    "out_of_memory",
    "container_killed",  # by somebody outside
    "engine_lost",
    "start_failed",  # no container, or no CLI in it
    "machinery",  # a bug of ours
]


class Usage(Frozen):
    """What a run took from the model, as the gateway counted it."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0


class RunResult(Frozen):
    """How a run ended, and all that came of it."""

    run_id: str
    agent: str
    caller: str
    status: RunStatus
    reason: Reason
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
    cost_usd: float = 0.0
    usage: Usage = Usage()
    model: str = ""
    session_id: str = ""
    denied_tools: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    changed_files: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    """The last things that happened, one line each; empty when all is well."""
