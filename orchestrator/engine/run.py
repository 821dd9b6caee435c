"""A run under way -> RunResult: one stage, one conversation, and always an envelope."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial

import anyio
from anyio.abc import TaskGroup

from orchestrator.containers import exhaustion
from orchestrator.containers.exhaustion import Strain
from orchestrator.containers.runtime import Container
from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import MIB
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.engine.checkpoints import keep_checkpoints
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.copies import Copies
from orchestrator.engine.live import LiveRun
from orchestrator.engine.outcome import Outcome
from orchestrator.engine.record import Record
from orchestrator.engine.stage import Stage
from orchestrator.engine.turns import converse, keep_time, too_late
from orchestrator.errors import CallerError, OrchestratorError
from orchestrator.runners.signs import PermissionAsked
from orchestrator.workspace.reading.tree import Snapshot
from orchestrator.workspace.transfer import COLLECT_SECONDS

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
"""How often events go to the store while a run is under way."""

EDIT_REFUSED = (
    "the input was edited, and agent.md denies some uses of this tool, which cannot be checked for "
    "an edited one; do without it"
)

NOBODY_ASKED = "nobody could be asked to approve this call; do without it"

NOT_KEPT = "the orchestrator could not write down how the run ended; its log says more"


async def carry_out(
    live: LiveRun, staged: AbstractAsyncContextManager[Stage], copies: Copies
) -> None:
    """Carry out a run; how it ends is in its outcome. Only cancellation goes through, and
    errors of the caller, who can mend them.
    """
    plan, record, outcome = live.plan, live.record, live.outcome
    work = _Work(live, copies)
    try:
        async with copies.watched_git(plan, record), AsyncExitStack() as held:
            try:
                with live.clock.running() as limit:
                    await work.do(await held.enter_async_context(staged))
                if limit.cancelled_caught and not outcome.decided:
                    outcome.fail("deadline", too_late(plan), "timed_out")
            finally:
                await work.hand_back()
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
    finally:
        work.settle()


class _Work:
    """What is done on one stage: a copy of the workspace in, a conversation, changes out."""

    def __init__(self, live: LiveRun, copies: Copies) -> None:
        self._live = live
        self._plan = live.plan
        self._record = live.record
        self._outcome = live.outcome
        self._copies = copies
        self._snapshot: Snapshot | None = None
        self._stage: Stage | None = None

    async def do(self, stage: Stage) -> None:
        plan, record, outcome = self._plan, self._record, self._outcome
        self._stage = stage
        conversation = stage.conversation
        conversation.bind(record, plan.agent.resources.output_mb * MIB)
        self._live.conversation, self._live.reach = conversation, stage.reach
        record.note("started", f"{plan.launch.argv[0]} in {stage.container.name}")
        try:
            await self._copy_in(stage.container)  # while the CLI starts
            async with anyio.create_task_group() as tasks:
                self._mind_approvals(conversation, tasks)
                tasks.start_soon(_keep_flushing, record)
                tasks.start_soon(keep_time, self._live, conversation)
                tasks.start_soon(self._watch_disk, stage, tasks.cancel_scope)
                if self._snapshot is not None:
                    save = partial(
                        self._copies.checkpoint, plan, stage.container, self._snapshot, record
                    )
                    tasks.start_soon(keep_checkpoints, save, stage.container, record)
                await converse(self._live, stage)
                tasks.cancel_scope.cancel()
        finally:
            # Whoever they would tell has gone; from now on such calls are refused.
            conversation.on_permission = conversation.on_withdrawn = None
            self._live.conversation = None
            outcome.note(conversation)
            outcome.note_use(stage.reach)
            self._live.reach = None  # the next run's bill is none of ours
            if _in_trouble(stage, outcome):
                stage.strain = await _warn_of_limits(stage, record)

    def _mind_approvals(self, conversation: Conversation, tasks: TaskGroup) -> None:
        """Put tool calls that need somebody's word to him; what no rule allows is refused."""
        agent, desk = self._plan.agent, self._live.desk
        if not agent.ask_rules:
            return

        async def decide(asked: PermissionAsked) -> None:
            try:
                decided = await desk.approve(asked.call_id, asked.tool, asked.input)
            except OrchestratorError as exc:  # the end of one call, not of the run
                self._record.note("warning", f"{asked.tool} is refused: {exc}")
                allowed, edited, why = False, None, NOBODY_ASKED
            else:
                allowed, edited, why = decided.approved, decided.new_input, decided.message
            if edited is not None and _is_denied_in_part(agent, asked.tool):
                # The CLI checks no rule for what was edited; nor could we, as it does.
                allowed, why = False, EDIT_REFUSED
                self._record.note("warning", why, call_id=asked.call_id)
            with suppress(CliEnded):
                await conversation.answer_permission(asked.request_id, allowed, edited, why)

        async def withdraw(asked: PermissionAsked) -> None:
            with suppress(OrchestratorError):  # it is over all the same
                await desk.withdraw(asked.call_id)

        conversation.allow_rules = agent.permissions.allow
        conversation.ask_rules = agent.ask_rules
        conversation.on_permission = lambda asked: tasks.start_soon(decide, asked)
        conversation.on_withdrawn = lambda asked: tasks.start_soon(withdraw, asked)

    def settle(self) -> None:
        """Count what was still under way when the conversation ended, however that was."""
        if self._stage is not None:
            self._outcome.note_use(self._stage.reach)

    async def _watch_disk(self, stage: Stage, work: anyio.CancelScope) -> None:
        limit = self._plan.agent.resources.disk_bytes
        watch = exhaustion.DiskWatch(stage.container, limit)
        seen, stage.disk_seen = stage.disk_seen, True
        hit = await watch.until_full(at_once=not seen)
        self._outcome.fail(hit.reason, hit.message)
        work.cancel()

    async def _copy_in(self, container: Container) -> None:
        workspace = self._plan.copied_workspace
        if workspace is not None:
            self._snapshot = await self._copies.bring(
                workspace, self._plan.agent, container, self._record
            )

    async def hand_back(self) -> None:
        """What the agent changed in its copy, whatever became of the run."""
        if self._snapshot is None or self._stage is None:
            return
        handed = None
        with anyio.move_on_after(COLLECT_SECONDS, shield=True) as limit:
            try:
                handed = await self._copies.hand_back(
                    self._plan, self._stage.container, self._snapshot, self._record
                )
            except OrchestratorError as exc:
                self._record.note("warning", f"the agent's changes are lost: {exc}")
        if limit.cancelled_caught:
            said = "the agent's changes took too long to read; some may be lost"
            self._record.note("warning", said)
        if handed is None:
            with anyio.CancelScope(shield=True):
                handed = await self._copies.recall(self._live.run_id, self._record)
        if handed is not None:
            self._outcome.changed_files, self._outcome.patch = handed.changed_files, handed.patch


