"""Who calls, and may they? Pure."""

from __future__ import annotations

from orchestrator.domain.agent import AgentSpec
from orchestrator.errors import CallerRefused


def check_caller(agent: AgentSpec, caller: str) -> None:
    """CallerRefused unless the agent's author lets this caller run it."""
    if caller not in agent.allowed_callers:
        allowed = ", ".join(agent.allowed_callers) or "nobody"
        raise CallerRefused(
            f"agent {agent.name!r} does not allow caller {caller!r}; it allows {allowed}"
        )
