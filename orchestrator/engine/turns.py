"""The conversation of one run: turns, retries with feedback, and the end of its time."""

from __future__ import annotations

import anyio
import anyio.to_thread
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt

from orchestrator import output
from orchestrator.containers.processor_time import ProcessorWatch
from orchestrator.containers.runtime import Container
from orchestrator.domain.result import Reason
from orchestrator.engine.clock import Clock
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.live import LiveRun
from orchestrator.engine.stage import Stage
from orchestrator.gateway.elsewhere import run_elsewhere
from orchestrator.gateway.model.access import ModelAccess
from orchestrator.gateway.model.bill import ModelBill
from orchestrator.gateway.model.failures import model_failure, reason_of
from orchestrator.runners.contract import Abilities
from orchestrator.runners.signs import TurnEnded

NUDGE_SHARE = 0.2
"""The part of a run's time that is left when the agent is told to finish."""
NUDGE_SECONDS = 60.0
"""And at most so much of it."""

LAST_CALL_SHARE = 0.05
LAST_CALL_SECONDS = 5.0
"""When so much is left, whatever is under way is interrupted."""

ANSWER_CHECK_SECONDS = 20.0
"""For an answer to be compared with its schema, on a machine under load."""

WAITING_LOOK_SECONDS = (1.0, 15.0)
"""Between two looks at whether an agent works while its caller is waited for: at first, at last."""

OOM_NEWS_SECONDS = 2.0
"""After a CLI has died, for the engine to say that it was for want of memory."""

NUDGE = (
    "Time is nearly up. Stop working now and give your final answer at once, with what you have, "
    "in the form that was asked for. Do not use any more tools."
)


HANDED_ON = (
    "(Another agent has begun this task and cannot go on with it. What it had changed by then is "
    "in your working directory as it left it: look at that first, and go on from there.)"
)

WENT_ROUND = (
    "{runner} ended the turn by itself, as the agent made the same call again and again; ask for "
    "less, or in another way"
)


class _Invalid(Exception):
    """An answer that breaks the schema."""


async def converse(live: LiveRun, stage: Stage) -> None:
    """Turn after turn until there is an answer, or a reason why there is none. Raises nothing."""
    plan, record = live.plan, live.record
    conversation = stage.conversation
    message = plan.first_message
    if live.handed_on:
        message = f"{message}\n\n{HANDED_ON}"
    policy = AsyncRetrying(
        stop=stop_after_attempt(1 + plan.agent.retries),
        retry=retry_if_exception_type(_Invalid),
    )
    try:
        async for attempt in policy:
            with attempt:
                live.new_attempt()
                await conversation.say(message)
                await live.desk.tell_earlier()
                ended = await _verdict(live, conversation)
                if not await _answered(live, ended, stage.reach.model):
                    message = output.feedback(live.schema_errors, plan.agent.output_schema)
                    record.note("schema_failed", "; ".join(live.schema_errors))
                    await record.flush()
                    raise _Invalid
    except RetryError:
        live.fail(
            "invalid_output",
            f"{plan.agent.name} answered {live.attempts} times, and never as its schema says"
            f"{'; its last answer is in partial_text' if live.last_text else ''}",
        )
    except CliEnded:
        await _explain_end(live, stage)


async def _verdict(live: LiveRun, conversation: Conversation) -> TurnEnded:
    """The end of the turn; one that ended while something was being said is not the last."""
    while True:
        ended = await conversation.turn()
        if not live.is_interim(ended):
            return ended
        live.new_attempt()


def _as_seen(ended: TurnEnded, bill: ModelBill, abilities: Abilities) -> TurnEnded:
    """A turn's verdict, with what the gateway has seen: some CLIs call an answer that broke off a
    good one, for some every error of the API is the same, and some tell of what is inside only.
    """
    last, reason = bill.last, reason_of(bill.last.verdict)
    hidden = not abilities.tells_cut and last.verdict in ("cut", "length", "refusal")
    if ended.interrupted or reason == "ok" or (ended.reason == "ok" and not hidden):
        return ended
    if ended.reason in ("ok", "api_error") or not abilities.quotes_api:
        # Where the gateway has ended the turn, the CLI quotes the gateway.
        quotes = abilities.quotes_api and not last.said and not bill.gave_up
        text = ended.text if quotes else last.said
        return ended.model_copy(update={"reason": reason, "text": text})
    return ended


async def _answered(live: LiveRun, ended: TurnEnded, access: ModelAccess) -> bool:
    """Decide the run's end by a turn's verdict; False when the answer has to be sent back."""
    plan = live.plan
    ended = _as_seen(ended, access.bill, live.prepared.runner.abilities)
    if access.bill.exhausted and ended.reason != "ok":
        live.fail(
            "budget",
            f"the run has cost {_of_budget(live, access)}; raise max_budget_usd, or ask for less",
        )
        return True
    if access.bill.out_of_turns and ended.reason != "ok":
        live.fail("max_turns", model_failure("max_turns", "", access.way))
        return True
    if ended.reason == "max_turns" and not live.prepared.runner.abilities.counts_turns:
        live.fail("max_turns", WENT_ROUND.format(runner=plan.way.runner))
        return True
    if ended.interrupted and not live.hurried:
        live.fail("cli_crashed", f"the CLI gave up in the middle of a turn: {ended.text}")
        return True
    if ended.interrupted:
        live.fail("deadline", too_late(live), "timed_out")
        return True
    if ended.reason != "ok":
        verdict = live.verdict = access.bill.last.verdict
        live.fail(ended.reason, model_failure(ended.reason, ended.text, access.way, verdict))
        return True
    value: object = ended.text
    if plan.agent.output_format == "json":
        answer = await _read(ended.text, plan.agent.output_schema)
        if not live.check(answer.errors):
            return False
        value = answer.value
    if live.hurried:
        live.complete(value, "deadline", "time was nearly up: this is what the agent had by then")
    else:
        live.complete(value)
    return True


