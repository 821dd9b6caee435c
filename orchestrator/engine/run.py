"""A run under way -> RunResult: one stage, one conversation, and always an envelope."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import partial
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from orchestrator.domain.agent import AgentSpec
from orchestrator.domain.container import Launch
from orchestrator.domain.result import ChangedFile, RunResult
from orchestrator.engine.conversation import CliEnded, Conversation
from orchestrator.engine.live import LiveRun
from orchestrator.engine.record import Record
from orchestrator.engine.stage import Stage
from orchestrator.engine.turns import converse, keep_time, too_late, watch_waiting
from orchestrator.engine.workspaces.checkpoints import keep_checkpoints
from orchestrator.engine.workspaces.copies import Copies
from orchestrator.engine.workspaces.second_wires import SecondWires
from orchestrator.errors import CallerError, OrchestratorError
from orchestrator.runners.launching import server_log
from orchestrator.runners.rule_names import without_brokered_asks
from orchestrator.runners.signs import PermissionAsked
from orchestrator.workspace.reading.tree import Snapshot
from orchestrator.workspace.transfer import COLLECT_SECONDS

log = logging.getLogger(__name__)

EVENT_FLUSH_SECONDS = 0.5
"""How often events go to the store while a run is under way."""

EDIT_REFUSED = (
    "the input was edited, and agent.md denies some uses of this tool, which cannot be checked for "
    "an edited one; do without it"
)

CANNOT_EDIT = "the input was edited, and this CLI takes no other than its own; do without it"

UNTOLD_REASON = (
    "{runner} cannot tell its agent why a call was refused: the agent learns only that it was"
)

NOT_ASKED = "the caller could not be asked to approve this call; do without it"

SERVER_LOG_SECONDS = 5.0
SERVER_LOG_BYTES = 4096
SERVER_LOG_LINES = 3
"""What is looked at of a server that did not start, and how much of it a warning repeats."""

NOT_KEPT = "the orchestrator could not write down how the run ended; its log says more"


async def execute(
    live: LiveRun, staged: AbstractAsyncContextManager[Stage], copies: Copies
) -> None:
    """Do what a run is for, on its stage; how that ends is in `live`. Raises only cancellation,
    and errors that the caller can mend.
    """
    plan, record = live.plan, live.record
    stage: Stage | None = None
    began = time.monotonic()
    try:
        wires = SecondWires(plan, record)
        async with copies.watched_git(plan, record), wires.told(), AsyncExitStack() as held:
            with live.clock.running() as limit:
                stage = await held.enter_async_context(staged)
                try:
                    with live.on_stage(stage):
                        record.note(
                            "started",
                            f"{plan.way.runner} in {stage.container.name}",
                            runner=plan.way.runner,
                            path=_path(live, stage, began),
                        )
                        # Copied while the CLI starts. Held until after the clock has stopped: the
                        # agent's changes are read back even if its time is up.
                        copied = _copied_workspace(live, stage, copies)
                        snapshot = await held.enter_async_context(copied)
                        await _work(live, stage, snapshot, copies, wires)
                finally:
                    if _in_trouble(live, stage):
                        await _warn_of_limits(live, stage)
            if limit.cancelled_caught and not live.decided:
                live.fail("deadline", too_late(live), "timed_out")
    except CallerError:
        raise
    except OrchestratorError as exc:
        if live.decided:  # the end was clear before the clearing up went wrong
            record.note("warning", str(exc))
        else:
            live.fail("start_failed", str(exc))
    except Exception as exc:
        log.exception("run %s", live.run_id)
        if not live.decided:
            live.fail("machinery", _our_failure(exc))
    finally:
        if stage is not None:  # requests that were under way when the conversation ended
            live.note_use(stage)


def _path(live: LiveRun, stage: Stage, began: float) -> Literal["cold", "warm", "session"]:
    """How a run that began then came to its container."""
    if stage.made_at >= began:
        return "cold"
    return "session" if live.prepared.agent.session.keep else "warm"


def _our_failure(exc: Exception) -> str:
    if isinstance(exc, OSError) and exc.strerror:  # of this machine: its disk, its files
        place = f"{exc.filename}: " if exc.filename else ""
        return f"{place}{exc.strerror}. Check free space and permissions on this machine"
    return "the orchestrator failed; its log says more"


@asynccontextmanager
async def _copied_workspace(
    live: LiveRun, stage: Stage, copies: Copies
) -> AsyncIterator[Snapshot | None]:
    """The workspace in the container, if the agent works on a copy of it; whatever becomes of the
    run, what the agent changed there is in `live` afterwards.
    """
    plan, record = live.plan, live.record
    if plan.copied_workspace is None:
        yield None
        return
    snapshot = await copies.bring(plan.copied_workspace, plan.agent, stage.container, record)
    if live.tried:
        live.handed_on = await copies.carry_over(plan.task.run_id, stage.container, record)
    try:
        yield snapshot
    finally:
        await _hand_back(live, stage, snapshot, copies)


async def _hand_back(live: LiveRun, stage: Stage, snapshot: Snapshot, copies: Copies) -> None:
    record, handed = live.record, None
    with anyio.move_on_after(COLLECT_SECONDS, shield=True) as limit:
        try:
            handed = await copies.hand_back(live.plan, stage.container, snapshot, record)
        except OrchestratorError as exc:
            record.note("warning", f"the agent's changes are lost: {exc}")
    if limit.cancelled_caught:
        record.note(
            "warning",
            f"the agent's changes were not read within {COLLECT_SECONDS:.0f} s; some may be lost",
        )
    if handed is None:
        with anyio.CancelScope(shield=True):
            handed = await copies.recall(live.run_id, record)
    if handed is not None:
        live.note_changes(handed.changed_files, handed.patch)


async def _work(
    live: LiveRun, stage: Stage, snapshot: Snapshot | None, copies: Copies, wires: SecondWires
) -> None:
    """The conversation, and what has to go on beside it."""
    plan, record, conversation = live.plan, live.record, stage.conversation
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_keep_flushing, record, conversation)
        tasks.start_soon(keep_time, live, conversation)
        if plan.agent.may_wait:
            tasks.start_soon(watch_waiting, live.clock, stage.container)
        tasks.start_soon(_watch_disk, live, stage, tasks.cancel_scope)
        tasks.start_soon(wires.keep_looking)
        if plan.agent.mcp_servers:
            tasks.start_soon(_tell_failed_servers, live, stage)
        if snapshot is not None:
            save = partial(copies.checkpoint, plan, stage.container, snapshot, record)
            tasks.start_soon(keep_checkpoints, save, stage.container, record)
        approvals = _Approvals(live, conversation, tasks)
        with conversation.approved_by(approvals):
            await converse(live, stage)
        tasks.cancel_scope.cancel()


class _Approvals:
    """Approver (conversation.py) that puts tool calls to the caller, through the run's desk."""

    def __init__(self, live: LiveRun, conversation: Conversation, tasks: TaskGroup) -> None:
        self.agent = without_brokered_asks(live.plan.agent)
        self._runner, self._abilities = live.plan.way.runner, live.prepared.runner.abilities
        self._told = False
        """That the agent does not learn why a call was refused."""
        self._desk = live.desk
        self._record = live.record
        self._conversation = conversation
        self._tasks = tasks

    def ask(self, asked: PermissionAsked) -> None:
        self._tasks.start_soon(self._decide, asked)

    def withdraw(self, asked: PermissionAsked) -> None:
        self._tasks.start_soon(self._withdraw, asked)

    async def _decide(self, asked: PermissionAsked) -> None:
        try:
            decided = await self._desk.approve(asked.call_id, asked.tool, asked.input)
        except OrchestratorError as exc:  # the end of one call, not of the run
            self._record.note("warning", f"{asked.tool} is refused: {exc}")
            allowed, edited, why = False, None, NOT_ASKED
        else:
            allowed, edited, why = decided.approved, decided.new_input, decided.message
        if edited is not None and not self._abilities.edits_input:
            allowed, why = False, CANNOT_EDIT
            self._record.note("warning", why, call_id=asked.call_id)
        elif edited is not None and _is_denied_in_part(self.agent, asked.tool):
            # The CLI checks no rule for an edited input; we cannot check them as it does.
            allowed, why = False, EDIT_REFUSED
            self._record.note("warning", why, call_id=asked.call_id)
        if not allowed and not self._abilities.tells_reason and not self._told:
            self._told = True
            self._record.note("warning", UNTOLD_REASON.format(runner=self._runner))
        with suppress(CliEnded):
            await self._conversation.answer_permission(asked.request_id, allowed, edited, why)

    async def _withdraw(self, asked: PermissionAsked) -> None:
        with suppress(OrchestratorError):  # it is over all the same
            await self._desk.withdraw(asked.call_id)


