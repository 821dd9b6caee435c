"""A run under way: what it is, what has happened, and how it can be spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.engine.clock import Clock
from orchestrator.engine.conversation import Conversation
from orchestrator.engine.desk import Desk
from orchestrator.engine.outcome import Outcome
from orchestrator.engine.record import Record
from orchestrator.gateway.parent import Delegate
from orchestrator.gateway.reach import Reach
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
    errands: int = 0
    errands_usd: float = 0.0
    """What it has handed to others, and what that has cost."""
    reach: Reach | None = None
    conversation: Conversation | None = None
    """While there is somebody to talk to."""

    @property
    def run_id(self) -> str:
        return self.plan.task.run_id

    @property
    def budget_left(self) -> float | None:
        """What its agent may still spend, itself or through others; None for no limit."""
        budgets = (self.plan.agent.max_budget_usd, self.plan.task.budget_usd)
        limits = [budget for budget in budgets if budget is not None]
        if not limits:
            return None
        spent = self.reach.model.usage.cost_usd if self.reach is not None else 0.0
        return max(0.0001, min(limits) - spent - self.errands_usd)

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
