"""A task that could begin now: its agent, its plan, and all that was looked up for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.engine.memory import MemoryText
from orchestrator.engine.session_rows import SessionKey
from orchestrator.engine.spare import spare_key
from orchestrator.plan import Place, Plan


@dataclass(frozen=True)
class Prepared:
    """A task that could begin now: what it needs has been found."""

    agent: AgentSpec
    task: Task
    place: Place
    values: Mapping[str, SecretStr]
    memory: MemoryText
    plan: Plan
    """With a stand-in for the token, which belongs to the stage."""
    versions: tuple[str, ...] = ()
    """What the plan's names stand for now: the image, the directories."""
    at: float = field(default_factory=time.monotonic)
    """When."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value.get_secret_value() for value in self.values.values())

    @property
    def spare_key(self) -> str:
        """The same for all runs that one spare could serve."""
        return spare_key(self.plan.container, self.plan.launch, *self.versions)

    @property
    def made_of(self) -> tuple[str, str]:
        """What spares of one agent have in common, whatever their workspace."""
        return self.agent.digest, "".join(self.versions[:1])

    @property
    def session(self) -> SessionKey:
        return SessionKey(
            agent=self.agent.name, caller=self.task.caller, name=self.task.session or "default"
        )