def _of_budget(live: LiveRun, access: ModelAccess) -> str:
    """What counts against the budget: what is known, what is not, and what others have used."""
    usage = access.bill.usage
    before_here = live.used_before.budgeted_usd
    before = 0.0 if live.before is None else live.before.usage.budgeted_usd
    estimated = usage.budgeted_usd - usage.cost_usd
    others = live.spent_usd - usage.budgeted_usd - before - before_here
    parts = [f"${usage.cost_usd:.4f}"]
    if estimated > 0:
        parts.append(f"by estimate ${estimated:.4f} more for answers that broke off")
    if others > 0:
        parts.append(f"${others:.4f} through agents that it ran")
    if before > 0:
        parts.append(f"${before:.4f} before its orchestrator was killed")
    if before_here > 0:
        parts.append(f"${before_here:.4f} on other runners")
    budget = live.budget_usd
    return f"{' and '.join(parts)}{'' if budget is None else f' of ${budget:.4f}'}"


async def _read(text: str, schema: dict[str, object] | None) -> output.Answer:
    """Compare an answer with its schema, off the event loop: the agent may have made it slow.

    What can take for ever is done by another process, since no thread can be stopped.
    """
    if not output.may_be_slow(text, schema):
        return await anyio.to_thread.run_sync(output.read_answer, text, schema)
    try:
        return await run_elsewhere(output.read_answer, text, schema, seconds=ANSWER_CHECK_SECONDS)
    except (TimeoutError, anyio.BrokenWorkerProcess):
        seconds = f"{ANSWER_CHECK_SECONDS:.0f} s"
        said = f"the answer could not be compared with its schema in {seconds}; say less"
        return output.Answer(errors=(said,))


def too_late(live: LiveRun) -> str:
    """What is said of a run whose time is over; whose limit it was decides what would help."""
    agent, seconds = live.plan.agent, live.plan.timeout_seconds
    if seconds >= agent.timeout_ms / 1000:
        mend = "Ask for less, or raise timeout_ms in its agent.md"
    elif live.plan.task.depth:
        mend = "Ask for less: it had the time that its caller had left"
    else:
        mend = "Ask for less, or allow more with --timeout"
    said = "; what it had said last is in partial_text" if live.last_text else ""
    return f"{agent.name} was not done after {round(seconds, 1):g} s{said}. {mend}"


async def keep_time(live: LiveRun, conversation: Conversation) -> None:
    """A soft deadline first: interrupt and ask for what there is; then interrupt for good."""
    total, clock = live.plan.timeout_seconds, live.clock
    nudge_at = total - min(NUDGE_SECONDS, NUDGE_SHARE * total)
    last_call_at = total - min(LAST_CALL_SECONDS, LAST_CALL_SHARE * total)
    try:
        await clock.until(nudge_at)
        await conversation.at_work.wait()  # an interrupt before the first turn stops nothing
        live.record.note("nudged", f"{total - nudge_at:.0f} s are left")
        await live.hurry(NUDGE)
        await clock.until(last_call_at)
        live.record.note("interrupted", "time is up")
        await conversation.interrupt()
    except CliEnded:
        pass  # `converse` finds out, too


async def watch_waiting(clock: Clock, container: Container) -> None:
    """While the run waits for its caller, look whether the container computes: then its time goes
    on. What reaches the gateway, or the record, is noticed without this.
    """
    watch = ProcessorWatch(container)
    while True:
        watch.forget()
        await clock.until_still()
        pause, longest = WAITING_LOOK_SECONDS
        while clock.stands_still():
            await anyio.sleep(pause)
            if clock.stands_still() and await watch.was_busy():
                clock.seen_at_work(2 * pause)
            pause = min(2 * pause, longest)


async def _explain_end(live: LiveRun, stage: Stage) -> None:
    """The CLI is gone without a verdict: find out whose doing that was."""
    container, conversation = stage.container, stage.conversation
    if conversation.wrote_too_much:
        live.fail("output_limit", _TOO_MUCH_OUTPUT)
        return
    with anyio.move_on_after(OOM_NEWS_SECONDS):
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
        live.fail(reason, message)
        return
    words = f"the CLI ended without a result: {conversation.last_words() or 'no last words'}"
    if hits := await stage.limits.hits():
        live.fail(hits[0].reason, f"{hits[0].message}. Then {words}")
    else:
        live.fail("cli_crashed", words)


_TOO_MUCH_OUTPUT = (
    "the CLI wrote more than resources.output_mb allows, and was ended; raise it, or find out what "
    "fills its output: the last events tell"
)
