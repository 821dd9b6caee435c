"""Plan -> RunResult: one container, one CLI, as many turns as it takes, and always an envelope."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field

import anyio
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt

from orchestrator import output
from orchestrator.containers.runtime import Container
from orchestrator.domain.container import MIB
from orchestrator.domain.result import ChangedFile, Reason, RunResult, RunStatus, Usage
from orchestrator.engine import exhaustion
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.copies import Copies
from orchestrator.engine.record import Record
from orchestrator.engine.stage import Stage
from orchestrator.errors import CallerError, OrchestratorError
from orchestrator.gateway.model import ModelAccess
from orchestrator.gateway.reach import Reach
from orchestrator.plan import Plan
from orchestrator.runners.signs import TurnEnded
from orchestrator.workspace.tree import Snapshot

log = logging.getLogger(__name__)

NUDGE_SHARE = 0.2
"""The part of a run's time that is left when the agent is told to finish."""
NUDGE_SECONDS = 60.0
"""And at most so much of it."""

LAST_CALL_SHARE = 0.05
LAST_CALL_SECONDS = 5.0
"""When so much is left, whatever is under way is interrupted."""

FLUSH_SECONDS = 0.5
"""How often events go to the store while a run is under way."""

HAND_BACK_SECONDS = 60.0
"""For the agent's changes to be read out of its container."""

TELL_SECONDS = 2.0
"""After a CLI has died, for the engine to say that it was for want of memory."""

NUDGE = (
    "Time is nearly up. Stop working now and give your final answer at once, with what you have, "
    "in the form that was asked for. Do not use any more tools."
)


class _Invalid(Exception):
    """An answer that breaks the schema."""


@dataclass
class Outcome:
    """How it ends, and what comes of it; filled in as the run goes on."""

    status: RunStatus = "failed"
    reason: Reason = "machinery"
    message: str = ""
    result: object = None
    schema_errors: tuple[str, ...] = ()
    attempts: int = 0
    nudged: bool = False
    """The turn under way is about to be interrupted, only to ask for the answer."""
    hurried: bool = False
    """The agent was told to finish."""
    partial_text: str = ""
    model: str = ""
    session_id: str = ""
    denied_tools: tuple[str, ...] = ()
    failed_mcp_servers: tuple[str, ...] = ()
    denied_hosts: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    session: str = ""
    session_note: str = ""
    changed_files: tuple[ChangedFile, ...] = ()
    patch: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def decided(self) -> bool:
        return self.status == "completed" or bool(self.message)

    def fail(self, reason: Reason, message: str, status: RunStatus = "failed") -> None:
        self.status, self.reason, self.message = status, reason, message

    def note(self, conversation: Conversation) -> None:
        """Take from the conversation what the envelope tells of it."""
        self.partial_text = conversation.last_text
        self.model = conversation.ready.model
        self.session_id = conversation.ready.session_id
        self.denied_tools = tuple(conversation.denied)
        self.failed_mcp_servers = tuple(conversation.failed_servers)

    def note_use(self, reach: Reach) -> None:
        """Take from the gateway what the run has used, and where it was not let."""
        self.usage = reach.model.usage
        self.denied_hosts = reach.denied_hosts


async def run_plan(
    plan: Plan,
    staged: AbstractAsyncContextManager[Stage],
    record: Record,
    outcome: Outcome,
    copies: Copies,
) -> None:
    """Carry out a plan; how it ends is in the outcome. Only cancellation goes through, and
    errors of the caller, who can mend them.
    """
    try:
        work = _Work(plan, record, outcome, copies)
        async with copies.watched_git(plan, record), AsyncExitStack() as held:
            try:
                with anyio.move_on_after(plan.timeout_seconds) as limit:
                    await work.do(await held.enter_async_context(staged))
                if limit.cancelled_caught and not outcome.decided:
                    outcome.fail("deadline", _too_late(plan), "timed_out")
            finally:
                await work.hand_back()
        work.settle()
    except CallerError:
        raise
    except OrchestratorError as exc:
        if outcome.decided:  # the end was clear before the clearing up went wrong
            record.note("warning", str(exc))
        else:
            outcome.fail("start_failed", str(exc))
    except Exception:
        log.exception("run %s", plan.task.run_id)
        if not outcome.decided:
            outcome.fail("machinery", "the orchestrator failed; its log says more")