def _is_denied_in_part(agent: AgentSpec, tool: str) -> bool:
    return any(rule.partition("(")[0] == tool for rule in agent.deny_rules)


async def _watch_disk(live: LiveRun, stage: Stage, work: anyio.CancelScope) -> None:
    hit = await stage.until_disk_is_full(live.plan.agent.resources.disk_bytes)
    live.fail(hit.reason, hit.message)
    work.cancel()


def _in_trouble(live: LiveRun, stage: Stage) -> bool:
    """Whether a limit may have been hit. To ask takes a while; a run on a stage that waited is to
    be answered at once, unless something went wrong.
    """
    if not stage.waited:
        return True
    troubled = live.status != "completed" or stage.conversation.tools_failed
    return troubled or stage.container.fate.out_of_memory.is_set()


async def _warn_of_limits(live: LiveRun, stage: Stage) -> None:
    """Note which limits were hit although the CLI went on, so that its result can be understood."""
    with anyio.CancelScope(shield=True):  # bounded; a run that is out of time has most to tell
        hits = await stage.limits.take_hits()
    for hit in hits:
        live.record.note("warning", f"{hit.reason}: {hit.message}", reason=hit.reason)


async def _tell_failed_servers(live: LiveRun, stage: Stage) -> None:
    """Note what the MCP servers of the agent that did not start said on stderr, the first time
    that the CLI tells of them.
    """
    agent, conversation = live.plan.agent, stage.conversation
    await conversation.at_work.wait()
    own = [server.name for server in agent.mcp_servers]
    failed = [name for name in own if name in conversation.failed_servers]
    with anyio.move_on_after(SERVER_LOG_SECONDS, shield=bool(failed)):
        for name in failed:
            log_file = server_log(name)
            look = Launch(argv=("head", "-c", str(SERVER_LOG_BYTES), log_file), errand=True)
            try:
                read = (await stage.container.run(look)).stdout
            except OrchestratorError:
                return  # the container has ended, and that is told
            said = read.decode(errors="replace").strip()
            last = " / ".join(said.splitlines()[-SERVER_LOG_LINES:]) or "it said nothing on stderr"
            text = f"the MCP server {name} did not start: {last}"
            live.record.note("warning", text, server=name, stderr=said)


