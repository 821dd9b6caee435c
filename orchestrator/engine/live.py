"""A run under way: what it is, what has happened, how it can be spoken to, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from orchestrator.domain.container import MIB
from orchestrator.domain.result import ChangedFile, Reason, RunResult, RunStatus, TriedRunner, Usage
from orchestrator.domain.task import Task
from orchestrator.domain.words import CANCELLED, ended_as
from orchestrator.engine.clock import Clock
from orchestrator.engine.desk import Desk
from orchestrator.engine.prepared import Prepared
from orchestrator.engine.record import Record
from orchestrator.engine.stage import Stage
from orchestrator.engine.tasks.watch import Watched
from orchestrator.errors import CallerRefused, RunRefused
from orchestrator.gateway.model.fallback import OF_THE_PROVIDER, NextWays, next_ways, provider_of
from orchestrator.gateway.model.money.price_table import ProviderName
from orchestrator.gateway.model.verdicts import ModelVerdict
from orchestrator.output import fenced
from orchestrator.plan import Plan
from orchestrator.runners.contract import PARENT
from orchestrator.runners.signs import TurnEnded
from orchestrator.store.session_rows import SessionKey

MAX_ERRANDS = 32
"""Tasks that one run may hand to others."""

WENT_ON = (
    "the orchestrator was killed while the run waited; the agent went on in its session, with what "
    "was answered"
)
BEGAN_AGAIN = (
    "the orchestrator was killed while the run waited; the agent began again, with what was "
    "answered"
)
PUT_ASIDE = (
    "what the agent had changed in its copy by {when}, before the orchestrator was killed, is not "
    "in the result; it is kept in changes/{run_id}.before in the state directory"
)

MAX_AGENT_DEPTH = 3
"""Agents that run agents that run agents."""

RunChild = Callable[[Task], Awaitable[RunResult]]
"""Runs a task that an agent hands to another one, to its end."""


@dataclass(frozen=True)
class Before:
    """The earlier life of a run that is taken up again."""

    usage: Usage
    """What it had used."""
    others: Usage
    """What those had used that worked for it."""
    saved: str = ""
    """When its changes were last saved, if it had any: they are put aside."""


@dataclass
class LiveRun:
    """One run, from the moment its task is accepted to its result."""

    prepared: Prepared
    """As of then. What the run launches may be looked up anew when it gets its slot."""
    record: Record
    clock: Clock
    desk: Desk
    run_child: RunChild
    """How its agent runs others, if agent.md lets it."""
    watched: Watched
    works_for: LiveRun | None = None
    """The run whose agent asked for this one, if one did."""
    scripted: bool = False
    """A script plays the model."""
    before: Before | None = None
    """What it was before its orchestrator was killed, if it was."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    """Cancel it to end the run. Not asyncio's own cancel: that would go through the shields that
    keep the end of a run."""
    cancelled_why: str = CANCELLED
    """What is said of a run that `scope` has ended."""
    began: float = field(default_factory=time.monotonic)

    delegations: int = 0
    """How often its agent has tried to hand something to others."""
    errands: list[LiveRun] = field(default_factory=list)
    """What it has handed to them."""
    _stage: Stage | None = None
    """While its agent can be spoken to."""

    tried: list[TriedRunner] = field(default_factory=list)
    """Runners that could not go on."""
    used_before: Usage = field(default_factory=Usage)
    """What it had used on those."""
    handed_on: bool = False
    """What the agent had changed in its copy there is in the one that it has now."""
    verdict: ModelVerdict = ""
    """What the model API made of its last request, if it failed for that."""
    failed_providers: dict[ProviderName, ModelVerdict] = field(default_factory=dict)
    """Those that it has asked in vain, and what they said."""

    # How it ends, and what comes of it; filled in as it goes on

    status: RunStatus = "failed"
    reason: Reason = "machinery"
    message: str = ""
    result: object = None
    schema_errors: tuple[str, ...] = ()
    attempts: int = 0
    steered: int = 0
    """So many turns are about to end only because the agent was told something, in a CLI that does
    not tell when it takes up what is said."""
    nudged: bool = False
    """One turn is about to be interrupted to have the agent finish."""
    hurried: bool = False
    """The agent was told to finish."""
    partial_text: str = ""
    model: str = ""
    session_id: str = ""
    denied_tools: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    session_name: str = ""
    session_note: str = ""
    changed_files: tuple[ChangedFile, ...] = ()
    patch: str = ""

    def __post_init__(self) -> None:
        if self.works_for is not None:
            self.works_for.errands.append(self)

    @property
    def plan(self) -> Plan:
        return self.prepared.plan

    @property
    def run_id(self) -> str:
        return self.prepared.task.run_id

    @property
    def session(self) -> SessionKey | None:
        """Which it runs in, if its agent has sessions."""
        return self.prepared.session if self.prepared.task.session else None

    # Its end

    def cancel(self, why: str = CANCELLED) -> None:
        """End the run; the first reason is the one that is kept."""
        if not self.scope.cancel_called:
            self.cancelled_why = why
            self.scope.cancel()

    @property
    def decided(self) -> bool:
        return self.status == "completed" or bool(self.message)

    def fail(self, reason: Reason, message: str, status: RunStatus = "failed") -> None:
        self.status, self.reason, self.message = status, reason, message

    @property
    def may_fall_back(self) -> bool:
        """Another runner could go on with it, in the time and for the money that are left."""
        unlucky = self.verdict in OF_THE_PROVIDER
        not_begun = bool(self.tried) and self.reason == "start_failed"
        if self.status == "completed" or self.hurried or not (unlucky or not_begun):
            return False
        broke = self.budget_left is not None and self.budget_left <= 0
        late = self.clock.spent >= self.clock.seconds
        return bool(self.prepared.others) and not broke and not late

    def next_ways(self) -> NextWays:
        """The runners that could go on with it, and those that could not for what its providers
        have said.
        """
        if self.verdict in OF_THE_PROVIDER:
            self.failed_providers[provider_of(self.prepared.way)] = self.verdict
        return next_ways(self.prepared.others, self.failed_providers)

    def fall_back(self, prepared: Prepared, passed_over: Sequence[TriedRunner] = ()) -> None:
        """Begin again on the next runner, and not on those."""
        way, usage = self.prepared.way, self.usage
        tried = TriedRunner(
            runner=way.runner,
            model=way.model,
            reason=self.reason,
            message=self.record.clean(self.message),
            cost_usd=0.0 if self.scripted else round(usage.cost_usd, 6),
            estimated_usd=0.0 if self.scripted else round(usage.estimated_usd, 6),
        )
        self.tried += (tried, *passed_over)
        self.record.note(
            "fallback",
            f"{way.runner} cannot go on ({tried.message}); {prepared.way.runner} does",
            runner=way.runner,
            next=prepared.way.runner,
            reason=tried.reason,
        )
        self.used_before, self.usage = self.used_before.plus(usage), Usage()
        self.prepared = prepared
        self.status, self.reason, self.message = "failed", "machinery", ""
        self.verdict, self.handed_on, self.steered, self.nudged = "", False, 0, False

    def new_attempt(self) -> None:
        """The agent begins a turn that may be the answer."""
        self.attempts += 1

    def is_interim(self, ended: TurnEnded) -> bool:
        """Whether a turn ended before the agent had heard all that it was told: then the next one
        is the answer.
        """
        if self.steered:
            self.steered -= 1
            return True
        if ended.interrupted and self.nudged:
            self.nudged = False
            return True
        return ended.more

    def check(self, schema_errors: tuple[str, ...]) -> bool:
        """Whether an answer is as its schema says; why not is kept for the envelope."""
        self.schema_errors = schema_errors
        return not schema_errors

    def complete(self, result: object, reason: Reason = "ok", message: str = "") -> None:
        self.status, self.reason, self.message, self.result = "completed", reason, message, result

    # Its agent

    @contextmanager
    def asking_model(self) -> Iterator[None]:
        """In this block a request of its agent to the model is under way: the agent is at work,
        though a CLI may not say so before the model has answered.
        """
        if self._stage is not None:
            self._stage.conversation.at_work.set()
        with self.clock.at_work():
            yield

    @contextmanager
    def on_stage(self, stage: Stage) -> Iterator[None]:
        """In this block the run has the stage's CLI for itself, and its agent can be spoken to."""
        conversation = stage.conversation
        conversation.bind(self.record, self.prepared.agent.resources.output_mb * MIB)
        self._stage = stage
        try:
            yield
        finally:
            self._stage = None  # what the next run spends there is none of ours
            self.partial_text = conversation.last_text
            self.model = conversation.ready.model
            self.session_id = conversation.ready.session_id
            self.denied_tools = tuple(conversation.denied)
            agent = self.prepared.agent
            servers = {PARENT, *(server.name for server in agent.mcp_servers)}
            servers |= {use.use for use in agent.server_uses}
            failed = conversation.failed_servers
            self.failed_mcp_servers = tuple(name for name in failed if name in servers)
            self.note_use(stage)

    def note_use(self, stage: Stage) -> None:
        """Take from the gateway what the run has used, and where it was not let."""
        self.usage = stage.reach.model.bill.usage
        self.denied_hosts = stage.reach.denied_hosts

    def note_changes(self, files: tuple[ChangedFile, ...], patch: str) -> None:
        """What the agent did to its copy of the workspace."""
        self.changed_files, self.patch = files, patch

    def joined(self, note: str, *, goes_on: bool) -> None:
        """The run has its session; `note` tells what became of the conversation of before, which
        goes on or does not.
        """
        self.session_name, self.session_note = self.prepared.session.name, note
        if note:
            self.record.note("warning", note)
        self.taken_up(goes_on=goes_on)

    def taken_up(self, *, goes_on: bool) -> None:
        """Tell how a run goes on that had a life before: in its conversation, or from the start."""
        if self.before is None:
            return
        self.record.note("warning", WENT_ON if goes_on else BEGAN_AGAIN)
        if self.before.saved and not goes_on:
            aside = PUT_ASIDE.format(when=self.before.saved, run_id=self.run_id)
            self.record.note("warning", aside)

    @property
    def last_text(self) -> str:
        """What its agent said last, whole or not."""
        return self.partial_text if self._stage is None else self._stage.conversation.last_text

    @property
    def can_hear(self) -> bool:
        """Its agent is at work: there is something to interrupt, and an agent to tell. A CLI that
        has begun a turn, and asked no model yet, passes over an interruption; and of two messages
        that come together it makes one turn.
        """
        if self._stage is None or self.steered:
            return False
        conversation = self._stage.conversation
        at_work = conversation.at_work.is_set() and conversation.in_turn
        return at_work and self._stage.reach.model.bill.begun

    async def steer(self, text: str, *, now: bool = False) -> bool:
        """Tell the agent something; False if it cannot hear. CliEnded if the CLI has gone.

        It hears it after the step that is under way, a tool call or a question; or `now`, which
        stops that step. A CLI that could not tell when it has heard it is always stopped.
        """
        if self._stage is None or not self.can_hear:
            return False
        conversation = self._stage.conversation
        if not conversation.announces:
            self.steered += 1
        if now or not conversation.announces:
            await _stop(self._stage)
        await conversation.say(text)
        return True

    async def hurry(self, text: str) -> None:
        """Stop it and have it end; if it ends by itself in this moment, all the better."""
        if self._stage is not None:
            self.nudged = self.hurried = True
            await _stop(self._stage)
            await self._stage.conversation.say(text, awaited=False)

    # Its money, and what it hands to others

    @property
    def budget_usd(self) -> float | None:
        """What its agent may spend, itself or through others; None for no limit."""
        budgets = (self.prepared.agent.max_budget_usd, self.prepared.task.budget_usd)
        return min((budget for budget in budgets if budget is not None), default=None)

    @property
    def own_budget_usd(self) -> float | None:
        """What is left of it for the agent itself, after an earlier life and other runners."""
        if self.budget_usd is None:
            return None
        spent = self.used_before.budgeted_usd
        if self.before is not None:
            spent += self.before.usage.budgeted_usd + self.before.others.budgeted_usd
        return max(0.0, self.budget_usd - spent)

    @property
    def total_usage(self) -> Usage:
        """What it has used, with its earlier life and on other runners."""
        usage = self.usage.plus(self.used_before)
        return usage if self.before is None else usage.plus(self.before.usage)

    @property
    def spent_usd(self) -> float:
        """What counts against its budget so far, with all that it has handed to others."""
        return sum(usage.budgeted_usd for usage in self.family())

    def family(self) -> Iterator[Usage]:
        """What it has used so far, and all that it has handed to others; each once."""
        yield self.usage if self._stage is None else self._stage.reach.model.bill.usage
        yield self.used_before
        if self.before is not None:
            yield from (self.before.usage, self.before.others)
        for errand in self.errands:
            yield from errand.family()

    @property
    def budget_left(self) -> float | None:
        """What may still be spent now, of its own budget and of those that it works for."""
        left = [] if self.budget_usd is None else [self.budget_usd - self.spent_usd]
        above = None if self.works_for is None else self.works_for.budget_left
        return min(left if above is None else [*left, above], default=None)

    async def delegate(self, agent: str, prompt: str, context: str) -> str:
        """Have another agent do something for this one, in what is left of its time and money."""
        mine, task = self.prepared.agent, self.prepared.task
        if agent not in mine.subagents:
            raise CallerRefused(f"you may run {', '.join(mine.subagents)}, and not {agent!r}")
        if task.depth >= MAX_AGENT_DEPTH:
            raise CallerRefused(f"agents run agents {MAX_AGENT_DEPTH} deep at most; do it yourself")
        self.delegations += 1
        if self.delegations > MAX_ERRANDS:
            raise CallerRefused(f"that were {MAX_ERRANDS} tasks for others; do the rest yourself")
        if self.budget_left is not None and self.budget_left <= 0:
            raise CallerRefused("the budget is spent; answer with what you have")
        child = Task(
            agent=agent,
            prompt=self.record.clean(prompt),
            context=self.record.clean(context),
            caller=mine.name,
            budget_usd=self.budget_left,
            timeout_seconds=max(1.0, self.clock.seconds - self.clock.spent),
            parent_run_id=task.run_id,
            traceparent=task.traceparent,
            depth=task.depth + 1,
        )
        self.record.note("delegated", f"{agent}: {prompt}", run_id=child.run_id)
        result = await self.run_child(child)
        if result.status != "completed":
            said = fenced(result.message, agent, child.run_id)
            raise RunRefused(f"{agent} {ended_as(result.status, result.reason)}:\n{said}")
        return fenced(result.result, agent, child.run_id)


async def _stop(stage: Stage) -> None:
    await stage.conversation.interrupt()
    stage.reach.model.bill.told()
