"""A task that could begin now: its agent, its plan, and all that was looked up for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import SecretStr

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.engine.sessions.memory import MemoryText
from orchestrator.engine.spares.spare import spare_key
from orchestrator.plan import Place, Plan, plan
from orchestrator.store.session_rows import SessionKey


@dataclass(frozen=True)
class Needs:
    """What was found for a task."""

    agent: AgentSpec
    task: Task
    place: Place
    variables: Mapping[str, str] = field(repr=False)
    """Of the orchestrator's; agent.md may name some."""
    values: Mapping[str, SecretStr]
    memory: MemoryText

    def planned(self, token: str, conversation: str = "", resume: bool = False) -> Plan:
        """What is made of it, for a stage with this token."""
        return plan(
            self.agent,
            self.task,
            self.place,
            self.variables,
            token,
            {name: value.get_secret_value() for name, value in self.values.items()},
            memory=self.memory.briefing,
            conversation=conversation,
            resume=resume,
        )


@dataclass(frozen=True)
class Prepared(Needs):
    """A task that could begin now."""

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
