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
from orchestrator.store.session_rows import SessionKey


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
    works_for: LiveRun | None = None
    """The run whose agent asked for it, if one did."""
    delegations: int = 0
    """How often it has tried to hand something to others."""
    errands: list[LiveRun] = field(default_factory=list)
    """What it has handed to them."""
    reach: Reach | None = None
    conversation: Conversation | None = None
    """While there is somebody to talk to."""

    @property
    def run_id(self) -> str:
        return self.plan.task.run_id

    @property
    def session(self) -> SessionKey | None:
        """Which it runs in, if its agent has sessions."""
        task = self.plan.task
        if not task.session:
            return None
        return SessionKey(agent=task.agent, caller=task.caller, name=task.session)

    @property
    def budget_usd(self) -> float | None:
        """What its agent may spend, itself or through others; None for no limit."""
        budgets = (self.plan.agent.max_budget_usd, self.plan.task.budget_usd)
        return min((budget for budget in budgets if budget is not None), default=None)

    @property
    def spent_usd(self) -> float:
        """What it has cost so far, with all that it has handed to others."""
        usage = self.outcome.usage if self.reach is None else self.reach.model.bill.usage
        return usage.cost_usd + sum(errand.spent_usd for errand in self.errands)

    @property
    def budget_left(self) -> float | None:
        """What may still be spent now, of its own budget and of those that it works for."""
        left = [] if self.budget_usd is None else [self.budget_usd - self.spent_usd]
        above = None if self.works_for is None else self.works_for.budget_left
        return min(left if above is None else [*left, above], default=None)

    @property
    def can_hear(self) -> bool:
        """Its agent is at work: there is something to interrupt, and somebody to tell. A CLI that
        has begun a turn, and asked no model yet, passes over an interruption; and of two messages
        that come together it makes one turn.
        """
        if self.conversation is None or self.reach is None or self.outcome.steered:
            return False
        at_work = self.conversation.at_work.is_set() and self.conversation.in_turn
        return at_work and self.reach.model.bill.begun

    async def steer(self, text: str) -> bool:
        """Stop what the agent is doing and tell it something; False if it cannot hear.

        The turn that is under way is not the answer; the next one is. CliEnded if the CLI has gone.
        """
        if self.conversation is None or not self.can_hear:
            return False
        self.outcome.steered += 1
        await self._interject(self.conversation, text)
        return True

    async def hurry(self, text: str) -> None:
        """The same to have it end; if it ends by itself in this moment, all the better."""
        if self.conversation is not None:
            self.outcome.nudged = self.outcome.hurried = True
            await self._interject(self.conversation, text)

    async def _interject(self, conversation: Conversation, text: str) -> None:
        await conversation.interrupt()
        await conversation.say(text)
