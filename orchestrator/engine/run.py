"""Plan -> RunResult: one container, one CLI, as many turns as it takes, and always an envelope."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

import anyio
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt

from orchestrator import output
from orchestrator.containers.runtime import Container, Runtime
from orchestrator.domain.container import MODEL_PORT
from orchestrator.domain.result import Reason, RunResult, RunStatus
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.record import Record
from orchestrator.errors import CallerError, OrchestratorError
from orchestrator.gateway.model import ModelAccess
from orchestrator.plan import Plan
from orchestrator.runners.signs import TurnEnded

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


async def run_plan(
    plan: Plan, runtime: Runtime, access: ModelAccess, record: Record, outcome: Outcome
) -> None:
    """Carry out a plan; how it ends is in the outcome. Only cancellation goes through, and
    errors of the caller, who can mend them.
    """
    try:
        with anyio.move_on_after(plan.timeout_seconds) as limit:
            await _in_container(plan, runtime, access, record, outcome)
        if limit.cancelled_caught and not outcome.decided:
            outcome.fail("deadline", _too_late(plan), "timed_out")
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


async def _in_container(
    plan: Plan, runtime: Runtime, access: ModelAccess, record: Record, outcome: Outcome
) -> None:
    labels = {"orchestrator.run": plan.task.run_id, "orchestrator.agent": plan.agent.name}
    record.note("starting", f"a container of {plan.container.image}", image=plan.container.image)
    async with runtime.open(plan.container, labels=labels) as container:
        await container.listen(MODEL_PORT, "model", access.service)
        async with container.spawn(plan.launch) as process:
            record.note("started", f"{plan.launch.argv[0]} in {container.name}")
            conversation = Conversation(process, record)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(conversation.pump)
                    tasks.start_soon(_keep_flushing, record)
                    tasks.start_soon(_keep_time, plan, conversation, record, outcome)
                    await _converse(plan, container, conversation, access, record, outcome)
                    tasks.cancel_scope.cancel()
            finally:
                outcome.note(conversation)


async def _converse(
    plan: Plan,
    container: Container,
    conversation: Conversation,
    access: ModelAccess,
    record: Record,
    outcome: Outcome,
) -> None:
    """Turn after turn until there is an answer, or a reason why there is none. Raises nothing."""
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
                if not _answered(ended, plan, access, outcome):
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
        await _explain_end(container, conversation, outcome)


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
    with anyio.move_on_after(TELL_SECONDS):
        await container.fate.out_of_memory.wait()
    if container.wire.ended is not None:
        failure = await container.failure()
        reason: Reason = "engine_lost"
        message = failure.message if failure else "the container ended"
        if failure is not None and failure.whose == "memory":
            reason = "out_of_memory"
        elif failure is not None and failure.whose == "machinery":
            reason = "machinery"
        elif container.fate.exit_code in (137, 143):
            reason = "container_killed"
        outcome.fail(reason, message)
    elif container.fate.out_of_memory.is_set():
        outcome.fail("out_of_memory", "the agent ran out of memory; raise resources.memory_mb")
    else:
        said = conversation.stderr.decode(errors="replace").strip()[-500:]
        outcome.fail("cli_crashed", f"the CLI ended without a result: {said or 'no last words'}")


async def conclude(plan: Plan, access: ModelAccess, record: Record, outcome: Outcome) -> RunResult:
    """The envelope, and the run's last event."""
    access.revoke()
    good = outcome.status == "completed"
    record.note(
        "ended", outcome.message or outcome.status, status=outcome.status, reason=outcome.reason
    )
    await record.flush()
    usage = access.usage
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
        denied_tools=outcome.denied_tools,
        failed_mcp_servers=outcome.failed_mcp_servers,
        log_tail=() if good else record.tail,
    )