class _Work:
    """What is done on one stage: a copy of the workspace in, a conversation, changes out."""

    def __init__(self, plan: Plan, record: Record, outcome: Outcome, copies: Copies) -> None:
        self._plan = plan
        self._record = record
        self._outcome = outcome
        self._copies = copies
        self._snapshot: Snapshot | None = None
        self._stage: Stage | None = None

    async def do(self, stage: Stage) -> None:
        plan, record, outcome = self._plan, self._record, self._outcome
        self._stage = stage
        conversation = stage.conversation
        conversation.bind(record, plan.agent.resources.output_mb * MIB)
        record.note("started", f"{plan.launch.argv[0]} in {stage.container.name}")
        try:
            await self._copy_in(stage.container)  # while the CLI starts
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_keep_flushing, record)
                tasks.start_soon(_keep_time, plan, conversation, record, outcome)
                if self._snapshot is not None:
                    tasks.start_soon(self._watch_disk, stage, tasks.cancel_scope)
                await _converse(plan, stage, record, outcome)
                tasks.cancel_scope.cancel()
        finally:
            outcome.note(conversation)
            outcome.note_use(stage.reach)
            if _in_trouble(stage, outcome):
                stage.strain = await exhaustion.warn(stage.container, record, stage.strain)

    def settle(self) -> None:
        """Count what was still under way when the conversation ended."""
        if self._stage is not None and not self._stage.shared:
            self._outcome.note_use(self._stage.reach)

    async def _watch_disk(self, stage: Stage, work: anyio.CancelScope) -> None:
        limit = self._plan.agent.resources.disk_mb * MIB
        hit = await exhaustion.watch_disk(stage.container, limit)
        self._outcome.fail(hit.reason, hit.message)
        work.cancel()

    async def _copy_in(self, container: Container) -> None:
        if self._plan.copies_workspace:
            self._snapshot = await self._copies.bring(self._plan, container, self._record)

    async def hand_back(self) -> None:
        """What the agent changed in its copy, whatever became of the run."""
        if self._snapshot is None or self._stage is None:
            return
        with anyio.move_on_after(HAND_BACK_SECONDS, shield=True) as limit:
            try:
                handed = await self._copies.hand_back(
                    self._plan, self._stage.container, self._snapshot, self._record
                )
            except OrchestratorError as exc:
                self._record.note("warning", f"the agent's changes are lost: {exc}")
            else:
                self._outcome.changed_files = handed.changes.files
                self._outcome.patch = handed.patch
        if limit.cancelled_caught:
            self._record.note("warning", "the agent's changes took too long to read, and are lost")


def _in_trouble(stage: Stage, outcome: Outcome) -> bool:
    """Whether a limit may have been hit: asking takes a while, and most runs hit none."""
    troubled = outcome.status != "completed" or stage.conversation.tools_failed
    return troubled or stage.container.fate.out_of_memory.is_set()


async def _converse(plan: Plan, stage: Stage, record: Record, outcome: Outcome) -> None:
    """Turn after turn until there is an answer, or a reason why there is none. Raises nothing."""
    conversation = stage.conversation
    message = plan.first_message
    policy = AsyncRetrying(
        stop=stop_after_attempt(1 + plan.agent.retries),
        retry=retry_if_exception_type(_Invalid),
    )
    try:
        async for attempt in policy:
            with attempt:
                outcome.attempts += 1
                await conversation.say(message)
                ended = await _verdict(conversation, outcome)
                if not _answered(ended, plan, stage.reach.model, outcome):
                    message = output.feedback(outcome.schema_errors, plan.agent.output_schema)
                    record.note("schema_failed", "; ".join(outcome.schema_errors))
                    await record.flush()
                    raise _Invalid
    except RetryError:
        outcome.fail(
            "invalid_output",
            f"{plan.agent.name} answered {outcome.attempts} times, and never as its schema says; "
            "its last answer is in partial_text",
        )
    except CliEnded:
        await _explain_end(stage.container, conversation, outcome)


async def _verdict(conversation: Conversation, outcome: Outcome) -> TurnEnded:
    """The end of the turn; an interruption that was only to say "finish" is not one."""
    while True:
        ended = await conversation.turn()
        if not (ended.interrupted and outcome.nudged):
            return ended
        outcome.nudged = False  # the next turn is the answer to the nudge
        outcome.attempts += 1


def _answered(ended: TurnEnded, plan: Plan, access: ModelAccess, outcome: Outcome) -> bool:
    """Fill in the outcome from a turn's verdict; False when the answer has to be sent back."""
    if access.budget_exhausted and ended.reason != "ok":
        outcome.fail(
            "budget",
            f"the run has cost ${access.usage.cost_usd:.4f} of ${access.budget_usd:.4f}; "
            "raise max_budget_usd, or ask for less",
        )
        return True
    if ended.interrupted and not outcome.hurried:
        outcome.fail("cli_crashed", f"the CLI gave up in the middle of a turn: {ended.text}")
        return True
    if ended.interrupted:
        outcome.fail("deadline", _too_late(plan), "timed_out")
        return True
    if ended.reason != "ok":
        outcome.fail(ended.reason, ended.text or _MESSAGES.get(ended.reason, ended.reason))
        return True
    outcome.schema_errors = ()
    value: object = ended.text
    if plan.agent.output_format == "json":
        answer = output.read_answer(ended.text, plan.agent.output_schema)
        if answer.errors:
            outcome.schema_errors = answer.errors
            return False
        value = answer.value
    outcome.status, outcome.reason, outcome.result = "completed", "ok", value
    if outcome.hurried:
        outcome.reason = "deadline"
        outcome.message = "time was nearly up: this is what the agent had by then"
    return True