def _is_denied_in_part(agent: AgentSpec, tool: str) -> bool:
    return any(rule.partition("(")[0] == tool for rule in agent.deny_rules)


def _in_trouble(stage: Stage, outcome: Outcome) -> bool:
    """Whether a limit may have been hit: asking takes a while, which one that waited has not."""
    if not stage.waited:
        return True
    troubled = outcome.status != "completed" or stage.conversation.tools_failed
    return troubled or stage.container.fate.out_of_memory.is_set()


async def _warn_of_limits(stage: Stage, record: Record) -> Strain:
    """Note which limits were hit although the CLI went on, so that its result can be understood."""
    container = stage.container
    with anyio.CancelScope(shield=True):  # bounded; a run that is out of time has most to tell
        strain = await exhaustion.ask(container)
    for hit in exhaustion.hits(strain.since(stage.strain), container.spec):
        record.note("warning", f"{hit.reason}: {hit.message}", reason=hit.reason)
    return strain


async def _keep_flushing(record: Record) -> None:
    while True:
        await anyio.sleep(FLUSH_SECONDS)
        await record.flush()


async def conclude(live: LiveRun) -> RunResult:
    """The envelope, and the run's last event."""
    plan, record, outcome = live.plan, live.record, live.outcome
    good = outcome.status == "completed"
    await record.flush()
    record.note(  # and to be kept together with the envelope
        "ended", outcome.message or outcome.status, status=outcome.status, reason=outcome.reason
    )
    usage = outcome.usage
    said: dict[str, object] = {  # by others, or with words of theirs in it
        "message": outcome.message,
        "result": outcome.result,
        "partial_text": "" if good else outcome.partial_text,
        "schema_errors": () if good else outcome.schema_errors,
        "model": outcome.model or plan.agent.model,
        "session_id": outcome.session_id,
        "session_note": outcome.session_note,
        "denied_tools": outcome.denied_tools,
        "denied_hosts": outcome.denied_hosts,
        "patch": outcome.patch,
        "failed_mcp_servers": outcome.failed_mcp_servers,
        "warnings": record.warnings,
        "log_tail": () if good else record.tail,
    }
    ours: dict[str, object] = {
        "run_id": plan.task.run_id,
        "agent": plan.agent.name,
        "caller": plan.task.caller,
        "status": outcome.status,
        "reason": outcome.reason,
        "attempts": outcome.attempts,
        "duration_ms": int((time.monotonic() - outcome.began) * 1000),
        "cost_usd": round(usage.cost_usd, 6),
        "usage": usage,
        "session": outcome.session,
        "changed_files": tuple(_clean_file(file, record) for file in outcome.changed_files),
    }
    clean = {key: record.clean_value(value) for key, value in said.items()}
    return RunResult.model_validate(ours | clean)


def not_kept(live: LiveRun) -> RunResult:
    """The envelope of a run whose own cannot be made, or not be kept. Raises nothing."""
    live.record.take()  # what cannot be kept may be among it
    with suppress(Exception):
        live.record.note("ended", NOT_KEPT, status="failed", reason="machinery")
    return RunResult(
        run_id=live.run_id,
        agent=live.plan.agent.name,
        caller=live.plan.task.caller,
        status="failed",
        reason="machinery",
        message=NOT_KEPT,
    )


def _clean_file(file: ChangedFile, record: Record) -> ChangedFile:
    paths = {"path": record.clean(file.path), "old_path": record.clean(file.old_path)}
    return file.model_copy(update=paths)