async def _keep_flushing(record: Record, conversation: Conversation) -> None:
    while True:
        await anyio.sleep(EVENT_FLUSH_SECONDS)
        conversation.tell_unfinished()
        await record.flush()


async def conclude(live: LiveRun) -> RunResult:
    """The envelope, and the run's last event."""
    plan, record = live.plan, live.record
    good = live.status == "completed"
    await record.flush()
    record.note(  # and to be kept together with the envelope
        "ended", live.message or live.status, status=live.status, reason=live.reason
    )
    said: dict[str, object] = {  # by others, or with words of theirs in it
        "message": live.message,
        "result": live.result,
        "partial_text": "" if good else live.partial_text,
        "schema_errors": () if good else live.schema_errors,
        "model": live.model or plan.agent.model,
        "session_id": live.session_id,
        "session_note": live.session_note,
        "denied_tools": live.denied_tools,
        "denied_hosts": live.denied_hosts,
        "patch": live.patch,
        "failed_mcp_servers": live.failed_mcp_servers,
        "warnings": record.warnings,
        "log_tail": () if good else record.tail,
    }
    ours: dict[str, object] = {
        "run_id": plan.task.run_id,
        "trace_id": plan.task.trace_id,
        "agent": plan.agent.name,
        "caller": plan.task.caller,
        "status": live.status,
        "reason": live.reason,
        "attempts": live.attempts,
        "runner": plan.way.runner,
        "tried": tuple(live.tried),
        "duration_ms": int((time.monotonic() - live.began) * 1000),
        "scripted": live.scripted,
        **_money(live),
        "session": live.session_name,
        "changed_files": tuple(_clean_file(file, record) for file in live.changed_files),
    }
    clean = await record.cleaned(said)
    if not isinstance(clean, dict):
        raise TypeError("an envelope is an object")
    return RunResult.model_validate(ours | clean)


def _money(live: LiveRun) -> dict[str, object]:
    """What a run cost. A script costs nothing, though a budget is kept as if it did."""
    if live.scripted:
        free = {"cost_usd": 0.0, "estimated_usd": 0.0, "unanswered_usd": 0.0}
        return {"usage": live.total_usage.model_copy(update=free)}
    return {
        "cost_usd": round(live.total_usage.cost_usd, 6),
        "estimated_usd": round(live.total_usage.estimated_usd, 6),
        "family_usd": round(sum(usage.cost_usd for usage in live.family()), 6),
        "family_estimated_usd": round(sum(usage.estimated_usd for usage in live.family()), 6),
        "usage": live.total_usage,
    }


def not_kept(live: LiveRun) -> RunResult:
    """The envelope of a run whose own cannot be made, or not be kept. Raises nothing."""
    live.record.take()  # what cannot be kept may be among it
    with suppress(Exception):
        live.record.note("ended", NOT_KEPT, status="failed", reason="machinery")
    return RunResult(
        run_id=live.run_id,
        trace_id=live.plan.task.trace_id,
        agent=live.plan.agent.name,
        caller=live.plan.task.caller,
        status="failed",
        reason="machinery",
        message=NOT_KEPT,
    )


def _clean_file(file: ChangedFile, record: Record) -> ChangedFile:
    paths = {"path": record.clean(file.path), "old_path": record.clean(file.old_path)}
    return file.model_copy(update=paths)