def _too_late(plan: Plan) -> str:
    return (
        f"{plan.agent.name} was not done after {plan.timeout_seconds:.0f} s; what it had said last "
        "is in partial_text. Ask for less, or raise timeout_ms"
    )


_MESSAGES: dict[str, str] = {
    "stream_cut": "the model's answer broke off",
    "refusal": "the model refused",
    "max_turns": "the agent used up its turns; raise max_turns, or ask for less",
}


async def _keep_time(
    plan: Plan, conversation: Conversation, record: Record, outcome: Outcome
) -> None:
    """A soft deadline first: interrupt and ask for what there is; then interrupt for good."""
    total = plan.timeout_seconds
    nudge_at = total - min(NUDGE_SECONDS, NUDGE_SHARE * total)
    last_call_at = total - min(LAST_CALL_SECONDS, LAST_CALL_SHARE * total)
    spent = time.monotonic() - outcome.began
    try:
        await anyio.sleep(max(0.0, nudge_at - spent))
        await conversation.at_work.wait()  # an interrupt before the first turn stops nothing
        record.note("nudged", f"{total - nudge_at:.0f} s are left")
        outcome.nudged = outcome.hurried = True
        await conversation.interrupt()
        await conversation.say(NUDGE)
        await anyio.sleep(last_call_at - nudge_at)
        record.note("interrupted", "time is up")
        await conversation.interrupt()
    except CliEnded:
        pass  # whoever waits for the turn finds out


async def _keep_flushing(record: Record) -> None:
    while True:
        await anyio.sleep(FLUSH_SECONDS)
        await record.flush()


async def _explain_end(container: Container, conversation: Conversation, outcome: Outcome) -> None:
    """The CLI is gone without a verdict: find out whose doing that was."""
    if conversation.wrote_too_much:
        outcome.fail("output_limit", _TOO_MUCH_OUTPUT)
        return
    with anyio.move_on_after(TELL_SECONDS):
        await container.fate.out_of_memory.wait()
    if container.wire.ended is not None:
        failure = await container.failure()
        reason: Reason = "engine_lost"
        message = failure.message if failure else "the container ended"
        if failure is not None and failure.whose == "memory":
            reason = "oom_killed"
        elif failure is not None and failure.whose == "machinery":
            reason = "machinery"
        elif container.fate.exit_code in (137, 143):
            reason = "container_killed"
        outcome.fail(reason, message)
        return
    words = f"the CLI ended without a result: {conversation.last_words() or 'no last words'}"
    hits = exhaustion.hits(await exhaustion.ask(container), container.spec)
    if hits:
        outcome.fail(hits[0].reason, f"{hits[0].message}. Then {words}")
    else:
        outcome.fail("cli_crashed", words)


_TOO_MUCH_OUTPUT = (
    "the CLI wrote more than resources.output_mb allows, and was ended; raise it, or find out what "
    "fills its output: the last events tell"
)


async def conclude(plan: Plan, record: Record, outcome: Outcome) -> RunResult:
    """The envelope, and the run's last event."""
    good = outcome.status == "completed"
    record.note(
        "ended", outcome.message or outcome.status, status=outcome.status, reason=outcome.reason
    )
    await record.flush()
    usage = outcome.usage
    return RunResult(
        run_id=plan.task.run_id,
        agent=plan.agent.name,
        caller=plan.task.caller,
        status=outcome.status,
        reason=outcome.reason,
        message=record.clean(outcome.message),
        result=record.clean_value(outcome.result),
        partial_text="" if good else record.clean(outcome.partial_text),
        schema_errors=() if good else tuple(map(record.clean, outcome.schema_errors)),
        attempts=outcome.attempts,
        duration_ms=int((time.monotonic() - outcome.began) * 1000),
        cost_usd=round(usage.cost_usd, 6),
        usage=usage,
        model=outcome.model or plan.agent.model,
        session_id=outcome.session_id,
        session=outcome.session,
        session_note=outcome.session_note,
        denied_tools=outcome.denied_tools,
        denied_hosts=outcome.denied_hosts,
        changed_files=outcome.changed_files,
        patch=record.clean(outcome.patch),
        failed_mcp_servers=outcome.failed_mcp_servers,
        log_tail=() if good else record.tail,
    )
