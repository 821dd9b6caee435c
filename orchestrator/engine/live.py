"""A run under way: what it is, what has happened, and how it can be spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.engine.clock import Clock
from orchestrator.engine.conversation import Conversation
from orchestrator.engine.desk import Desk
from orchestrator.engine.outcome import Outcome
from orchestrator.engine.record import Record
from orchestrator.gateway.parent import Delegate
from orchestrator.plan import Plan


@dataclass
class LiveRun:
    """From the moment it is accepted to its result."""

    plan: Plan
    record: Record
    clock: Clock
    desk: Desk
    outcome: Outcome = field(default_factory=Outcome)
    delegate: Delegate | None = None
    """How its agent runs others, if it may."""
    conversation: Conversation | None = None
    """While there is somebody to talk to."""

    @property
    def run_id(self) -> str:
        return self.plan.task.run_id

    async def steer(self, text: str) -> bool:
        """Stop what the agent is doing and tell it something; False if nobody is there to hear.

        The turn that ends because of it is not the answer; the next one is. CliEnded if the CLI
        has gone.
        """
        if self.conversation is None:
            return False
        self.outcome.steered += 1
        await self.conversation.interrupt()
        await self.conversation.say(text)
        return True
