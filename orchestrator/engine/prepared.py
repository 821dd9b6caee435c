"""A task that could begin now: its agent, its plan, and all that was looked up for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import SecretStr

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.task import Task
from orchestrator.domain.tool_lock import Brokered
from orchestrator.engine.sessions.memory import MemoryText
from orchestrator.engine.spares.spare import spare_key, takes_spares
from orchestrator.plan import STAND_IN_CONVERSATION, STAND_IN_TOKEN, Place, Plan, plan
from orchestrator.runners.choice import RunnerWay
from orchestrator.runners.contract import Runner
from orchestrator.runners.known import RUNNERS
from orchestrator.store.session_rows import SessionKey


@dataclass(frozen=True)
class Prepared:
    """What was found for a task, and what is made of it."""

    agent: AgentSpec
    task: Task
    place: Place
    variables: Mapping[str, str] = field(repr=False)
    """Of the orchestrator's; agent.md may name some."""
    values: Mapping[str, SecretStr]
    """Of the agent's secrets, by their names."""
    memory: MemoryText
    way: RunnerWay
    """The runner that was chosen; the agent's model is the one that it has there."""
    others: tuple[RunnerWay, ...] = ()
    """Those that could go on where it cannot, in order."""
    passed_over: tuple[str, ...] = ()
    """Which runners were not taken, and why."""
    brokered: tuple[Brokered, ...] = ()
    """The servers outside that its agent uses."""
    versions: tuple[str, ...] = ()
    """What the plan's names stand for now: the image, the directories, the servers of tools."""
    at: float = field(default_factory=time.monotonic)
    """When it was looked up."""

    @cached_property
    def plan(self) -> Plan:
        """What a run launches, with stand-ins for its token and for a new conversation's id."""
        return self.planned(
            STAND_IN_TOKEN, STAND_IN_CONVERSATION if self.agent.session.keep else ""
        )

    def with_versions(self, versions: tuple[str, ...]) -> Prepared:
        """The same, with what the plan's names stand for; it is not planned a second time."""
        known = replace(self, versions=versions)
        vars(known)["plan"] = self.plan
        return known

    def planned(self, token: str, conversation: str = "", resume: bool = False) -> Plan:
        """What a run launches whose container got this token."""
        return plan(
            self.agent,
            self.task,
            self.place,
            self.variables,
            token,
            {name: value.get_secret_value() for name, value in self.values.items()},
            way=self.way,
            brokered=self.brokered,
            memory=self.memory.briefing,
            conversation=conversation,
            resume=resume,
        )

    @property
    def runner(self) -> Runner:
        return RUNNERS[self.way.runner]

    @property
    def labels(self) -> dict[str, str]:
        """Of the container: it is kept for a session, could serve any run, or serves this one."""
        own = {"orchestrator.agent": self.agent.name}
        if self.agent.session.keep:
            return {**own, "orchestrator.session": self.session.kept}
        if takes_spares(self.agent):
            return {**own, "orchestrator.spare": "yes"}
        return {**own, "orchestrator.run": self.task.run_id}

    @property
    def secrets(self) -> tuple[str, ...]:
        return tuple(value.get_secret_value() for value in self.values.values())

    @property
    def variables_inside(self) -> tuple[str, ...]:
        """Values of the orchestrator's variables that enter the container."""
        return tuple(self.variables.get(name, "") for name in self.plan.secrets_inside)

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
            project=self.task.project,
            agent=self.agent.name,
            caller=self.task.caller,
            name=self.task.session or "default",
        )
